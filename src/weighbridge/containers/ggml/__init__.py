"""Files of llama.cpp and ggml before GGUF, and importance matrices."""
