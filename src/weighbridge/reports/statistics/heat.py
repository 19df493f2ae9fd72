"""One statistic for every role of every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.containers.base import Entry
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import node_builder
from weighbridge.reports.statistics.tensor import Cancelled, Pool, Progress, count_values, step_of
from weighbridge.reports.survey import Survey, survey

if TYPE_CHECKING:
    from weighbridge.tensors.counting import ValueCounts
    from weighbridge.tensors.nodes import LogicalTensor

SCHEMA: Final = "weighbridge/heat-map/1"

_AT_ONCE: Final = 1024  # tensors unpacked at a time

Cell = float | None
Cells = dict[tuple[int, str], list[Entry]]  # by layer and role


@dataclass(frozen=True, slots=True)
class HeatMap:
    """`cells[i][j]`: the statistic of role `roles[j]` in layer `layers[i]`, over all its tensors (experts); None if the
    layer lacks the role, or if it has no finite value. Layer -1: outside of layers. `skipped`: tensors left out because
    their type can't be decoded."""

    path: str
    statistic: str
    meaning: str
    layers: tuple[int, ...]
    roles: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    skipped: tuple[str, ...] = ()
    schema: str = SCHEMA


def _stored_bytes(entries: Sequence[Entry], surveyed: Survey) -> float:
    return float(sum(e.nbytes for e in entries))


def _parameters(entries: Sequence[Entry], surveyed: Survey) -> float:
    return float(sum(surveyed.counted.of(e)[0] for e in entries))


def _bits(entries: Sequence[Entry], surveyed: Survey) -> Cell:
    parameters = _parameters(entries, surveyed)
    return _stored_bytes(entries, surveyed) * 8 / parameters if parameters else None


def _moment(name: str, pool: Sequence[ValueCounts]) -> Cell:
    from weighbridge.tensors.counting import moments

    moment: Cell = getattr(moments(pool), name)
    return moment


def _absmax(pool: Sequence[ValueCounts]) -> Cell:
    extremes = (counts.extremes for counts in pool if counts.extremes is not None)
    return max((max(abs(low), abs(high)) for low, high in extremes), default=None)


def _zeros(pool: Sequence[ValueCounts]) -> Cell:
    total = sum(counts.total for counts in pool)
    return sum(counts.zeros for counts in pool) / total if total else None


def _nonfinite(pool: Sequence[ValueCounts]) -> Cell:
    return float(sum(counts.nan + counts.inf for counts in pool))


_HEADER_STATISTICS: Final[Mapping[str, Callable[[Sequence[Entry], Survey], Cell]]] = MappingProxyType(
    {"bytes": _stored_bytes, "parameters": _parameters, "bits": _bits}
)
_VALUE_STATISTICS: Final[Mapping[str, Callable[[Sequence[ValueCounts]], Cell]]] = MappingProxyType(
    {
        **{name: partial(_moment, name) for name in ("mean", "std", "rms", "kurtosis")},
        "absmax": _absmax,
        "zeros": _zeros,
        "nonfinite": _nonfinite,
    }
)
#: The meaning of each statistic. The first three need headers only; the rest read every value.
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
    model: OpenModel,
    statistic: str = "rms",
    *,
    cancelled: Cancelled = lambda: False,
    progress: Progress | None = None,
) -> HeatMap:
    """Computes a statistic for every role of every layer. Raises UsageError if it isn't in `STATISTICS`, and
    CancelledError."""
    return heat_maps(model, [statistic], cancelled=cancelled, progress=progress)[statistic]


def heat_maps(
    model: OpenModel,
    statistics: Iterable[str] = tuple(_VALUE_STATISTICS),
    *,
    cancelled: Cancelled = lambda: False,
    progress: Progress | None = None,
) -> dict[str, HeatMap]:
    """Computes several heat maps, by the name of the statistic, and reads the values once."""
    names = list(statistics)
    if unknown := [name for name in names if name not in STATISTICS]:
        raise UsageError(f"unknown statistic {unknown[0]!r}", hint=", ".join(STATISTICS))
    surveyed = survey(model)
    tensors: Cells = {}
    for entry, row in zip(model.index.entries, surveyed.roles.rows, strict=True):
        tensors.setdefault((row.layer, row.role), []).append(entry)
    skipped: list[str] = []
    cells: dict[str, dict[tuple[int, str], Cell]] = {name: {} for name in names}
    for name in cells.keys() & _HEADER_STATISTICS.keys():
        cells[name] = {at: _HEADER_STATISTICS[name](entries, surveyed) for at, entries in tensors.items()}
    del surveyed  # large with 100,000 tensors
    if value_names := cells.keys() & _VALUE_STATISTICS.keys():
        for at, pool in _count_cells(model, tensors, skipped, cancelled, progress):
            for name in value_names:
                cells[name][at] = _VALUE_STATISTICS[name](pool)
    maps = {}
    for name, values in cells.items():
        layers = tuple(sorted({layer for layer, _ in values}))
        roles = tuple(dict.fromkeys(role for _, role in values))
        rows = tuple(tuple(values.get((layer, role)) for role in roles) for layer in layers)
        undecodable = tuple(skipped) if name in _VALUE_STATISTICS else ()
        maps[name] = HeatMap(str(model.place.path), name, STATISTICS[name], layers, roles, rows, undecodable)
    return maps


def _count_cells(
    model: OpenModel, cells: Cells, skipped: list[str], cancelled: Cancelled, progress: Progress | None
) -> Iterator[tuple[tuple[int, str], list[ValueCounts]]]:
    """Yields the value counts of each cell, one after another to save memory. Packed weights are decoded; complex
    numbers and undecodable tensors are appended to `skipped`."""
    total, done = sum(e.nbytes for entries in cells.values() for e in entries), 0
    build = node_builder(model.index)
    for batch in _batches(cells):
        packed = model.packed_near([e.name for _, entries in batch for e in entries])
        for at, entries in batch:
            pool: Pool = {}
            tensors: dict[str, LogicalTensor] = {}
            for e in entries:
                if (group := packed.get(e.name)) is not None:
                    tensors[group.name] = group.node
                else:
                    tensors[e.name] = build(e) if model.nodes is None else model.nodes[e.name]
            for name, node in tensors.items():
                try:
                    count_values(node, step_of(cancelled, None, name), pool)
                except UnsupportedError:
                    skipped.append(name)
            done += sum(e.nbytes for e in entries)
            if progress is not None:
                progress(done, total, entries[-1].name)
            yield at, list(pool.values())


def _batches(cells: Cells) -> Iterator[list[tuple[tuple[int, str], list[Entry]]]]:
    """Yields the cells in batches of about a thousand tensors."""
    batch, tensors = [], 0
    for at, entries in cells.items():
        batch.append((at, entries))
        tensors += len(entries)
        if tensors >= _AT_ONCE:
            yield batch
            batch, tensors = [], 0
    yield batch
