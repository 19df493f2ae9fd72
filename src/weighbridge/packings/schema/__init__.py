"""Schemas of packed weights: their stored tensors, and how a group of them is recognised."""
