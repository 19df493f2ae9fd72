"""Counts the parameters of a model, including packed ones. The schemas that unpack packed weights recognise them
(`packings/schema/`); names, shapes and a few settings are enough.

Companions (scales, zero points, group indexes) are not parameters. Tensors of ggml block types need no schema, since
their shape is logical.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from weighbridge.base.dtypes import Kind
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.containers.base import Entry, Index
from weighbridge.packings.schema.base import Config, Match
from weighbridge.packings.schema.groups import find
from weighbridge.packings.schema.registry import SHIPPED, schemas


@dataclass(frozen=True)
class Count:
    """`packed`: the packed weight that a stored tensor belongs to, by the tensor's name. `schemes`: packed weights per
    scheme. `total`: the parameters of all tensors."""

    packed: Mapping[str, Match[Any]]
    schemes: Mapping[str, int]
    total: int

    def of(self, entry: Entry) -> tuple[int, str | None]:
        """Returns the logical parameters of a stored tensor, and the scheme of its packed weight. The codes count for
        the whole packed weight, its companions 0."""
        match = self.packed.get(entry.name)
        if match is None:
            return prod(entry.shape), None
        return match.recognized.spec.elements if entry.name == match.weight else 0, match.recognized.schema.label

    def logical_shape(self, entry: Entry) -> Shape:
        """Returns the shape of a stored tensor, or of the packed weight that it belongs to."""
        match = self.packed.get(entry.name)
        return entry.shape if match is None else match.recognized.spec.shape


def count(
    entries: Sequence[Entry], config: Config = MappingProxyType({}),
    read: Callable[[str, int], bytes] | None = None,
) -> Count:  # fmt: skip
    """Counts the logical parameters of every tensor. `config`: config.json, which decides if shapes are ambiguous.
    `read`: returns the bytes of a small stored tensor by name, up to a limit. Without it, and for incomplete groups,
    the count is estimated from the size of the codes."""
    by_name = {e.name: e for e in entries}
    reader = read or _no_bytes
    packed = find(SHIPPED, by_name, config, reader, guess=True)
    matrices = (e for e in entries if e.name not in packed and len(e.shape) > 1 and e.dtype.kind is not Kind.BLOCK)
    # A plug-in may support a matrix of integers, or of floats below 16 bits.
    if any(e.dtype.kind is not Kind.FLOAT or e.dtype.bits < 16 for e in matrices):
        packed = find(schemas(), by_name, config, reader, guess=True)
    weights = [match.recognized for match in {id(match): match for match in packed.values()}.values()]
    plain = sum(prod(e.shape) for e in entries if e.name not in packed)
    schemes = Counter(weight.schema.label for weight in weights)
    return Count(packed, schemes, plain + sum(weight.spec.elements for weight in weights))


def _no_bytes(name: str, limit: int) -> bytes:
    raise KeyError(name)


def settings_of(index: Index) -> Callable[[str, int], bytes]:
    """Returns the `read` of `count` for an index. It raises KeyError for tensors that can't be read in place."""

    def read(name: str, limit: int) -> bytes:
        entry = index.by_name[name]
        source = index.files[entry.file]
        if source.sequential or entry.strides is not None or index.byte_order == ">" or entry.nbytes > limit:
            raise KeyError(name)
        return source.read(entry.offset, entry.nbytes)

    return read
