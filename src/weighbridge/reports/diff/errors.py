"""The errors of a diff summed by layer, and by layer and role."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from weighbridge.reports.diff.model import DiffReport, LayerError, TensorChange, decibels
from weighbridge.reports.statistics.heat import Cell, HeatMap


def layer_errors(tensors: Iterable[TensorChange]) -> tuple[LayerError, ...]:
    """Returns the error of each layer, largest first."""
    layers: dict[int, list[TensorChange]] = {}
    for change in _measured(tensors):
        if change.layer >= 0:
            layers.setdefault(change.layer, []).append(change)
    rows = (
        LayerError(layer, len(changes), nmse := _nmse(changes), decibels(nmse)) for layer, changes in layers.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.nmse, row.layer)))


def _measured(tensors: Iterable[TensorChange]) -> Iterable[TensorChange]:
    return (change for change in tensors if change.nmse is not None and change.kind in ("values", "type"))


def _nmse(changes: Sequence[TensorChange]) -> float:
    """Returns the NMSE of several tensors treated as one."""
    power = sum(change.squares for change in changes)
    error = sum((change.nmse or 0.0) * change.squares for change in changes)
    return error / power if power else max((change.nmse or 0.0 for change in changes), default=0.0)


_MEASURES: Final[Mapping[str, tuple[str, Callable[[Sequence[TensorChange]], Cell]]]] = MappingProxyType(
    {
        "snr": ("signal to noise in decibels", lambda changes: decibels(_nmse(changes))),
        "error": ("root of the mean squared error, over that of the values", lambda changes: math.sqrt(_nmse(changes))),
        "max_abs": ("largest difference", lambda changes: max(change.max_abs or 0.0 for change in changes)),
        "cosine": ("least cosine of the angle between both", lambda changes: min(c.cosine or 0.0 for c in changes)),
    }
)
#: The meaning of each error statistic.
ERRORS: Final = MappingProxyType({name: meaning for name, (meaning, _) in _MEASURES.items()})


def error_map(report: DiffReport, statistic: str = "snr") -> HeatMap:
    """Returns an error statistic by layer and role, with the experts of a layer treated as one tensor. Tensors without
    an error, and those that can't be compared, have no cell."""
    meaning, measure = _MEASURES[statistic]
    changes: dict[tuple[int, str], list[TensorChange]] = {}
    for change in _measured(report.tensors):
        changes.setdefault((change.layer, change.role), []).append(change)
    cells: dict[tuple[int, str], Cell] = {}
    for at, group in changes.items():
        value = measure(group)
        cells[at] = value if value is None or math.isfinite(value) else None
    layers = tuple(sorted({layer for layer, _ in cells}))
    roles = tuple(dict.fromkeys(role for _, role in sorted(cells)))
    rows = tuple(tuple(cells.get((layer, role)) for role in roles) for layer in layers)
    return HeatMap(report.b, statistic, meaning, layers, roles, rows)
