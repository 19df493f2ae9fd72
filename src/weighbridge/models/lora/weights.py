"""Adapters with weights, written as ADAPTER or ADAPTER:WEIGHT."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path


class WeightedAdapter(NamedTuple):
    """An adapter, and the factor of its change."""

    path: Path
    weight: float = 1.0


def weighted_adapter(address: str | os.PathLike[str]) -> WeightedAdapter:
    """Parses ADAPTER or ADAPTER:WEIGHT."""
    path, weight = split_weight(os.fspath(address))
    return WeightedAdapter(resolve_path(path), float(weight)) if weight else WeightedAdapter(resolve_path(address))


def split_weight(text: str) -> tuple[str, str]:
    """Splits PATH:WEIGHT; the weight is "" if there is none. A path that exists has none, whatever its name."""
    path, colon, number = text.rpartition(":")
    if colon and path and not os.path.lexists(text):
        with suppress(ValueError):
            float(number)
            return path, number
    return text, ""
