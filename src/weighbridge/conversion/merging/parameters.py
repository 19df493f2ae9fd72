"""The value that a parameter of a recipe has for one tensor: a number, a gradient over the layers, or a choice by the
tensor's name, with mergekit's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weighbridge.base.errors import UsageError


class TensorPlace(NamedTuple):
    """`name`: a tensor's name in a Hugging Face folder. `t`: 0 in the first layer of a slice, 1 in the last, 0
    outside the layers (as in mergekit 0.1.5)."""

    name: str
    t: float


def value_at(parameter: str, value: Any, place: TensorPlace) -> Any:
    """Returns the value for a tensor; None if no filter matches. Raises UsageError for anything but numbers, booleans,
    lists of numbers, and lists of objects with `value` and `filter`."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        if all(isinstance(row, Mapping) for row in value):
            for row in value:
                if "value" not in row or row.keys() - {"filter", "value"}:
                    raise UsageError(f"{parameter}: a choice has a 'value' and may have a 'filter'")
                if row.get("filter") in (None, "*") or str(row["filter"]) in place.name:
                    return value_at(parameter, row["value"], place)
            return None
        if all(isinstance(step, int | float) and not isinstance(step, bool) for step in value):
            return _gradient(value, place.t)
    if isinstance(value, bool | int | float):
        return value
    raise UsageError(f"{parameter}: {value!r} is neither a number nor a list of numbers or choices")


def _gradient(values: Sequence[float], t: float) -> float:
    """Linear between evenly spaced values."""
    at = t * (len(values) - 1)
    low = min(int(at), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    return (1 - (at - low)) * values[low] + (at - low) * values[high]
