"""Checkpoints whose experts are divided among ranks, such as Grok 2's: `model-00000-TP-common.safetensors` ... have
whole tensors, `model-00001-TP-000.safetensors` ... one rank's share of others, all ranks' under the same names.

A matrix of an expert is divided along its inner width, by the table `AXES`. Reference: conversion/grok.py of llama.cpp
b11549 (`GrokModel.modify_tensors`), and sglang's models/grok.py (`_prepare_presharded_weights`), whose ranks each read
one file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.source import Source
from weighbridge.models.locate import Place
from weighbridge.models.stored_tensors import JoinedModel, JoinedTensors, StoredTensors, joined_index
from weighbridge.models.tensor_parallel.rank_set import share_of

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

#: End of a name -> the axis along which ranks divide the tensor: gate and up by outputs, down by inputs.
AXES: Final[Mapping[str, int]] = MappingProxyType(
    {".w1.weight": 0, ".w3.weight": 0, ".w2.weight": 1, ".linear.weight": 0, ".linear_v.weight": 0,
     ".linear_1.weight": 1}
)  # fmt: skip


def open_presharded(place: Place, sources: Sequence[Source]) -> JoinedModel:
    """The whole model. Raises FormatError if a rank is missing or the shares don't fit, UnsupportedError for a divided
    tensor without a rule."""
    indexes = [safetensors.parse(source) for source in sources]
    owners: dict[str, list[int]] = {}  # of each tensor the files that have it
    ranks: dict[str, list[int]] = {}  # of each rank its files
    for number, (source, index) in enumerate(zip(sources, indexes, strict=True)):
        ranks.setdefault(share_of(Path(source.name).name) or "", []).append(number)
        for name in index.by_name:
            owners.setdefault(name, []).append(number)
    whole = {*ranks.pop("common", ())}
    if [*ranks] != [f"{rank:03}" for rank in range(len(ranks))] or not ranks:
        raise FormatError("the files aren't those of all ranks", path=str(place.path), expected="000, 001 ...",
                          found=", ".join([*ranks][:8]) or "none", hint="copy the missing files")  # fmt: skip
    entries = []
    for name, files in owners.items():
        entry = indexes[files[0]].by_name[name]
        if len(files) > 1 or files[0] not in whole:
            _check(name, files, indexes, [*ranks.values()])
            axis = _axis(name, entry, sources[files[0]])
            size = entry.shape[axis] * len(files)
            spec = entry.spec.with_shape(*entry.shape[:axis], size, *entry.shape[axis + 1 :])
            entry = msgspec.structs.replace(entry, shape=spec.shape, nbytes=spec.nbytes)
        entries.append((files[0], entry))
    stored = [StoredTensors(index) for index in indexes]
    nodes = JoinedTensors({name: (name, files) for name, files in owners.items()}, lambda part: _join(*part, stored))
    divided = sum(len(files) > 1 for files in owners.values())
    notes = (f"{plural(divided, 'tensor')} joined from the shares of {plural(len(ranks), 'rank')}",)
    return JoinedModel(joined_index(indexes, entries), nodes, notes=notes)


def _axis(name: str, entry: Entry, source: Source) -> int:
    axis = next((axis for end, axis in AXES.items() if name.endswith(end)), None)
    if axis is None or len(entry.shape) != 2:
        raise UnsupportedError(
            f"{source.name}: no rule for how ranks divide {name} of shape {list(entry.shape)}",
            hint="join the ranks' files with the program that wrote them",
        )
    return axis


def _check(name: str, files: Sequence[int], indexes: Sequence[Index], ranks: Sequence[Sequence[int]]) -> None:
    """FormatError unless each rank has one share of a tensor, and all are alike."""
    path = indexes[files[0]].files[0].name
    if len(files) != len(ranks) or any(file not in of_rank for file, of_rank in zip(files, ranks, strict=True)):
        raise FormatError("not every rank has one share", path=path, field=name, expected=plural(len(ranks), "share"),
                          found=plural(len(files), "file"), hint="copy the missing files")  # fmt: skip
    if len({(indexes[file].by_name[name].shape, indexes[file].by_name[name].dtype.name) for file in files}) > 1:
        raise FormatError("the ranks' shapes or types differ", path=path, field=name)


def _join(name: str, files: Sequence[int], stored: Sequence[StoredTensors]) -> Node:
    from weighbridge.models.tensor_parallel.partition import Partition, Segment, gather

    parts = [stored[file][name] for file in files]
    if len(parts) == 1:
        return parts[0]
    axis = next(axis for end, axis in AXES.items() if name.endswith(end))
    return gather(parts, Partition(axis, (Segment(parts[0].spec.shape[axis] * len(parts)),)))
