"""Tensor parallelism: a model's tensors in as many shares as there are devices, and put together again."""
