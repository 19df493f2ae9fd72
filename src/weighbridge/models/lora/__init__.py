"""LoRA adapters: pairs of small matrices for some of a model's tensors, as PEFT and llama.cpp have them."""
