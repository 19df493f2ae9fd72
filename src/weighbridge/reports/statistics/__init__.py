"""Statistics of values: of one tensor, and of all tensors by layer and role."""
