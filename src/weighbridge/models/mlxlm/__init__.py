"""Decides whether mlx-lm (0.32) would load a folder: its rules on config.json and tensors."""
