"""Edits of a file's header."""
