"""The number of tokens of a model: its embeddings, and its config."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from weighbridge.models.arch.config import value_at, with_part
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.text_config import text_path

# The number of tokens in the shapes of a family's table.
_TOKENS: Final = "V"
_KEYS: Final = ("vocab_size",)


def embeddings(model: OpenModel, dialect: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns those tensors of a dialect that have one row per token, by the family's table."""
    family, sizes, listed = model.family, model.sizes, dict.fromkeys(names)
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, listed, sizes)).places
    rows = family.rows
    return tuple(n for n in listed if n in places and rows[places[n].roles[0]].shape[:1] == (_TOKENS,))


def with_vocabulary_size(model: OpenModel, rows: int, owner: OpenModel | None = None) -> dict[str, bytes]:
    """Returns config.json with the number of embedding rows, and with the special tokens' ids of `owner`, whose
    tokenizer the model gets."""
    config = model.json("config.json") or {}
    path = text_path(model, _KEYS)
    part = dict(value_at(config, path))
    if owner is not None:
        ids = value_at(owner.config, text_path(owner, _KEYS))
        part |= {key: value for key, value in ids.items() if key.endswith("_token_id")}
    part["vocab_size"] = rows
    text = json.dumps(with_part(config, path, part), indent=2, ensure_ascii=False)
    return {"config.json": f"{text}\n".encode()}
