"""The number of parameters of a checkpoint, including packed ones. The schemas of packed weights
decide, as they do when a model is unpacked (`packings/schema/`); names, shapes and a few settings are enough.

Companions (scales, zero points, group indexes) are not parameters. A ggml block type counts itself: its shape is
logical already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from weighbridge.base.dtypes import Kind
from weighbridge.containers.base import Entry, Index
from weighbridge.packings.schema.base import Config, Match, find
from weighbridge.packings.schema.registry import SHIPPED, schemas


class Count(NamedTuple):
    """`logical`: name of a weight -> its parameters; companions map to 0. `schemes`: scheme -> packed weights.
    `parts`: name -> scheme, for every tensor of a packed weight. `matches`: by the name of the tensor of codes."""

    logical: Mapping[str, int]
    schemes: Mapping[str, int]
    parts: Mapping[str, str]
    matches: Mapping[str, Match[Any]] = MappingProxyType({})

    @property
    def total(self) -> int:
        return sum(self.logical.values())


def count(
    entries: Sequence[Entry], config: Config = MappingProxyType({}),
    read: Callable[[str, int], bytes] | None = None,
) -> Count:  # fmt: skip
    """Logical parameters of every tensor. `config`: config.json, which decides what shapes leave open. `read`: the
    bytes of a small stored tensor by name, at most so many; without it, and where a group is broken, the count is what
    the codes' bytes suggest."""
    logical = {e.name: prod(e.shape) for e in entries}
    schemes: dict[str, int] = {}
    parts: dict[str, str] = {}
    matches: dict[str, Match[Any]] = {}
    for match in _matches(entries, config, read or _nothing):
        logical |= dict.fromkeys(match.tensors, 0) | {match.weight: prod(match.shape)}
        parts |= dict.fromkeys(match.tensors, match.schema.label)
        schemes[match.schema.label] = schemes.get(match.schema.label, 0) + 1
        matches[match.weight] = match
    return Count(logical, schemes, parts, matches)


def _matches(entries: Sequence[Entry], config: Config, read: Callable[[str, int], bytes]) -> Iterable[Match[Any]]:
    by_name = {e.name: e for e in entries}
    found = find(SHIPPED, by_name, config, read, guess=True)
    if any(_unusual(e) and e.name not in found for e in entries):  # a plug-in may support it
        found = find(schemas(), by_name, config, read, guess=True)
    return {id(match): match for match in found.values()}.values()


def _unusual(entry: Entry) -> bool:
    """Whether a tensor is a matrix of integers or of floats below 16 bits, as packed weights are."""
    return len(entry.shape) > 1 and entry.dtype.kind is not Kind.BLOCK and (
        entry.dtype.kind is not Kind.FLOAT or entry.dtype.bits < 16)  # fmt: skip


def _nothing(name: str, limit: int) -> bytes:
    raise KeyError(name)


def settings_of(index: Index) -> Callable[[str, int], bytes]:
    """Reads the small tensors of an index whose values are settings of packed weights, for `count`."""

    def read(name: str, limit: int) -> bytes:
        entry = index.by_name[name]
        source = index.files[entry.file]
        if source.sequential or entry.strides is not None or index.byte_order == ">" or entry.nbytes > limit:
            raise KeyError(name)
        return source.read(entry.offset, entry.nbytes)

    return read
