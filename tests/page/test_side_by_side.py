"""Two texts side by side: nothing of either is lost, and what both have stands beside itself."""

from __future__ import annotations

import random

import pytest

from weighbridge.page import side_by_side as module
from weighbridge.page.side_by_side import LinePair, side_by_side


def texts(pairs: tuple[LinePair, ...]) -> tuple[str, str]:
    return "".join(p.a or "" for p in pairs), "".join(p.b or "" for p in pairs)


def test_lines_that_both_have_stand_side_by_side() -> None:
    assert side_by_side("a\nb\nc\nd\n", "a\nx\nc\ny\nd\n") == (
        LinePair("a\n", "a\n", True), LinePair("b\n", "x\n", False), LinePair("c\n", "c\n", True),
        LinePair(None, "y\n", False), LinePair("d\n", "d\n", True),
    )  # fmt: skip


def test_an_end_without_a_line_break_differs() -> None:
    assert side_by_side("a", "a\n") == (LinePair("a", "a\n", False),)
    assert side_by_side("", "a\n") == (LinePair(None, "a\n", False),)
    assert side_by_side("", "") == ()


@pytest.mark.parametrize("lines", [1000, 3])
def test_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, lines: int) -> None:
    """Both columns are the texts, also where there are too many lines to align."""
    monkeypatch.setattr(module, "_LINES", lines)
    chosen = random.Random(4)
    for _ in range(200):
        a, b = ("".join(chosen.choices(["x\n", "y\n", "z\n", "w"], k=chosen.randrange(12))) for _ in "ab")
        pairs = side_by_side(a, b)
        assert texts(pairs) == (a, b)
        assert all(p.same == (p.a == p.b) for p in pairs)
        assert all(p.same for p in side_by_side(a, a))


def test_only_what_differs_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text with one changed line doesn't reach the limit."""
    monkeypatch.setattr(module, "_LINES", 2)
    body = [f"{i}\n" for i in range(50)]
    pairs = side_by_side("".join(body), "".join([*body[:20], "new\n", *body[20:]]))
    assert [p for p in pairs if not p.same] == [LinePair(None, "new\n", False)]


@pytest.mark.parametrize(("b_end", "same"), [("tail", True), ("tall", False), ("", False)])
def test_a_text_beyond_the_limit_ends_with_what_isnt_shown(
    monkeypatch: pytest.MonkeyPatch, b_end: str, same: bool
) -> None:
    """What follows the limit still counts as a difference."""
    monkeypatch.setattr(module, "_CHARACTERS", 6)
    hidden = "... 4 more characters, not shown"
    assert side_by_side("a\nb\nc\ntail", f"a\nb\nc\n{b_end}") == (
        *(LinePair(f"{c}\n", f"{c}\n", True) for c in "abc"), LinePair(hidden, hidden if b_end else None, same)
    )  # fmt: skip
    assert side_by_side("a\nb\nc\n", "a\nb\nc\n")[-1] == LinePair("c\n", "c\n", True)
