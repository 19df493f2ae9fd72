"""Quantization schemes of Hugging Face folders."""
