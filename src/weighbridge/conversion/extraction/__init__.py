"""Extracts LoRA adapters: the differences of two models as products of thin matrices."""
