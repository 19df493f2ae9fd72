"""Reads the tokenizer files of a Hugging Face folder into `Vocab`, and writes them."""
