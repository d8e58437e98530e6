"""Tasks whose answers can be checked: generators and checkers, one family a file."""
