"""Safetensors: parsed exactly as the reference does, and written."""
