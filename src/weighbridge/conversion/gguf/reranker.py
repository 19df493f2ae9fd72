"""Adds what llama.cpp needs to rank with a Qwen 3: a matrix of the output's rows for the label tokens, and its keys.

Follows conversion/qwen.py `Qwen3Model` (llama.cpp b11549).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.tables.schema import RerankEntry
from weighbridge.models.config.reranker import is_reranker, rerank_of
from weighbridge.models.llamacpp import RANK
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.gguf import TEMPLATE, TEMPLATES
from weighbridge.tensors.nodes import LogicalTensor, concat, slice_rows

MATRIX: Final = "cls.output.weight"
_OUTPUT: Final = "output.weight"
_EMBEDDING: Final = "token_embd.weight"
_NAME: Final = "rerank"


def rerank_entry(model: OpenModel, requested: bool | None) -> RerankEntry | None:
    """The family's reranker entry if the GGUF is to be a reranker: by the option or, for None, by the model's marks.

    Raises UnsupportedError if the option is set for a family without such rerankers.
    """
    entry = rerank_of(model.family)
    if requested and entry is None:
        raise UnsupportedError(f"--rerank doesn't apply to {model.family.name}", hint="leave it out")
    return entry if requested or (requested is None and is_reranker(model)) else None


def with_matrix(
    named: Mapping[str, LogicalTensor], entry: RerankEntry, tokens: Sequence[str]
) -> dict[str, LogicalTensor]:
    """Adds the matrix of the labels' rows: before the embedding if that is the output, else replacing the output.

    Raises UnsupportedError if the vocabulary lacks a label.
    """
    if missing := [label for label in entry.labels if label not in tokens]:
        reason = f"no token is {missing[0]!r}, so the model can't rank"
        raise UnsupportedError(reason, hint="convert it unchanged: --no-rerank")
    source = _OUTPUT if _OUTPUT in named else _EMBEDDING
    columns = named[source].spec.shape[1]
    matrix = concat([slice_rows(named[source], tokens.index(label), (1, columns)) for label in entry.labels])
    tensors: dict[str, LogicalTensor] = {}
    for name, tensor in named.items():
        if name == source:
            tensors[MATRIX] = matrix
        if name != _OUTPUT:
            tensors[name] = tensor
    return tensors


def with_keys(metadata: Mapping[str, Any], entry: RerankEntry, architecture: str) -> dict[str, Any]:
    """Inserts the keys of a reranker after the architecture's keys."""
    keys = list(metadata)
    end = max(i for i, key in enumerate(keys) if key.startswith(f"{architecture}.")) + 1
    return {
        **{key: metadata[key] for key in keys[:end]},
        f"{architecture}.pooling_type": KV("u32", RANK),
        f"{architecture}.classifier.output_labels": KV("arr[str]", entry.labels),
        f"{TEMPLATE}.{_NAME}": KV("str", entry.template),
        TEMPLATES: KV("arr[str]", [_NAME]),
        **{key: metadata[key] for key in keys[end:]},
    }
