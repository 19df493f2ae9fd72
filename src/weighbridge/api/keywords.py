"""The keywords of the writing functions, each spelled as the command's option: `--q-bits 4` is `q_bits=4`.

What they mean stands at `SourceOptions` (models/checkpoint.py), `WriteOptions` and the options of each target
(conversion/options.py). An option that doesn't apply to the target is a UsageError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypedDict

from weighbridge.base.errors import UsageError
from weighbridge.conversion.options import WriteOptions
from weighbridge.models.checkpoint import SourceOptions

Path = str | os.PathLike[str]


class SourceKeywords(TypedDict, total=False):
    """How any function opens its source."""

    arch_file: Path | None
    allow_expand: bool


class WriteKeywords(SourceKeywords, total=False):
    """How any function writes."""

    overwrite: bool
    replace_folder: bool
    resume: bool
    parents: bool
    jobs: int | None
    max_memory: int | None


class SaveKeywords(TypedDict, total=False):
    """How arrays in memory are written."""

    overwrite: bool
    replace_folder: bool
    parents: bool
    jobs: int | None
    max_memory: int | None


class ShardKeywords(WriteKeywords, total=False):
    max_shard_size: int | None
    max_shard_tensors: int | None


class TransformKeywords(ShardKeywords, total=False):
    dtype: str | None


class ConvertKeywords(TransformKeywords, total=False):
    inexact: Literal["float", "near", "refuse"]
    allow_requantize: bool
    align: int | None
    tokenizer: bool
    vocab_only: bool
    pre: str | None
    name: str | None
    rms_eps: float | None
    context_length: int | None
    scheme: str | None
    quantize: bool
    q_bits: int | None
    q_group_size: int | None
    sym: bool | None
    q_mode: str | None
    recipe: str | None
    base: Path | None


class QuantizeTypes(SourceKeywords, total=False):
    """The options that affect the content that `quantize` writes, not how it is written."""

    imatrix: Path | None
    include_weights: Sequence[str]
    exclude_weights: Sequence[str]
    pure: bool
    leave_output_tensor: bool
    output_tensor_type: str | None
    token_embedding_type: str | None
    tensor_type: Sequence[str]
    prune_layers: Sequence[int]
    override_kv: Sequence[str]
    keep_split: bool
    target_bpw: float | None
    target_size: int | None
    allow_requantize: bool
    pre: str | None
    tokenizer: bool
    name: str | None
    align: int | None


class QuantizeKeywords(QuantizeTypes, WriteKeywords, total=False):
    pass


class SortedKeywords(NamedTuple):
    """Keywords by purpose. `target`: the given options of the target."""

    source: SourceOptions
    write: WriteOptions
    target: dict[str, Any]


def sort_keywords(given: Mapping[str, Any]) -> SortedKeywords:
    """Splits the keywords of a call. None counts as not given. UsageError for an unknown keyword."""
    known = ConvertKeywords.__annotations__ | QuantizeKeywords.__annotations__
    for name in given.keys() - known.keys():
        near = get_close_matches(name, known, 1)
        raise UsageError(f"unknown option {name!r}", hint=f"did you mean {near[0]!r}?" if near else None)
    left = {name: value for name, value in given.items() if value is not None}
    source, write = (
        {f.name: left.pop(f.name) for f in fields(kind) if f.name in left} for kind in (SourceOptions, WriteOptions)
    )
    return SortedKeywords(SourceOptions(**source), WriteOptions(**write), left)
