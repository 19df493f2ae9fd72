"""GGUF: llama.cpp's one-file format, read, checked, split and written."""
