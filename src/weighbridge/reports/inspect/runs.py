"""Groups tensor names by layer, so that results for one layer can be reused for equal ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class LayerRun(NamedTuple):
    """Names `start` to `stop` (exclusive), which begin with `prefix`: everything up to their first number, such as
    `model.layers.7.`; empty for names without a number, or with nothing after it."""

    prefix: str
    start: int
    stop: int


def runs(names: Sequence[str]) -> Iterator[LayerRun]:
    """Yields runs of consecutive names with equal prefixes."""
    start, count = 0, len(names)
    while start < count:
        prefix, stop = prefix_of(names[start]), start + 1
        if prefix:
            while stop < count and names[stop].startswith(prefix):
                stop += 1
        yield LayerRun(prefix, start, stop)
        start = stop


def prefix_of(name: str) -> str:
    """Returns the name up to the dot after its first number; empty if there is none."""
    end = -1
    while (dot := name.find(".", end + 1)) >= 0:
        if name[end + 1 : dot].isdecimal():
            return name[: dot + 1]
        end = dot
    return ""
