"""Vocabulary file formats, independent of a model folder: SentencePiece models, rank tables, merge lists."""
