"""The files of a tensor-parallel set: `model-rank-0-of-4.safetensors` ... (or `.gguf`). Each has every tensor name, and
metadata with its rank, the number of ranks, and how each tensor was split:

    tensor_parallel.rank = "0"    tensor_parallel.size = "4"
    tensor_parallel.split = {"model.layers.0.self_attn.q_proj.weight": {"axis": 0, "parts": [[4096, 1]]},
                             "model.norm.weight": null, ...}

A part is [entries of the whole tensor, ranks that store each of them]; null means that every rank has the whole tensor.
Members that follow from a matrix's sizes give those: {"shape": [4096, 4096]}, {"turn": [4096, 128]} (columns, columns
per group). Names keep the model's order, so joining needs no family table and restores the original file.

A rank can be sharded like any model: `model-rank-0-of-4-00001-of-00003.safetensors` ... with an index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.containers.gguf.values import Metadata, kvs
from weighbridge.models.jsonfile import decode
from weighbridge.models.locate import Place
from weighbridge.models.model import OpenModel, SourceOptions, open_weights
from weighbridge.models.tensor_parallel.packed_shards import GroupIndex, MatrixShape, Split, gather_numbers
from weighbridge.models.tensor_parallel.partition import Partition, Segment, gather
from weighbridge.models.tensor_parallel.rank_set import RANK, SIZE, SPLIT, RankStatus, rank_of, rank_set_of
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.base.spec import Spec
    from weighbridge.tensors.nodes import Node

_AXES: Final = 8


def metadata(rank: int, ranks: int, splits: Mapping[str, Split]) -> dict[str, str]:
    """The metadata of a rank's file."""
    encoded = {name: _encode(split) for name, split in splits.items()}
    return {RANK: str(rank), SIZE: str(ranks), SPLIT: json.dumps(encoded, separators=(",", ":"))}


def _encode(split: Split) -> dict[str, Any] | None:
    if isinstance(split, MatrixShape):
        return {"shape": list(split.whole)}
    if isinstance(split, GroupIndex):
        return {"turn": [split.columns, split.group]}
    return None if split is None else {"axis": split.axis, "parts": [list(p) for p in split.parts]}


def gather_ranks(path: Path, ranks: Sequence[Path], options: SourceOptions = SourceOptions()) -> OpenModel:
    """The whole model from all of its ranks. FormatError for files of different sets."""
    opened: list[OpenModel] = []
    try:
        for file in ranks:
            opened.append(open_weights(file, options))
        first = opened[0]
        splits = parse_splits(first.metadata, _path(first))
        for number, model in enumerate(opened):
            declared = model.metadata.get(RANK), model.metadata.get(SIZE)
            if declared != (str(number), str(len(opened))):
                found = " of ".join(map(str, declared))
                words = "metadata contradicts the rank in the file name"
                expected = f"{number} of {len(opened)}"
                raise FormatError(words, path=_path(model), field=RANK, expected=expected, found=found)
            if model.metadata.get(SPLIT) != first.metadata.get(SPLIT) or model.stored.keys() != splits.keys():
                raise FormatError("belongs to another set than rank 0", path=_path(model), field=SPLIT)
        nodes = {name: _gather_tensor(name, opened, split) for name, split in splits.items()}
        folder = first.place.path.parent if first.place.path.is_file() else first.place.path
        place = Place(path, tuple(w for m in opened for w in m.place.weights), folder)
        files = tuple(source for m in opened for source in m.index.files)
        index = replace(first.index, metadata=_without_set(first), files=files)
        return with_nodes(replace(first, place=place, index=index), nodes)
    except BaseException:
        for model in opened:
            model.close()
        raise


def _without_set(model: OpenModel) -> Any:
    """A rank's metadata without the keys of the set."""
    if model.format != "gguf":
        return {k: v for k, v in model.metadata.items() if k not in (RANK, SIZE, SPLIT)}
    return Metadata({k: kv for k, kv in kvs(model.metadata).items() if k not in (RANK, SIZE, SPLIT)})


def mismatch(split: Split, spec: Spec, first: Spec, ranks: int) -> str | None:
    """The expected form of a rank's tensor if `spec` doesn't fit its split, else None. `first`: the same tensor of
    rank 0."""
    if isinstance(split, Partition):
        want = sum(split.local_sizes(ranks))
        if split.axis >= len(spec.shape) or spec.shape[split.axis] != want:
            return f"{want} entries on axis {split.axis}"
    elif split is not None:
        want = 2 if isinstance(split, MatrixShape) else split.columns // ranks
        if spec.shape != (want,) or spec.dtype.name not in ("I32", "I64"):
            return f"{want} integers"
    return None if spec == first else str(first)


