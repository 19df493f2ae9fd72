"""Tokenizers and chat templates, in both directions: a Hugging Face folder's files <-> `Vocab` <-> a GGUF's keys.

`vocab` has the neutral form; `gguf` reads and writes a GGUF's keys; `hf` does the same for a folder's files; `formats`
parses vocabulary file formats; `pretokenizer` maps llama.cpp's pre-tokenizer names to definitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.base.imports.lazy import lazy_names

if TYPE_CHECKING:
    from weighbridge.models.tokenizer.gguf import from_gguf, to_gguf
    from weighbridge.models.tokenizer.hf.read import from_hf
    from weighbridge.models.tokenizer.hf.write import losses, to_hf
    from weighbridge.models.tokenizer.vocab import ChatTemplate, TokenType, Vocab, VocabKind, with_codes

__all__ = ["ChatTemplate", "TokenType", "Vocab", "VocabKind", "from_gguf", "from_hf", "losses", "to_gguf", "to_hf",
           "with_codes"]  # fmt: skip

__getattr__ = lazy_names(
    globals(),
    {
        "gguf": "from_gguf to_gguf",
        "hf.read": "from_hf",
        "hf.write": "losses to_hf",
        "vocab": "ChatTemplate TokenType Vocab VocabKind with_codes",
    },
)
