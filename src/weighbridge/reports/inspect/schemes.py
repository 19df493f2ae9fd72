"""The quantization schemes in a model: the matrices of each scheme, with their roles and layers. From
names, types and shapes alone, without numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import Kind
from weighbridge.containers.base import Entry
from weighbridge.packings.schema.base import Match
from weighbridge.reports.inspect.parameter_count import Count
from weighbridge.reports.inspect.runs import runs


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
    rows: dict[_Kind, list[_Weight]] = defaultdict(list)
    for kind, weight in _weights(entries, counted):
        rows[kind].append(weight)
    found = [_row(kind, weights) for kind, weights in rows.items()]
    return tuple(sorted(found, key=lambda row: -row.parameters))


class _Weight(NamedTuple):
    """A matrix, or a packed weight with all its stored tensors."""

    name: str
    parameters: int
    nbytes: int


def _weights(entries: Sequence[Entry], counted: Count) -> Iterator[tuple[_Kind, _Weight]]:
    by_name = {e.name: e for e in entries}
    packed: dict[int, tuple[_Kind, int, int]] = {}  # by the identity of what was recognised, which equal groups share
    of = counted.found.get
    for entry in entries:
        name, match = entry.name, of(entry.name)
        if match is None:
            parameters = prod(entry.shape)
            if parameters and len(entry.shape) > 1:
                yield _plain(entry), _Weight(name, parameters, entry.nbytes)
            continue
        module, found = match[:2]
        if len(name) == len(module) + len(found.codes) and name.endswith(found.codes) and found.spec.elements:
            if (known := packed.get(id(found))) is None:
                nbytes = sum(by_name[stored].nbytes for stored in match.tensors)
                known = packed[id(found)] = _packed(match, by_name), found.spec.elements, nbytes
            yield known[0], _Weight(name, known[1], known[2])


def _plain(entry: Entry) -> _Kind:
    return _Kind(entry.dtype.name, None, entry.dtype.block if entry.dtype.kind is Kind.BLOCK else None)


def _packed(match: Match[Any], by_name: Mapping[str, Entry]) -> _Kind:
    parameters, stored = match.spec.elements, match.stored
    scales = next((by_name[stored[role]] for role in _SCALES if role in stored), None)
    bits = round(by_name[match.weight].nbytes * 8 / parameters, 2)
    count = prod(scales.shape) if scales is not None else 0
    group = parameters // count if count and parameters % count == 0 else None
    scheme = match.schema.label
    if scheme == "mlx" and "biases" not in stored:
        scheme = f"mlx {_MODES.get((bits, group or 0), 'floats')}"
    return _Kind(scheme, bits, group)


def _row(kind: _Kind, weights: Sequence[_Weight]) -> SchemeSummary:
    nbytes, parameters = sum([w.nbytes for w in weights]), sum([w.parameters for w in weights])
    where = tuple(_where([w.name for w in weights]))
    return SchemeSummary(*kind, len(weights), parameters, nbytes, round(nbytes * 8 / parameters, 4), where)


def _where(names: Sequence[str]) -> Iterator[Layers]:
    """Roles in the order of their first weight."""
    roles: dict[str, list[int | None]] = {}
    known: dict[tuple[str, str], list[int | None]] = {}  # by the role of the layer, and the name below it
    for prefix, start, stop in runs(names):
        above, cut = _role(prefix), len(prefix)
        last = (prefix[:-1] or names[start]).rpartition(".")[2]
        number = int(last) if last.isdecimal() else None
        for name in names[start:stop]:
            below = name[cut:]
            layers = known.get((above, below))
            if layers is None:
                layers = known[above, below] = roles.setdefault(above + _role(below), [])
            layers.append(number)
    for role, layers in roles.items():
        yield Layers(role, _ranges({n for n in layers if n is not None}), len(layers))


def _role(name: str) -> str:
    """A name, or its beginning, with * for numbers."""
    return ".".join(["*" if part.isdecimal() else part for part in name.split(".")])


def _ranges(numbers: set[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    if not numbers:
        return ""
    ordered = sorted(numbers)
    starts = [ordered[0], *(b for a, b in pairwise(ordered) if b != a + 1)]
    ends = [*(a for a, b in pairwise(ordered) if b != a + 1), ordered[-1]]
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in zip(starts, ends, strict=True))
