"""GGUF metadata, and upgrades of files from before GGUF."""
