"""Decides what a GGUF is for, by its keys, and so which program of llama.cpp (b11549) runs it.

From tools/server, which answers /rerank only with `--reranking`, and aborts on encoder-decoders; tools/completion,
tools/tts and examples/diffusion run the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.models.config.reranker import RANK
from weighbridge.models.llamacpp import table

#: Uses of GGUFs that llama-server runs. architectures.toml has the others, by architecture.
TEXT: Final = "gguf"
EMBEDDING: Final = "embedding"
RERANKER: Final = "reranker"
CLASSIFIER: Final = "classifier"


def use_of(keys: Mapping[str, Any]) -> str:
    """Returns the use of a GGUF with this metadata."""
    architecture = str(keys.get("general.architecture"))
    if (use := table().uses.get(architecture)) is not None:
        return use
    pooling, labels = (keys.get(f"{architecture}.{key}") for key in ("pooling_type", "classifier.output_labels"))
    if pooling == RANK or (labels is not None and len(labels) == 1):
        return RERANKER
    if labels is not None:
        return CLASSIFIER
    encodes = pooling is not None or keys.get(f"{architecture}.attention.causal") is False
    return EMBEDDING if encodes else TEXT
