"""Proves that two models are equal: in settings, tensors and computed results."""
