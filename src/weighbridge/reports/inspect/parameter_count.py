"""The number of parameters of a checkpoint, including packed ones. The schemas of packed weights
decide, as they do when a model is unpacked (`packings/schema/`); names, shapes and a few settings are enough.

Companions (scales, zero points, group indexes) are not parameters. A ggml block type counts itself: its shape is
logical already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from weighbridge.base.dtypes import Kind
from weighbridge.containers.base import Entry, Index
from weighbridge.packings.schema.base import Config, Match
from weighbridge.packings.schema.groups import find
from weighbridge.packings.schema.registry import SHIPPED, schemas


@dataclass(frozen=True)
class Count:
    """`found`: by name, the packed weight that each of its stored tensors belongs to. `schemes`: scheme -> packed
    weights. `total`: parameters of all tensors."""

    found: Mapping[str, Match[Any]]
    schemes: Mapping[str, int]
    total: int

    def of(self, entry: Entry) -> tuple[int, str | None]:
        """Logical parameters of a stored tensor (0 of a companion, those of a packed weight for its codes), and the
        scheme of the packed weight that it belongs to."""
        match = self.found.get(entry.name)
        if match is None:
            return prod(entry.shape), None
        found = match.found
        return found.spec.elements if entry.name == match.weight else 0, found.schema.label


def count(
    entries: Sequence[Entry], config: Config = MappingProxyType({}),
    read: Callable[[str, int], bytes] | None = None,
) -> Count:  # fmt: skip
    """Logical parameters of every tensor. `config`: config.json, which decides what shapes leave open. `read`: the
    bytes of a small stored tensor by name, at most so many; without it, and where a group is broken, the count is what
    the codes' bytes suggest."""
    found = _found(entries, config, read or _nothing)
    packed = [match.found for match in {id(match): match for match in found.values()}.values()]
    plain = sum(prod(e.shape) for e in entries if e.name not in found)
    schemes = Counter(one.schema.label for one in packed)
    return Count(found, schemes, plain + sum(one.spec.elements for one in packed))


def _found(entries: Sequence[Entry], config: Config, read: Callable[[str, int], bytes]) -> Mapping[str, Match[Any]]:
    by_name = {e.name: e for e in entries}
    found = find(SHIPPED, by_name, config, read, guess=True)
    if any(e.name not in found and _unusual(e) for e in entries):  # a plug-in may support it
        found = find(schemas(), by_name, config, read, guess=True)
    return found


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
