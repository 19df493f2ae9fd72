"""JSON as it is published: read where it has one meaning, refused elsewhere."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.base.errors import FormatError
from weighbridge.models.jsonfile import decode, oddities, repeated_keys

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(alphabet='ab\\",}] é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='ab\\",}]'), inner, max_size=3),
)


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ('{"a": 1}', {"a": 1}, []),
        ('{"a": [0.0, Infinity]}', {"a": [0.0, math.inf]}, ["Infinity"]),
        ('{"a": -Infinity}', {"a": -math.inf}, ["-Infinity"]),
        ('\ufeff{"a": 1}', {"a": 1}, ["a byte order mark"]),
        ('{"a": [1, 2, ], }', {"a": [1, 2]}, ["a comma before a closing bracket"]),
        (
            '\ufeff{"a": Infinity,}',
            {"a": math.inf},
            ["a byte order mark", "a comma before a closing bracket", "Infinity"],
        ),
        ('{"a": ",}", "b\\\\": "\\",]",}', {"a": ",}", "b\\": '",]'}, ["a comma before a closing bracket"]),
    ],
)
def test_what_has_one_meaning_is_read(text: str, value: Any, words: list[str]) -> None:
    assert decode(text.encode(), "config.json") == value
    assert oddities(text.encode()) == words


def test_not_a_number_is_one() -> None:
    assert math.isnan(decode(b'{"a": NaN}', "config.json")["a"])
    assert oddities(b'{"a": NaN}') == ["NaN"]


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": 1,, }', "{,}", "[1 2]", "{'a': 1}", '{"a": inf}', '{"a": 1} x', "\ufeff", "[" * 9999]
)
def test_what_has_none_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        decode(text.encode(), "config.json")
    assert oddities(text.encode()) == []


def test_a_wrong_type_is_no_oddity() -> None:
    with pytest.raises(FormatError, match=r"Expected `object`"):
        decode(b"[1]", "config.json", dict[str, Any])
    with pytest.raises(FormatError, match=r"Expected `object`"):
        decode(b"[1,]", "config.json", dict[str, Any])


@given(VALUES)
def test_commas_outside_strings_are_all_that_goes(value: Any) -> None:
    text = json.dumps(value)
    more = text.replace("]", ",]") if '"' not in text and "[]" not in text else text
    assert decode(more.encode(), "x") == value
    assert decode(("\ufeff" + text).encode(), "x") == value


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('{"a": 1, "a": 2}', ["a"]),
        ('{"a": {"b": 1, "c": [], "b": 1}, "d": 1, "d": {}, "d": 2}', ["b", "d"]),
        ('[{"a": 1}, {"a": 1}]', []),
        ('\ufeff{"a": Infinity, "\\u0061": 1,}', ["a"]),
        ('{"a": 1, "a": ', []),
        ("[" * 100_000, []),
    ],
)
def test_keys_given_twice_are_named(text: str, keys: list[str]) -> None:
    assert repeated_keys(text.encode()) == keys
