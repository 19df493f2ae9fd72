"""Tensor parallelism: divides a model's tensors among devices, and joins them again."""
