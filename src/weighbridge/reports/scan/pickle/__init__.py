"""Scanning pickles."""
