"""The contents of a file or model."""
