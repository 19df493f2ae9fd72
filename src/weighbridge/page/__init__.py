"""A page on a model, or on what differs between two, for browsers and notebooks."""
