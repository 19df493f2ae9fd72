"""The walk over a tokenizer.json's merges: what it lets pass is what Python makes of them, and the rest is Python's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from weighbridge.base import native as door
from weighbridge.base.errors import FormatError
from weighbridge.models.tokenizer.formats import merges

pytestmark = pytest.mark.skipif(door.native is None, reason="the extension isn't built")

TOKENS = {
    text: n
    for n, text in enumerate(["a", "b", "ab", "aab", '"', "\\", '"\\', "\u0120", "\u0120a", "\u4e2d", "a\u4e2d"])
}
PAIRS = [("a", "b"), ("a", "ab"), ('"', "\\"), ("\u0120", "a"), ("a", "\u4e2d")]


def strings(found: tuple[int, bytes] | None) -> list[str]:
    assert found is not None
    return door.read_strings(found[1], 0, found[0], 8, False)[0]


def spelled(text: str) -> list[str]:
    return list(merges.spelled(text.encode(), lambda _: json.loads(text), TOKENS, "tokenizer.json"))


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("lines", [True, False])
def test_every_spelling_of_plain_merges(ascii_only: bool, indent: int | None, lines: bool) -> None:
    rows: Any = [" ".join(pair) for pair in PAIRS] if lines else PAIRS
    text = json.dumps(rows, ensure_ascii=ascii_only, indent=indent)
    assert strings(door.gguf_merges(text.encode(), TOKENS)) == merges.joined(PAIRS)
    assert door.gguf_merges(b" [ ] ", TOKENS) == (0, b"")


ODD = [
    '[["a","c"]]', '[["c","a"]]', '[["b","a"]]', '[["a","b","ab"]]', '[["a"]]', '["ab"]', '["a b a"]', '["a  b"]',
    '[["","a"]]', '[["a","b"],"a b"]', '[["a","b"],]', '[["a","b"]] x', '[["a","b"]', "null", "{}", "[[1,2]]",
    '[["a","\\b"]]', '[["a","\\ud83d\\ude00"]]', '[["a","\\u00"]]', '[["a","\n"]]', "", "[",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_whatever_is_odd_is_left_to_python(text: str) -> None:
    assert door.gguf_merges(text.encode(), TOKENS) is None


def test_a_space_inside_a_part_and_a_token_of_half_a_character() -> None:
    spaced = TOKENS | {" ": 90, " a": 91}
    assert door.gguf_merges(b'[[" ","a"]]', spaced) is None
    assert list(merges.spelled(b"", lambda _: [(" ", "a")], spaced, "x")) == ["\u0120 a"]
    assert door.gguf_merges(b'[["a","b"]]', TOKENS | {"\ud800": 90}) is None


@given(st.lists(st.tuples(*[st.sampled_from(["a", "b", "ab", "c", "", " ", "\u0120", "\u4e2d"])] * 2), max_size=6))
@examples(200)
def test_with_and_without_the_walk_the_same(pairs: list[tuple[str, str]]) -> None:
    text, found = json.dumps(pairs), []
    for module in (door.native, None):
        saved, door.native = door.native, module
        try:
            found.append(spelled(text))
        except FormatError as error:
            found.append([str(error)])
        finally:
            door.native = saved
    assert found[0] == found[1]
