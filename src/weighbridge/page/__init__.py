"""A page about a model, or the differences between two, for browsers and notebooks."""
