"""File formats of vocabularies, apart from any model folder: SentencePiece models, rank tables, merge lists."""
