"""What is inside a file or a model."""
