"""From evidence to lanes in place: what the machine and the pack say, what that arms, and how it is installed."""
