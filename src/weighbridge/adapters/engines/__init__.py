"""Models of transformers and vLLM that take our tensors for their weights."""
