"""The number of tokens of a model: its embeddings, and its config."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from weighbridge.models.model import OpenModel

# The number of tokens in the shapes of a family's table.
_TOKENS: Final = "V"


def embeddings(model: OpenModel, dialect: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns those tensors of a dialect that have one row per token, by the family's table."""
    family, sizes, listed = model.family, model.sizes, dict.fromkeys(names)
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, listed, sizes)).places
    rows = family.rows
    return tuple(n for n in listed if n in places and rows[places[n].roles[0]].shape[:1] == (_TOKENS,))


def with_vocabulary_size(model: OpenModel, rows: int, owner: OpenModel | None = None) -> dict[str, bytes]:
    """Returns config.json with the number of embedding rows, and with the special tokens' ids of `owner`, whose
    tokenizer the model gets."""
    config = dict(model.json("config.json") or {})
    ids = _vocabulary_part(owner.config) if owner is not None else {}
    part = dict(_vocabulary_part(config))
    part |= {key: value for key, value in ids.items() if key.endswith("_token_id")}
    part["vocab_size"] = rows
    nested = _vocabulary_part(config) is not config
    text = json.dumps({**config, "text_config": part} if nested else part, indent=2, ensure_ascii=False)
    return {"config.json": f"{text}\n".encode()}


def _vocabulary_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) and "vocab_size" not in config else config
