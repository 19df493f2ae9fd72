"""The quantization schemes in a model: the matrices of each scheme, with their roles and layers. From
names, types and shapes alone, without numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import Kind
from weighbridge.containers.base import Entry
from weighbridge.reports.inspect.parameter_count import Count


@dataclass(frozen=True, slots=True)
class Layers:
    """Weights of one role (a name with * for numbers) and their layers, as "0-3, 28-31"; "" without layers."""

    role: str
    layers: str
    weights: int


@dataclass(frozen=True, slots=True)
class SchemeSummary:
    """Matrices of one scheme, or of one type. `bits` of a code and `group`, the weights that share a scale, where the
    scheme has them; `bits_per_weight`: with scales and all else."""

    scheme: str
    bits: float | None
    group: int | None
    weights: int
    parameters: int
    nbytes: int
    bits_per_weight: float
    where: tuple[Layers, ...]


# The roles of a tensor that has a scale for each group of weights.
_SCALES: Final = ("scales", "scale", "absmax")
# MLX's modes of floats, by bits and group.
_MODES: Final = MappingProxyType({(4.0, 32): "mxfp4", (4.0, 16): "nvfp4", (8.0, 32): "mxfp8"})


class _Kind(NamedTuple):
    scheme: str
    bits: float | None
    group: int | None


def schemes(entries: Sequence[Entry], counted: Count) -> tuple[SchemeSummary, ...]:
    """One row per scheme, most weights first; empty if no tensor is quantized."""
    if not counted.schemes and all(e.dtype.kind is not Kind.BLOCK for e in entries):
        return ()
    by_name = {e.name: e for e in entries}
    rows: dict[_Kind, list[str]] = defaultdict(list)
    for entry in entries:
        if counted.logical[entry.name] and (len(entry.shape) > 1 or entry.name in counted.matches):
            rows[_kind(entry, counted, by_name)].append(entry.name)
    found = [_row(kind, names, counted, by_name) for kind, names in rows.items()]
    return tuple(sorted(found, key=lambda row: -row.parameters))


def _kind(entry: Entry, counted: Count, by_name: Mapping[str, Entry]) -> _Kind:
    match = counted.matches.get(entry.name)
    if match is None:
        return _Kind(entry.dtype.name, None, entry.dtype.block if entry.dtype.kind is Kind.BLOCK else None)
    parameters = counted.logical[entry.name]
    scales = next((by_name[match.stored[role]] for role in _SCALES if role in match.stored), None)
    bits = round(entry.nbytes * 8 / parameters, 2)
    count = prod(scales.shape) if scales is not None else 0
    group = parameters // count if count and parameters % count == 0 else None
    scheme = counted.parts[entry.name]
    if scheme == "mlx" and "biases" not in match.stored:
        scheme = f"mlx {_MODES.get((bits, group or 0), 'floats')}"
    return _Kind(scheme, bits, group)


def _row(kind: _Kind, names: Sequence[str], counted: Count, by_name: Mapping[str, Entry]) -> SchemeSummary:
    nbytes = sum(by_name[member].nbytes for name in names for member in _tensors(name, counted))
    parameters = sum(counted.logical[name] for name in names)
    return SchemeSummary(*kind, len(names), parameters, nbytes, round(nbytes * 8 / parameters, 4), tuple(_where(names)))


def _tensors(name: str, counted: Count) -> Iterable[str]:
    """The stored tensors of a weight."""
    return counted.matches[name].tensors if name in counted.matches else (name,)


def _where(names: Iterable[str]) -> Iterator[Layers]:
    """Roles in the order of their first weight."""
    roles: dict[str, list[int | None]] = {}
    for name in names:
        parts = name.split(".")
        layer = next((int(part) for part in parts if part.isdecimal()), None)
        roles.setdefault(".".join("*" if part.isdecimal() else part for part in parts), []).append(layer)
    for role, layers in roles.items():
        yield Layers(role, _ranges({n for n in layers if n is not None}), len(layers))


def _ranges(numbers: set[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    if not numbers:
        return ""
    ordered = sorted(numbers)
    starts = [ordered[0], *(b for a, b in pairwise(ordered) if b != a + 1)]
    ends = [*(a for a, b in pairwise(ordered) if b != a + 1), ordered[-1]]
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in zip(starts, ends, strict=True))
