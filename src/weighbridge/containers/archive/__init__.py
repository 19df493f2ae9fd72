"""Zip and tar archives: where the members' bytes are."""
