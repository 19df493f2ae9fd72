"""Scanning chat templates."""
