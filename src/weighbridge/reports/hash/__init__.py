"""Digests and checksum files."""
