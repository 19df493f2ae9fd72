"""Imports that wait for their first use, and data files that are imported like modules."""
