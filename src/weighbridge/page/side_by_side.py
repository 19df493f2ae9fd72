"""Aligns the lines of two texts."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final

from weighbridge.base.records import dataclass
from weighbridge.base.words import plural

_LINES: Final = 1000  # that are aligned: the time is quadratic
_CHARACTERS: Final = 200_000  # of each text


@dataclass(frozen=True, slots=True)
class LinePair:
    """A line of each text; None opposite a line that only one text has. `same`: both are equal."""

    a: str | None
    b: str | None
    same: bool


def side_by_side(a: str, b: str) -> tuple[LinePair, ...]:
    """Returns the aligned lines of both texts. With more than 1,000 lines between the first and the last difference,
    they are paired by number. Characters after the first 200,000 become one last line with their count, whose `same`
    compares the hidden text."""
    left, right = a[:_CHARACTERS].splitlines(keepends=True), b[:_CHARACTERS].splitlines(keepends=True)
    head = _common_prefix(left, right)
    tail = _common_prefix(left[head:][::-1], right[head:][::-1])
    pairs = _paired(left[:head], left[:head])
    middle = left[head : len(left) - tail], right[head : len(right) - tail]
    if max(map(len, middle)) > _LINES:
        pairs += _paired(*middle)
    else:
        for _, a0, a1, b0, b1 in SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
            pairs += _paired(middle[0][a0:a1], middle[1][b0:b1])
    pairs += _paired(left[len(left) - tail :], left[len(left) - tail :])
    rests = a[_CHARACTERS:], b[_CHARACTERS:]
    if any(rests):
        hidden = [f"... {plural(len(text), 'more character')}, not shown" if text else None for text in rests]
        pairs.append(LinePair(hidden[0], hidden[1], rests[0] == rests[1]))
    return tuple(pairs)


def _common_prefix(a: list[str], b: list[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _paired(a: list[str], b: list[str]) -> list[LinePair]:
    return [LinePair(x, y, x == y) for x, y in zip_longest(a, b)]