def whole_shape(split: Split, spec: Spec) -> tuple[int, ...]:
    """The shape of the whole tensor, given a rank's spec."""
    if isinstance(split, GroupIndex):
        return (split.columns,)
    if not isinstance(split, Partition) or split.axis >= len(spec.shape):
        return spec.shape
    return (*spec.shape[: split.axis], sum(part.size for part in split.parts), *spec.shape[split.axis + 1 :])


def _gather_tensor(name: str, ranks: Sequence[OpenModel], split: Split) -> Node:
    """A whole tensor from every rank's part of it."""
    parts = [model.stored[name] for model in ranks]
    for model, part in zip(ranks, parts, strict=True):
        if (expected := mismatch(split, part.spec, parts[0].spec, len(ranks))) is not None:
            words = "doesn't fit the split that the set declares"
            raise FormatError(words, path=_path(model), field=name, expected=expected, found=str(part.spec))
    return gather_numbers(parts[0], split) if isinstance(split, MatrixShape | GroupIndex) else gather(parts, split)


def _path(model: OpenModel) -> str:
    return str(model.place.path)


def parse_splits(metadata: Mapping[str, Any], path: str) -> dict[str, Split]:
    """The splits in a rank's metadata, by tensor name. FormatError for an invalid entry."""
    path = f"{path} ({SPLIT})"
    entries: dict[str, Any] = decode(str(metadata.get(SPLIT, "")).encode(), path, dict[str, Any])
    size = metadata.get(SIZE, "")
    ranks = int(size) if str(size).isdecimal() else 0
    out: dict[str, Split] = {}
    for name, entry in entries.items():
        try:
            out[name] = None if entry is None else _parse_split(entry, ranks)
        except ValueError:
            raise FormatError("invalid split", path=path, field=name, found=repr(entry)[:80]) from None
    return out


def _parse_split(entry: Any, ranks: int) -> Split:
    """A split from JSON. ValueError if it is invalid."""
    if not isinstance(entry, dict) or not ranks:
        raise ValueError(entry)
    if (pair := entry.get("shape") or entry.get("turn")) is not None:
        columns, other = _two_integers(pair, 1 << 31)
        if len(entry) != 1 or ("turn" in entry and columns % ranks):
            raise ValueError(entry)
        return MatrixShape((columns, other), (columns, other)) if "shape" in entry else GroupIndex(columns, other)
    axis, parts = entry.get("axis"), entry.get("parts")
    if type(axis) is not int or not 0 <= axis < _AXES or not isinstance(parts, list) or not parts:
        raise ValueError(entry)
    segments = [Segment(*_two_integers(part)) for part in parts]
    if any(ranks % copies or size * copies % ranks for size, copies in segments):  # not divided evenly
        raise ValueError(entry)
    return Partition(axis, tuple(segments))


def _two_integers(pair: Any, below: float = math.inf) -> tuple[int, int]:
    """A list of two positive integers as a tuple. ValueError for anything else."""
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(n) is int and 0 < n < below for n in pair):
        raise ValueError(pair)
    return pair[0], pair[1]


# ------------------------------------------------------------------------------------------------ headers only


def open_ranks(path: Path, options: SourceOptions = SourceOptions()) -> tuple[OpenModel, RankStatus | None]:
    """The model at `path` from only its headers. A folder of ranks gives the whole model's tensors even if ranks are
    missing, with the offsets of the first file; their data can't be read."""
    found = rank_set_of(path)
    if found is None:
        return open_weights(path, options), None
    if not path.is_dir():
        rank = rank_of(path.name)
        return open_weights(path, options), RankStatus(found.size, rank and rank[0], found.missing)
    models: list[OpenModel] = []
    try:
        for _, file in sorted(found.files.items()):
            models.append(open_weights(file, options))
        first = models[0]
        splits = parse_splits(first.metadata, _path(first))
        entries = []
        for e in first.index:
            spec = e.spec.with_shape(*whole_shape(splits.get(e.name), e.spec))
            entries.append(msgspec.structs.replace(e, shape=spec.shape, nbytes=spec.nbytes))
        index = replace(
            first.index, entries=tuple(entries), metadata=_without_set(first),
            files=tuple(source for m in models for source in m.index.files),
            data_start=tuple(start for m in models for start in m.index.data_start),
        )  # fmt: skip
        place = Place(path, tuple(w for m in models for w in m.place.weights), path)
        return replace(first, place=place, index=index), RankStatus(found.size, None, found.missing)
    except BaseException:
        for model in models:
            model.close()
        raise
