"""Scanning HDF5: a bounded reader of its structure, which reads no data."""
