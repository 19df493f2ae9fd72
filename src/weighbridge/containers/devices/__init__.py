"""Formats of models for devices: ExecuTorch and Core ML."""
