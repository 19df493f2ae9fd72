"""Decides whether llama.cpp (b11549) would load a GGUF as a model: its rules on keys, vocabulary and tensors."""
