"""Recognising and unpacking packed tensors, one file a scheme."""
