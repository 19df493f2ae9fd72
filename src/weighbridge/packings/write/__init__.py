"""Packing and quantizing logical tensors into stored ones."""
