"""Task sets, one a file."""
