"""The tokenizer files of a Hugging Face folder, read into `Vocab` and written from it."""
