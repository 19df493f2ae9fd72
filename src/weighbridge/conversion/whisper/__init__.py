"""Conversions of Whisper models between whisper.cpp, transformers and OpenAI's checkpoints."""
