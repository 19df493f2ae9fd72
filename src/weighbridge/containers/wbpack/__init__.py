"""Packed files: any file of weights in planes of coded bytes, read at any place (docs/wbpack.md)."""
