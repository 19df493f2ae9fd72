"""Names of tensors layer by layer: what is computed for the names below one layer serves all layers like it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class LayerRun(NamedTuple):
    """Names `start` to `stop` (exclusive), which begin with `prefix`: all up to and with their first number, as
    `model.layers.7.`; "" for names that have none, or nothing behind it."""

    prefix: str
    start: int
    stop: int


def runs(names: Sequence[str]) -> Iterator[LayerRun]:
    """Consecutive names with one prefix."""
    start, count = 0, len(names)
    while start < count:
        prefix, stop = prefix_of(names[start]), start + 1
        if prefix:
            while stop < count and names[stop].startswith(prefix):
                stop += 1
        yield LayerRun(prefix, start, stop)
        start = stop


def prefix_of(name: str) -> str:
    """The parts of a name up to and with the first number that has something behind it, with the dot; or ""."""
    end = -1
    while (dot := name.find(".", end + 1)) >= 0:
        if name[end + 1 : dot].isdecimal():
            return name[: dot + 1]
        end = dot
    return ""
