"""Wording of messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# Irregular plurals.
_IRREGULAR: Final = {"index": "indices", "matrix": "matrices", "axis": "axes"}


# Verb of many -> of one.
_VERBS: Final = {"are": "is", "have": "has", "were": "was", "need": "needs", "reach": "reaches"}


def plural(n: int, noun: str, verb: str = "") -> str:
    """`1 file`, `1,204 files`; with the verb of many `1 file is`, `1,204 files are`."""
    if verb:
        return f"{plural(n, noun)} {_VERBS[verb] if n == 1 else verb}"
    if n == 1:
        return f"1 {noun}"
    *before, last = noun.split(" ")
    ends_in_y = last.endswith("y") and last[-2:-1] not in "aeiou"
    many = _IRREGULAR.get(last) or (f"{last[:-1]}ies" if ends_in_y else f"{last}s")
    return f"{n:,} {' '.join([*before, many])}"


def ranges(numbers: Iterable[int], separator: str = ",") -> str:
    """`0-3,5` for 0, 1, 2, 3 and 5."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return separator.join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
