"""Decides whether llama.cpp (b11549) would load a GGUF as a model: its rules on keys, vocabulary and tensors; and which
of its programs runs it. The needs and uses of each architecture are in architectures.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from msgspec import Struct, convert

from weighbridge.base.imports.tables import read_table

RANK: Final = 4  # llama.h `LLAMA_POOLING_TYPE_RANK`
#: Uses of GGUFs that llama-server runs. architectures.toml has the others, by architecture.
TEXT: Final = "gguf"
EMBEDDING: Final = "embedding"
RERANKER: Final = "reranker"
CLASSIFIER: Final = "classifier"


class NamedTokens(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that models with certain names need."""

    names: list[str]
    tokens: list[str]
    unless_pre: list[str]
    unless_architecture: list[str]


class LoaderTable(Struct, frozen=True, forbid_unknown_fields=True):
    """architectures.toml documents the fields."""

    required: list[str]
    required_with: Mapping[str, list[str]]
    deciding: Mapping[str, list[str]]
    either: Mapping[str, list[str]]
    lite: Mapping[str, list[list[int]]]
    fixed: Mapping[str, Mapping[str, int]]
    needed: Mapping[str, list[str]]
    optional: Mapping[str, list[str]]
    defaulted: Mapping[str, list[str]]
    one_head_length: list[str]
    apart_from_trunk: list[str]
    longrope: list[str]
    unknown: Mapping[str, list[str]]
    unknown_below: Mapping[str, Mapping[int, list[str]]]
    experts: list[str]
    one_is_none: list[str]
    without_graph: list[str]
    parts: Mapping[str, str]
    uses: Mapping[str, str]
    rotates_all: list[str]
    rope_scaling: list[str]
    max_experts: int
    tokenizers: list[str]
    without_tokens: list[str]
    with_merges: list[str]
    with_pretokenizer: list[str]
    named: list[NamedTokens]
    architecture: Mapping[str, list[str]]


@cache
def table() -> LoaderTable:
    """Returns the parsed architectures.toml."""
    return convert(read_table(__file__, "architectures.toml"), LoaderTable, strict=False)


def use_of(keys: Mapping[str, Any]) -> str:
    """Returns the use of a GGUF with this metadata.

    As in tools/server, which answers /rerank only with `--reranking`, and aborts on encoder-decoders; tools/completion,
    tools/tts and examples/diffusion run the others.
    """
    architecture = str(keys.get("general.architecture"))
    if (use := table().uses.get(architecture)) is not None:
        return use
    pooling, labels = (keys.get(f"{architecture}.{key}") for key in ("pooling_type", "classifier.output_labels"))
    count = len(labels) if isinstance(labels, Sequence) and not isinstance(labels, str) else 0
    if pooling == RANK or count == 1:
        return RERANKER
    if count:
        return CLASSIFIER
    if f"{architecture}.decision.type" in keys:  # for which the server sets its flags itself
        return TEXT
    encodes = pooling is not None or keys.get(f"{architecture}.attention.causal") is False
    return EMBEDDING if encodes else TEXT
