"""One number for every role of every layer: where a model is large, finely or coarsely stored, or has outliers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers.base import Entry
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.stored_tensors import node_builder
from weighbridge.reports.statistics.tensor import Cancelled, Pool, Progress, count_values, step_of
from weighbridge.reports.view.roles import Survey, survey

if TYPE_CHECKING:
    from weighbridge.packings.unpacking import PackedGroup
    from weighbridge.tensors.counting import ValueCounts
    from weighbridge.tensors.nodes import LogicalTensor

SCHEMA: Final = "weighbridge/heat-map/1"

_AT_ONCE: Final = 1024  # tensors that are unpacked at a time

Cell = float | None
Cells = dict[tuple[int, str], list[Entry]]  # by layer and role


@dataclass(frozen=True, slots=True)
class HeatMap:
    """`cells[i][j]`: the statistic of role `roles[j]` in layer `layers[i]`; None where the layer hasn't it, and where
    it has no finite value. Layer -1: outside of layers. Several tensors of a cell (experts) count as one. `skipped`:
    tensors that the statistic leaves out, since their type can't be decoded."""

    path: str
    statistic: str
    meaning: str
    layers: tuple[int, ...]
    roles: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    skipped: tuple[str, ...] = ()
    schema: str = SCHEMA


# ---- of headers ----


def _bytes(entries: Sequence[Entry], surveyed: Survey) -> Cell:
    return float(sum(e.nbytes for e in entries))


def _parameters(entries: Sequence[Entry], surveyed: Survey) -> Cell:
    return float(sum(surveyed.counted.of(e)[0] for e in entries))


def _bits(entries: Sequence[Entry], surveyed: Survey) -> Cell:
    parameters = _parameters(entries, surveyed)
    return sum(e.nbytes for e in entries) * 8 / parameters if parameters else None


# ---- of values ----


def _moment(name: str, pool: Sequence[ValueCounts]) -> Cell:
    from weighbridge.tensors.counting import moments

    found: Cell = getattr(moments(pool), name)
    return found


def _absmax(pool: Sequence[ValueCounts]) -> Cell:
    found = [max(abs(low), abs(high)) for low, high in (c.extremes for c in pool if c.extremes is not None)]
    return max(found, default=None)


def _zeros(pool: Sequence[ValueCounts]) -> Cell:
    total = sum(counts.total for counts in pool)
    return sum(counts.zeros for counts in pool) / total if total else None


def _broken(pool: Sequence[ValueCounts]) -> Cell:
    return float(sum(counts.nan + counts.inf for counts in pool))


_OF_HEADERS: Final[Mapping[str, Callable[[Sequence[Entry], Survey], Cell]]] = MappingProxyType(
    {"bytes": _bytes, "parameters": _parameters, "bits": _bits}
)
_OF_VALUES: Final[Mapping[str, Callable[[Sequence[ValueCounts]], Cell]]] = MappingProxyType(
    {
        "mean": partial(_moment, "mean"),
        "std": partial(_moment, "std"),
        "rms": partial(_moment, "rms"),
        "kurtosis": partial(_moment, "kurtosis"),
        "absmax": _absmax,
        "zeros": _zeros,
        "nonfinite": _broken,
    }
)
#: Statistic -> what it is. The first three are of headers alone; the others read every value.
STATISTICS: Final = MappingProxyType(
    {
        "bytes": "stored bytes",
        "parameters": "logical parameters",
        "bits": "stored bits per parameter",
        "mean": "mean of the values",
        "std": "standard deviation of the values",
        "rms": "root of the mean square",
        "kurtosis": "fourth central moment over the squared variance; 3 for a normal distribution",
        "absmax": "largest magnitude",
        "zeros": "share of zeros",
        "nonfinite": "number of NaN and infinite values",
    }
)


