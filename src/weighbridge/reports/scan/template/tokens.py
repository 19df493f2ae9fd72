"""The tokens of a Jinja template's blocks, as jinja2 3.1 sees them. FormatError where its lexer would refuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError


class JinjaToken(NamedTuple):
    """`kind`: name, string, integer, float, op, or end (of a block)."""

    kind: str
    value: Any
    at: int


# jinja2.lexer's patterns.
_OPEN: Final = re.compile(r"\{\{|\{%|\{#")
_RAW: Final = re.compile(r"\{%[-+]?\s*raw\s*[-]?%\}")
_END_RAW: Final = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
_END_COMMENT: Final = re.compile(r"#\}")
_SPACE: Final = re.compile(r"\s+")
_FLOAT: Final = re.compile(r"(?<!\.)(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?[eE][+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)")
_INTEGER: Final = re.compile(r"0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[\da-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*")
_NAME: Final = re.compile(r"[^\W\d]\w*")
_STRING: Final = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'|\"([^\"\\]*(?:\\.[^\"\\]*)*)\"", re.DOTALL)
_OPERATOR: Final = re.compile(r"//|\*\*|==|!=|>=|<=|[-+*/%~<>=.:|,;()\[\]{}]")
_CLOSE: Final = MappingProxyType({"{{": re.compile(r"-?\}\}"), "{%": re.compile(r"[-+]?%\}")})
_PAIRS: Final = MappingProxyType({")": "(", "]": "[", "}": "{"})
_DIGITS: Final = 4300


class Block(NamedTuple):
    """A `{{ }}` or `{% %}`: how it opens, its tokens, and where it stands."""

    opening: str
    tokens: list[JinjaToken]
    start: int
    end: int


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a template."""
    at = 0
    while (opening := _OPEN.search(text, at)) is not None:
        start = opening.end() + (text[opening.end() : opening.end() + 1] in ("-", "+"))
        raw = _RAW.match(text, opening.start())
        if raw is not None:
            at = _behind(_END_RAW, text, raw.end())
        elif opening[0] == "{#":
            at = _behind(_END_COMMENT, text, start)
        else:
            tokens, at = _tokens(text, start, opening[0])
            yield Block(opening[0], tokens, opening.start(), at)


def _behind(end: re.Pattern[str], text: str, at: int) -> int:
    """Where a comment or raw block is over. At the very end of a template jinja2 misses no end; it drops the template's
    last line break first (`keep_trailing_newline`)."""
    match = end.search(text, at)
    if match is None and text[at:] not in ("", "\n", "\r\n", "\r"):
        raise wrong("a comment or raw block has no end", at)
    return match.end() if match else at


def _tokens(text: str, at: int, opening: str) -> tuple[list[JinjaToken], int]:
    """The tokens up to the end of a block, and where it is."""
    tokens: list[JinjaToken] = []
    open_: list[str] = []
    while at < len(text):
        close = _CLOSE[opening].match(text, at)
        if close is not None and not open_:
            return [*tokens, JinjaToken("end", None, at)], close.end()
        space = _SPACE.match(text, at)
        if space is not None:
            at = space.end()
            continue
        token, at = _token(text, at)
        if token.kind == "op" and token.value in "([{":
            open_.append(token.value)
        elif token.kind == "op" and token.value in _PAIRS and (not open_ or open_.pop() != _PAIRS[token.value]):
            raise wrong(f"{token.value!r} closes nothing", token.at)
        tokens.append(token)
    raise wrong("a block has no end", at)


def _token(text: str, at: int) -> tuple[JinjaToken, int]:
    for kind, pattern, make in _KINDS:
        match = pattern.match(text, at)
        if match is not None:
            return JinjaToken(kind, make(match), at), match.end()
    raise wrong(f"unexpected {text[at : at + 1]!r}", at)


def _string(match: re.Match[str]) -> str:
    raw = match[0][1:-1]
    if "\\" not in raw:
        return raw
    try:  # as jinja2 does
        return raw.encode("ascii", "backslashreplace").decode("unicode-escape")
    except UnicodeDecodeError as error:
        raise wrong(f"a string's escapes are broken: {error.reason}", match.start()) from None


def _integer(match: re.Match[str]) -> int:
    if len(match[0]) > _DIGITS:
        raise wrong("an integer has too many digits", match.start())
    return int(match[0].replace("_", ""), 0)


_KINDS: Final[tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], Any]], ...]] = (
    ("float", _FLOAT, lambda m: float(m[0].replace("_", "")) if len(m[0]) < _DIGITS else 0.0),
    ("integer", _INTEGER, _integer),
    ("name", _NAME, lambda m: m[0]),
    ("string", _STRING, _string),
    ("op", _OPERATOR, lambda m: m[0]),
)


def wrong(why: str, at: int) -> FormatError:
    return FormatError(why, offset=at)
