"""Lists the quantization schemes in a model with their matrices, by role and layer. Uses only names, types and shapes,
without numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import MICROSCALED, Kind
from weighbridge.base.records import dataclass
from weighbridge.base.words import ranges
from weighbridge.containers.base import Entry
from weighbridge.models.parameter_count import Count
from weighbridge.reports.inspect.runs import runs


@dataclass(frozen=True, slots=True)
class Layers:
    """Weights of one role (a name with * for numbers) and their layers, as "0-3, 28-31"; "" without layers."""

    role: str
    layers: str
    weights: int


@dataclass(frozen=True, slots=True)
class SchemeSummary:
    """Matrices of one scheme, or of one type. `bits`: of a code. `group`: weights with a common scale.
    `bits_per_weight`: including scales and other companions."""

    scheme: str
    bits: float | None
    group: int | None
    weights: int
    parameters: int
    nbytes: int
    bits_per_weight: float
    where: tuple[Layers, ...]


# The roles of tensors with a scale for each group of weights.
_SCALES: Final = ("scales", "scale", "absmax")
# MLX's floating-point modes, by bits and group.
_MODES: Final = MappingProxyType({(float(row.bits), row.group): row.name for row in MICROSCALED.values() if row.mlx})


class _Kind(NamedTuple):
    scheme: str
    bits: float | None
    group: int | None


def schemes(entries: Sequence[Entry], counted: Count) -> tuple[SchemeSummary, ...]:
    """Returns one row per scheme, most parameters first; empty if no tensor is quantized."""
    if not counted.schemes and all(e.dtype.kind is not Kind.BLOCK for e in entries):
        return ()
    rows: dict[_Kind, list[_Weight]] = defaultdict(list)
    for kind, weight in _weights(entries, counted):
        rows[kind].append(weight)
    summaries = []
    for kind, weights in rows.items():
        nbytes, parameters = sum([w.nbytes for w in weights]), sum([w.parameters for w in weights])
        layers = tuple(_layers([w.name for w in weights]))
        bits = round(nbytes * 8 / parameters, 4)
        summaries.append(SchemeSummary(*kind, len(weights), parameters, nbytes, bits, layers))
    return tuple(sorted(summaries, key=lambda row: -row.parameters))


class _Weight(NamedTuple):
    """A matrix, or a packed weight with all its stored tensors."""

    name: str
    parameters: int
    nbytes: int


def _weights(entries: Sequence[Entry], counted: Count) -> Iterator[tuple[_Kind, _Weight]]:
    by_name = {e.name: e for e in entries}
    packed: dict[int, tuple[_Kind, int, int]] = {}  # by the identity of the solution, which equal groups share
    match_of = counted.packed.get
    for entry in entries:
        name, match = entry.name, match_of(entry.name)
        if match is None:
            parameters = prod(entry.shape)
            if parameters and len(entry.shape) > 1:
                group = entry.dtype.block if entry.dtype.kind is Kind.BLOCK else None
                yield _Kind(entry.dtype.name, None, group), _Weight(name, parameters, entry.nbytes)
            continue
        module, solution = match[:2]
        codes = solution.codes
        if len(name) == len(module) + len(codes) and name.endswith(codes) and solution.spec.elements:
            if (facts := packed.get(id(solution))) is None:
                nbytes = sum(by_name[stored].nbytes for stored in match.tensors)
                parameters, stored = match.spec.elements, match.stored
                scales = next((by_name[stored[role]] for role in _SCALES if role in stored), None)
                bits = match.recognized.bits or round(by_name[match.weight].nbytes * 8 / parameters, 2)
                count = prod(scales.shape) if scales is not None else 0
                group = parameters // count if count and parameters % count == 0 else None
                scheme = match.schema.label
                if scheme == "mlx" and "biases" not in stored:
                    scheme = f"mlx {_MODES.get((bits, group or 0), 'floats')}"
                facts = packed[id(solution)] = _Kind(scheme, bits, group), solution.spec.elements, nbytes
            yield facts[0], _Weight(name, facts[1], facts[2])


def _layers(names: Sequence[str]) -> Iterator[Layers]:
    """Yields the roles of weights with their layers, in the order of first appearance."""
    roles: dict[str, list[int | None]] = {}
    cached: dict[tuple[str, str], list[int | None]] = {}  # by the role of the layer, and the name below it
    for prefix, start, stop in runs(names):
        above, cut = _role(prefix), len(prefix)
        last = (prefix[:-1] or names[start]).rpartition(".")[2]
        number = int(last) if last.isdecimal() else None
        for name in names[start:stop]:
            below = name[cut:]
            layers = cached.get((above, below))
            if layers is None:
                layers = cached[above, below] = roles.setdefault(above + _role(below), [])
            layers.append(number)
    for role, layers in roles.items():
        yield Layers(role, ranges({n for n in layers if n is not None}, ", "), len(layers))


def _role(name: str) -> str:
    """Returns a name with * for numbers."""
    return ".".join(["*" if part.isdecimal() else part for part in name.split(".")])
