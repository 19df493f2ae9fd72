"""Jais: the factors of its embedding and of its logits, which configs state under two sets of keys."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.values import Config, number

_OF_WIDTH: Final = ("mup_output_alpha", "mup_width_scale")
_EMBEDDING: Final = "mup_embeddings_scale"
KEYS: Final = (*_OF_WIDTH, _EMBEDDING, "embeddings_scale", "width_scale")


def complete(config: Config) -> dict[str, Any]:
    """Adds `embedding_factor` and `output_factor`, as the reference converter takes them (conversion/jais.py
    `JaisModel`, llama.cpp b11549)."""
    embedding = config.get(_EMBEDDING, config.get("embeddings_scale", 1.0))
    output = config.get("width_scale", 1.0)
    if _OF_WIDTH[0] in config:
        alpha, width = (number(config.get(key, 1.0), key) for key in _OF_WIDTH)
        output = alpha * width
    return {"embedding_factor": embedding, "output_factor": output}


def restore(config: Config) -> dict[str, Any]:
    """Factors of 1: a GGUF has them in its weights."""
    return dict.fromkeys((_EMBEDDING, *_OF_WIDTH), 1.0)
