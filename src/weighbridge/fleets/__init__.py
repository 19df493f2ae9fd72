"""Runs one command over many models: a manifest of items, tasks that depend only on their items, a journal at the
target, and runners. Results don't depend on where tasks run."""
