"""Recognises files by their bytes."""
