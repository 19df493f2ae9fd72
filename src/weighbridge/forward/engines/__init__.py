"""What runs a model over a text."""
