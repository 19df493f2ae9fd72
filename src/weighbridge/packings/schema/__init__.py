"""Schemas of packed weights: what they consist of in a file, and how a group of stored tensors is recognised."""
