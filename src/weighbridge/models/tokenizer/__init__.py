"""Tokenizers and chat templates, both ways: a Hugging Face folder's files <-> `Vocab` <-> a GGUF's keys.

Reading order: vocab (what is carried), files, sentencepiece, merges, ranks (the formats), pretokenizer with its table,
added and special (the reference's rules), spm, unigram, slow, tiktoken, tekken (kinds and their files), hf_read,
gguf_form, hf_write.
"""

from __future__ import annotations

from weighbridge.models.tokenizer.gguf_form import from_gguf, to_gguf
from weighbridge.models.tokenizer.hf_read import from_hf
from weighbridge.models.tokenizer.hf_write import losses, to_hf
from weighbridge.models.tokenizer.vocab import Kind, Template, TokenType, Vocab

__all__ = ["Kind", "Template", "TokenType", "Vocab", "from_gguf", "from_hf", "losses", "to_gguf", "to_hf"]
