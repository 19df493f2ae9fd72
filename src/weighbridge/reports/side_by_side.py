"""Two texts side by side: which lines both have."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

_LINES: Final = 1000  # that are aligned: the time grows with the square of their number
_CHARACTERS: Final = 200_000  # of each text


@dataclass(frozen=True, slots=True)
class LinePair:
    """A line of each text; None beside a line that only the other has. `same`: both are equal."""

    a: str | None
    b: str | None
    same: bool


def side_by_side(a: str, b: str) -> tuple[LinePair, ...]:
    """The lines of both, aligned by what they have in common. Beyond 1,000 lines between the first and the last
    difference, lines are paired by their numbers. Of a text of more than 200,000 characters, the rest is one last line
    that says how many characters it has; `same` compares the rests themselves."""
    left, right = a[:_CHARACTERS].splitlines(keepends=True), b[:_CHARACTERS].splitlines(keepends=True)
    first = _common(left, right)
    last = _common(left[first:][::-1], right[first:][::-1])
    head = [LinePair(line, line, True) for line in left[:first]]
    tail = [LinePair(line, line, True) for line in left[len(left) - last :]]
    shown = (*head, *_aligned(left[first : len(left) - last], right[first : len(right) - last]), *tail)
    return (*shown, *_rest(a[_CHARACTERS:], b[_CHARACTERS:]))


def _rest(a: str, b: str) -> tuple[LinePair, ...]:
    """What is not shown of the texts; () where that is nothing."""
    return (LinePair(_hidden(a), _hidden(b), a == b),) if a or b else ()


def _hidden(text: str) -> str | None:
    return f"... {len(text):,} more characters, not shown" if text else None


def _common(a: list[str], b: list[str]) -> int:
    """How many first lines both have."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _aligned(a: list[str], b: list[str]) -> list[LinePair]:
    if max(len(a), len(b)) > _LINES:
        return _paired(a, b)
    rows: list[LinePair] = []
    for tag, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        same = [LinePair(line, line, True) for line in a[a0:a1]]
        rows += same if tag == "equal" else _paired(a[a0:a1], b[b0:b1])
    return rows


def _paired(a: list[str], b: list[str]) -> list[LinePair]:
    """Line by line."""
    length = max(len(a), len(b))
    padded = ([*lines, *[None] * (length - len(lines))] for lines in (a, b))
    return [LinePair(x, y, x == y) for x, y in zip(*padded, strict=True)]
