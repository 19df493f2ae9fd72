"""llama-quantize's work: types, importance matrices, keys."""
