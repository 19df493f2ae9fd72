"""What a quantized model lost against its source, by layer and role: sums over the tensors of a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.reports.statistics.heat import Cell, HeatMap

if TYPE_CHECKING:
    from weighbridge.reports.diff.report import DiffReport, TensorChange


@dataclass(frozen=True, slots=True)
class LayerError:
    """The tensors of one layer that have other values, as if they were one: `nmse` is the sum of the squared errors
    over that of the squared values, `snr` the same in decibels."""

    layer: int
    tensors: int
    nmse: float
    snr: float | None


def decibels(nmse: float | None) -> float | None:
    """Signal to noise. None without an error, and without a signal."""
    return None if nmse is None or not 0 < nmse < math.inf else -10 * math.log10(nmse)


def layer_errors(tensors: Iterable[TensorChange]) -> tuple[LayerError, ...]:
    """The layers, the one that lost most first."""
    layers: dict[int, list[TensorChange]] = {}
    for change in _measured(tensors):
        if change.layer >= 0:
            layers.setdefault(change.layer, []).append(change)
    rows = []
    for layer, changes in layers.items():
        nmse = _nmse(changes)
        rows.append(LayerError(layer, len(changes), nmse, decibels(nmse)))
    return tuple(sorted(rows, key=lambda row: (-row.nmse, row.layer)))


def _measured(tensors: Iterable[TensorChange]) -> Iterable[TensorChange]:
    return (change for change in tensors if change.nmse is not None and change.kind in ("values", "type"))


def _nmse(changes: Sequence[TensorChange]) -> float:
    """Of several tensors as one."""
    power = sum(change.squares for change in changes)
    error = sum((change.nmse or 0.0) * change.squares for change in changes)
    return error / power if power else max((change.nmse or 0.0 for change in changes), default=0.0)


_OF_CELLS: Final[Mapping[str, tuple[str, Callable[[Sequence[TensorChange]], Cell]]]] = MappingProxyType(
    {
        "snr": ("signal to noise in decibels", lambda changes: decibels(_nmse(changes))),
        "error": ("root of the mean squared error, over that of the values", lambda changes: math.sqrt(_nmse(changes))),
        "max_abs": ("largest difference", lambda changes: max(change.max_abs or 0.0 for change in changes)),
        "cosine": ("least cosine of the angle between both", lambda changes: min(c.cosine or 0.0 for c in changes)),
    }
)
#: Statistic of errors -> what it is.
ERRORS: Final = MappingProxyType({name: meaning for name, (meaning, _) in _OF_CELLS.items()})


def error_map(report: DiffReport, statistic: str = "snr") -> HeatMap:
    """A measure of the error by layer and role; experts of a layer count as one tensor. Tensors without an error, and
    those that can't be compared, have no cell."""
    meaning, of = _OF_CELLS[statistic]
    cells: dict[tuple[int, str], list[TensorChange]] = {}
    for change in _measured(report.tensors):
        cells.setdefault((change.layer, change.role), []).append(change)
    layers = tuple(sorted({layer for layer, _ in cells}))
    roles = tuple(dict.fromkeys(role for _, role in sorted(cells)))
    rows = tuple(tuple(_cell(cells.get((layer, role)), of) for role in roles) for layer in layers)
    return HeatMap(report.b, statistic, meaning, layers, roles, rows)


def _cell(changes: Sequence[TensorChange] | None, of: Callable[[Sequence[TensorChange]], Cell]) -> Cell:
    value = of(changes) if changes else None
    return value if value is None or math.isfinite(value) else None
