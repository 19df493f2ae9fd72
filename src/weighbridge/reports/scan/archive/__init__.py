"""Scanning archives and compressed streams."""
