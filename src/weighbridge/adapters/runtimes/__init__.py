"""The programs that run models: transformers, llama.cpp, mlx-lm. Each is imported in a separate process."""
