"""Verifies files and models, and reports all findings at once."""