def heat_map(
    model: Checkpoint,
    statistic: str = "rms",
    *,
    cancelled: Cancelled = lambda: False,
    progress: Progress | None = None,
) -> HeatMap:
    """A statistic of every role in every layer. UsageError for one that isn't in `STATISTICS`; CancelledError."""
    return heat_maps(model, [statistic], cancelled=cancelled, progress=progress)[statistic]


def heat_maps(
    model: Checkpoint,
    statistics: Iterable[str] = tuple(_OF_VALUES),
    *,
    cancelled: Cancelled = lambda: False,
    progress: Progress | None = None,
) -> dict[str, HeatMap]:
    """Several statistics at once, by name: the values are read once. Those of values without `statistics`."""
    wanted = list(statistics)
    if unknown := [name for name in wanted if name not in STATISTICS]:
        raise UsageError(f"no statistic is called {unknown[0]!r}", hint=", ".join(STATISTICS))
    surveyed = survey(model)
    cells: Cells = {}
    for entry, row in zip(model.index.entries, surveyed.roles.rows, strict=True):
        cells.setdefault((row.layer, row.role), []).append(entry)
    skipped: list[str] = []
    found: dict[str, dict[tuple[int, str], Cell]] = {name: {} for name in wanted}
    for name in (name for name in wanted if name in _OF_HEADERS):
        found[name] = {at: _OF_HEADERS[name](entries, surveyed) for at, entries in cells.items()}
    del surveyed  # large with 100,000 tensors
    if of_values := [name for name in wanted if name in _OF_VALUES]:
        for at, pool in _pools(model, cells, skipped, cancelled, progress):
            for name in of_values:
                found[name][at] = _OF_VALUES[name](pool)
    return {
        name: replace(_map(model, name, values), skipped=tuple(skipped) if name in _OF_VALUES else ())
        for name, values in found.items()
    }


def _map(model: Checkpoint, statistic: str, values: Mapping[tuple[int, str], Cell]) -> HeatMap:
    layers = sorted({layer for layer, _ in values})
    roles = tuple(dict.fromkeys(role for _, role in values))
    rows = tuple(tuple(values.get((layer, role)) for role in roles) for layer in layers)
    return HeatMap(str(model.place.path), statistic, STATISTICS[statistic], tuple(layers), roles, rows)


def _pools(
    model: Checkpoint, cells: Cells, skipped: list[str], cancelled: Cancelled, progress: Progress | None
) -> Iterator[tuple[tuple[int, str], list[ValueCounts]]]:
    """The counted values of each cell, one cell after the other, so that few are in memory. Packed weights are decoded;
    complex numbers and what can't be decoded are `skipped`."""
    total, done = sum(e.nbytes for entries in cells.values() for e in entries), 0
    for some in _batches(cells):
        packed = model.packed_near([e.name for _, entries in some for e in entries])
        for at, entries in some:
            pool: Pool = {}
            for name, node in _tensors(model, entries, packed).items():
                try:
                    count_values(node, step_of(cancelled, None, name), pool)
                except UnsupportedError:
                    skipped.append(name)
            done += sum(e.nbytes for e in entries)
            if progress is not None:
                progress(done, total, entries[-1].name)
            yield at, list(pool.values())


def _batches(cells: Cells) -> Iterator[list[tuple[tuple[int, str], list[Entry]]]]:
    """The cells, as many at a time as have some thousand tensors."""
    some, tensors = [], 0
    for at, entries in cells.items():
        some.append((at, entries))
        tensors += len(entries)
        if tensors >= _AT_ONCE:
            yield some
            some, tensors = [], 0
    yield some


def _tensors(
    model: Checkpoint, entries: Sequence[Entry], packed: Mapping[str, PackedGroup]
) -> Mapping[str, LogicalTensor]:
    """The logical tensors of some stored ones."""
    build = node_builder(model.index)
    found: dict[str, LogicalTensor] = {}
    for entry in entries:
        group = packed.get(entry.name)
        if group is not None:
            found[group.name] = group.node
        else:
            found[entry.name] = build(entry) if model.nodes is None else model.nodes[entry.name]
    return found
