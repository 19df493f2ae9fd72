"""Conversions of diffusers pipelines: part by part into a folder, or into one file."""
