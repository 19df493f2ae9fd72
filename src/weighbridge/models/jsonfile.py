"""A JSON file that is needed as it should be: decoded, or a FormatError with its name. (Reports forgive: `beside`.)

Published configs aren't always JSON: Python writes Infinity and NaN, editors a byte order mark, people a comma too
many. Each has one meaning, so each is read (`oddities` names them); anything else is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import CONFIG_JSON

_MARK: Final = b"\xef\xbb\xbf"
#: What Python writes for numbers that JSON lacks.
CONSTANTS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# An integer that no double holds, where a value may stand: whoever computes with it fails.
_DIGITS: Final = 309
_LONG: Final = re.compile(rb"(?<=[\s:,\[])-?\d{%d,}(?=[\s,\]}])" % _DIGITS)
# Every digit as 0: whether there is a run of them is then a search for one text, 20 times as fast.
_AS_ZERO: Final = bytes.maketrans(b"123456789", b"0" * 9)

_NUMBER: Final = re.compile(r"-?\d{1,15}(\.\d{1,17})?([eE][+-]?\d{1,3})?", re.ASCII)
_WORDS: Final = frozenset({"transformers_version", "model_type", "dtype", "torch_dtype", "_name_or_path"})


def numbers_as_text(config: Mapping[str, Any]) -> dict[str, int | float]:
    """The numbers that a config has in quotes, by key."""
    texts = {k: v for k, v in config.items() if isinstance(v, str) and k not in _WORDS and _NUMBER.fullmatch(v)}
    return {k: int(v) if v.lstrip("-").isdigit() else float(v) for k, v in texts.items()}


def oversized(data: bytes) -> str | None:
    """What is wrong with a number of some JSON that no program computes with; None where there is none."""
    match = _LONG.search(data) if b"0" * _DIGITS in data.translate(_AS_ZERO) else None
    return f"an integer of {len(match[0].lstrip(b'-'))} digits at byte {match.start()}" if match else None


def decode(data: bytes, name: str, kind: Any = Any, limit: int = CONFIG_JSON) -> Any:
    """`data` as JSON of type `kind`."""
    if len(data) > limit:
        raise FormatError("the file is too large", path=name, expected=f"<= {limit} bytes", found=len(data))
    if (why := oversized(data)) is not None:
        raise FormatError(f"no such JSON as is needed: {why}", path=name)
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError:
            raise
        except ValueError as error:
            if (found := _forgiven(data)) is None:
                raise error from None
            plain, value, odd = found
            if odd & CONSTANTS.keys():
                return msgspec.convert(value, kind)
            return msgspec.json.decode(plain, type=kind)
    except ValueError as error:  # msgspec's errors, text that isn't UTF-8, numbers beyond 4300 digits
        raise FormatError(f"no such JSON as is needed: {error}", path=name) from error
    except RecursionError as error:
        raise FormatError("JSON is nested too deeply", path=name) from error


def oddities(data: bytes) -> list[str]:
    """What makes `data` no JSON though its meaning is plain; nothing where it is JSON, or can't be read at all."""
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError):
        try:
            found = _forgiven(data)
        except RecursionError:
            return []
        return [*found[2]] if found else []
    return []


def repeated_keys(data: bytes) -> list[str]:
    """The keys that an object has twice, at any depth, in file order: readers of JSON take the last and say nothing.
    None are known of what can't be read."""
    repeated: dict[str, None] = {}

    def check(pairs: list[tuple[str, Any]]) -> None:
        counted = Counter(key for key, _ in pairs)
        if len(counted) != len(pairs):
            repeated.update(dict.fromkeys(key for key, times in counted.items() if times > 1))

    try:
        json.loads(_without_commas(data.removeprefix(_MARK).decode()), object_pairs_hook=check)
    except (ValueError, RecursionError):
        return []
    return [*repeated]


def _forgiven(data: bytes) -> tuple[str, Any, dict[str, None]] | None:
    """A file with oddities of the three kinds: without the first two, its value, and the names of all; None where it
    has others."""
    found: list[str] = []
    if data.startswith(_MARK):
        data = data.removeprefix(_MARK)
        found.append("a byte order mark")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    plain = _without_commas(text)
    if plain != text:
        found.append("a comma before a closing bracket")
    constants = set[str]()

    def constant(word: str) -> float:
        constants.add(word)
        return CONSTANTS[word]

    try:
        value = json.loads(plain, parse_constant=constant)
    except ValueError:
        return None
    return plain, value, dict.fromkeys([*found, *sorted(constants)])


def _without_commas(text: str) -> str:
    """The text without commas, outside strings, that stand before a closing bracket."""
    out, inside = list[str](), False
    for part in text.split('"'):
        out.append(part if inside else _cut(part))
        if inside and _escaped(part):
            continue
        inside = not inside
    return '"'.join(out)


def _escaped(part: str) -> bool:
    """Whether the quote behind this part of a string is one of its characters."""
    return (len(part) - len(part.rstrip("\\"))) % 2 == 1


def _cut(part: str) -> str:
    pieces = part.split(",")
    closes = [after.lstrip().startswith(("}", "]")) and _filled(before) for before, after in pairwise(pieces)]
    return "".join((pieces[0], *(p if end else f",{p}" for p, end in zip(pieces[1:], closes, strict=True))))


def _filled(before: str) -> bool:
    return not before.rstrip().endswith(("{", "["))
