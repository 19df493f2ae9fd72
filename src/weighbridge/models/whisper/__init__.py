"""Whisper as OpenAI, transformers and whisper.cpp store it: names, sizes, mel filters, tokens."""
