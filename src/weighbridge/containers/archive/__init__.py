"""Zip and tar archives: the places of their members' bytes."""
