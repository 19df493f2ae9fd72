"""Readers of packed tensors, one file per scheme."""
