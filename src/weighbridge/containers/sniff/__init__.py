"""What a file is, by its bytes."""
