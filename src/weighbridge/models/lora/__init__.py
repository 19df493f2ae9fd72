"""LoRA adapters: pairs of small matrices for some of a model's tensors, in PEFT's, llama.cpp's and mlx_lm's formats."""
