"""A JSON reader that records positions and accepts exactly what `serde_json` accepts.

It is the slow, exact path of the safetensors parser: it keeps duplicate keys, records the bytes of every value, and
follows serde_json 1.0 (the JSON reader of the reference implementation) where JSON readers differ:

    numbers      an integer from -2^63 to 2^64-1 is an int; everything else, `-0` too, is a float; a float that
                 overflows is an error, decided by serde_json's own arithmetic
    strings      raw control characters and lone surrogate escapes are errors
    nesting      127 levels
    literals     only null, true, false; no NaN, no comments, no trailing comma, no second document

The input must be valid UTF-8 (check it first, as the reference does). Errors name the byte in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import JSON_DEPTH

_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_STRING: Final = re.compile(rb'"([^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})[^"\\\x00-\x1f]*+)*+)"')
_NUMBER: Final = re.compile(rb"(-?)(0|[1-9][0-9]*+)(?:\.([0-9]++))?(?:[eE]([+-]?[0-9]++))?")
_WORDS: Final = {b"n": (b"null", None), b"t": (b"true", True), b"f": (b"false", False)}
_U64: Final = 2**64 - 1


class Pair(NamedTuple):
    """One member of an object: its key and value, and its bytes [key_at, end); the value starts at `at`."""

    key: str
    value: Value
    key_at: int
    at: int
    end: int


class JsonObject(list[Pair]):
    """A JSON object as the list of its members in file order, duplicates kept."""

    def last(self) -> dict[str, Value]:
        """As a dict; the last of several equal keys wins."""
        return {p.key: p.value for p in self}


Value: TypeAlias = "bool | int | float | str | list[Any] | JsonObject | None"


def kind(value: Value) -> str:
    """The JSON name of a value's type, for messages."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    names = {int: "an integer", float: "a float", str: "a string", JsonObject: "an object", list: "an array"}
    return names[type(value)]


class Scanner:
    """Reads values from `data` at `at`. `base` is the position of `data[0]` in the file called `path`."""

    def __init__(self, data: bytes, base: int = 0, path: str | None = None, at: int = 0) -> None:
        self.data, self.base, self.path, self.at = data, base, path, at

    def fail(self, reason: str, expected: str | None = None, at: int | None = None) -> FormatError:
        place = self.at if at is None else at
        actual = repr(self.data[place : place + 12])[1:] if place < len(self.data) else "the end of the header"
        return FormatError(reason, path=self.path, offset=self.base + place, field="header JSON", expected=expected,
                           found=actual)  # fmt: skip

    def peek(self) -> bytes:
        """Skips white space; returns the next byte, empty at the end."""
        match = _SPACE.match(self.data, self.at)
        assert match is not None  # it matches the empty string
        self.at = match.end()
        return self.data[self.at : self.at + 1]

    def take(self, character: bytes) -> None:
        if self.peek() != character:
            raise self.fail("the JSON is malformed", expected=repr(character.decode()))
        self.at += 1

    def document(self) -> Value:
        """The single value in the data."""
        value = self.value()
        if self.peek():
            raise self.fail("something follows the JSON object", expected="white space only")
        return value

    def value(self, depth: int = 0) -> Value:
        first = self.peek()
        if first == b'"':
            return self.string()
        if first == b"{":
            return JsonObject(self.members(depth))
        if first == b"[":
            return list(self.items(depth))
        if first in _WORDS:
            word, value = _WORDS[first]
            if not self.data.startswith(word, self.at):
                raise self.fail("the JSON is malformed", expected=word.decode())
            self.at += len(word)
            return value
        return self.number()

    def string(self) -> str:
        match = _STRING.match(self.data, self.at)
        if match is None:
            if self.data[self.at : self.at + 1] != b'"':
                raise self.fail("the JSON is malformed", expected="a string")
            raise self.fail("a string never ends, or has a raw control character or an unknown escape")
        raw = match[1]
        try:
            text: str = raw.decode() if b"\\" not in raw else json.loads(match[0])
            if b"\\u" in raw:  # a lone surrogate escape survives Python's reader, but not this
                text.encode()
        except UnicodeEncodeError:
            raise self.fail("a string holds half of a surrogate pair") from None
        self.at = match.end()
        return text

    def number(self) -> int | float:
        match = _NUMBER.match(self.data, self.at)
        if match is None:
            raise self.fail("the JSON is malformed", expected="a value")
        minus, whole, fraction, exponent = match.groups()
        number: int | float | None
        if fraction is None and exponent is None and len(whole) <= 20 and (not minus or whole != b"0"):
            number = int(minus + whole)
            if not -(2**63) <= number <= _U64:
                number = float(number)
        else:
            number = serde_float(whole, fraction or b"", exponent or b"0", bool(minus))
        if number is None:
            raise self.fail("a number is out of range")
        self.at = match.end()
        return number

    def _separated(self, close: bytes, depth: int) -> Iterator[None]:
        """One turn per element of the array or object that opens here."""
        # serde_json starts with 128 levels and refuses when none is left after entering one.
        if depth + 1 >= JSON_DEPTH:
            raise self.fail("the JSON is nested too deeply", expected=f"at most {JSON_DEPTH - 1} levels")
        self.at += 1
        if self.peek() != close:
            while True:
                yield
                if self.peek() == close:
                    break
                self.take(b",")
        self.at += 1

    def items(self, depth: int) -> Iterator[Value]:
        for _ in self._separated(b"]", depth):
            yield self.value(depth + 1)

    def members(self, depth: int = 0) -> Iterator[Pair]:
        """The members of the object that opens here, one by one (members before an error aren't lost)."""
        for _ in self._separated(b"}", depth):
            self.peek()
            key_at = self.at
            key = self.string()
            self.take(b":")
            self.peek()
            at = self.at
            value = self.value(depth + 1)
            yield Pair(key, value, key_at, at, self.at)


def serde_float(whole: bytes, fraction: bytes, exponent: bytes, minus: bool) -> float | None:
    """The double that serde_json reads from a number's parts; None for its error "number out of range".

    serde_json (de.rs, without `float_roundtrip`) gathers digits while they fit a u64, then scales by a power of ten.
    Near the largest double it overflows although a correctly rounding reader would not.
    """
    # An exponent of many digits over- or underflows by its sign; int() of it would be slow.
    power = exponent.lstrip(b"+-").lstrip(b"0") or b"0"
    size = int(power) if len(power) < 10 else 999_999_999
    digits, scale = whole + fraction, (-size if exponent.startswith(b"-") else size) - len(fraction)
    significand, used = 0, 0
    for used, digit in enumerate(digits):  # noqa: B007 (used after the loop)
        if significand * 10 + digit - 48 > _U64:
            break
        significand = significand * 10 + digit - 48
    else:
        used = len(digits)
    value, scale = float(significand), scale + len(digits) - used
    while value and abs(scale) > 308:
        if scale > 0:
            return None
        value, scale = value / 1e308, scale + 308
    if value:
        value = value * float(f"1e{scale}") if scale >= 0 else value / float(f"1e{-scale}")
    return None if value == float("inf") else -value if minus else value
