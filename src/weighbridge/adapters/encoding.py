"""Texts as token ids, through the `tokenizers` package."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.remote.extra import package
from weighbridge.base.errors import UnsupportedError


class TextEncoder:
    """The tokenizer of a tokenizer.json. Raises UnsupportedError for a file that `tokenizers` refuses."""

    def __init__(self, data: bytes) -> None:
        library = package("tokenizers", "tokenizing a text", "calibrate")
        try:
            self._tokenizer: Any = library.Tokenizer.from_buffer(data)
        except Exception as error:  # it raises nothing more specific
            raise UnsupportedError(f"the tokenizer can't be used: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, *, special: bool = False) -> NDArray[np.int64]:
        """The ids of a text, without those that are added to every text. `special`: special tokens in the text are
        recognised; otherwise they are plain text, as in llama.cpp."""
        self._tokenizer.encode_special_tokens = not special
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
