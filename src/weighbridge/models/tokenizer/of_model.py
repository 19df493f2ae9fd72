"""The tokenizer of an open model."""

from __future__ import annotations

from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.gguf import from_gguf
from weighbridge.models.tokenizer.hf.read import from_hf
from weighbridge.models.tokenizer.hf.write import to_hf
from weighbridge.models.tokenizer.vocab import Vocab

_FILE: Final = "tokenizer.json"


def vocab_of(model: OpenModel) -> Vocab:
    """Returns the tokenizer of a model. Raises FormatError or UnsupportedError if it is missing or can't be read."""
    if model.format == "gguf":
        return from_gguf(model.metadata)
    return from_hf(model.read, names=model.place.names())


def tokenizer_json(model: OpenModel, vocab: Vocab) -> bytes:
    """Returns a model's tokenizer.json: the folder's, or one that is made of `vocab`. Raises UnsupportedError for a
    kind of tokenizer that the file can't hold."""
    stored = None if model.format == "gguf" else model.read(_FILE)
    if stored is not None:
        return stored
    made = to_hf(vocab).get(_FILE)
    if made is None:
        raise UnsupportedError(f"a {vocab.kind.value} tokenizer has no tokenizer.json, which reads texts")
    return made
