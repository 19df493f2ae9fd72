"""Reads JSON files that must be valid: returns the value or raises FormatError with the file's name. (Reports tolerate
more: `reports/sidecars.py`.)

Published configs aren't always JSON: Python writes Infinity and NaN, editors add a byte order mark, people leave a
comma too many. Each of these has only one meaning, so it is read, and `oddities` names it. Anything else is refused."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.base.words import plural

_MARK: Final = b"\xef\xbb\xbf"
#: Python's words for numbers that JSON lacks.
CONSTANTS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# An integer beyond any double in the place of a value: every computation with it fails.
_DIGITS: Final = 309
_LONG: Final = re.compile(rb"(?<=[\s:,\[])-?\d{%d,}(?=[\s,\]}])" % _DIGITS)
# Maps every digit to 0. A run of digits is then found by searching for one text, 20 times as fast.
_AS_ZERO: Final = bytes.maketrans(b"123456789", b"0" * 9)

_NUMBER: Final = re.compile(r"-?\d{1,15}(\.\d{1,17})?([eE][+-]?\d{1,3})?", re.ASCII)
_TEXT_KEYS: Final = frozenset({"transformers_version", "model_type", "dtype", "torch_dtype", "_name_or_path"})


def numbers_as_text(config: Mapping[str, Any]) -> dict[str, int | float]:
    """Returns the numbers that a config has in quotes, by key."""
    texts = {k: v for k, v in config.items() if isinstance(v, str) and k not in _TEXT_KEYS and _NUMBER.fullmatch(v)}
    return {k: int(v) if v.lstrip("-").isdigit() else float(v) for k, v in texts.items()}


def oversized(data: bytes) -> str | None:
    """Describes a number in some JSON that is too large for any program; None if there is none."""
    match = _LONG.search(data) if b"0" * _DIGITS in data.translate(_AS_ZERO) else None
    return f"an integer of {plural(len(match[0].lstrip(b'-')), 'digit')} at byte {match.start()}" if match else None


def decode(data: bytes, name: str, kind: Any = Any, limit: int = CONFIG_JSON) -> Any:
    """Decodes JSON to type `kind`. `name`: the file, for errors."""
    if len(data) > limit:
        raise FormatError("the file is too large", path=name, expected=f"<= {limit} bytes", found=len(data))
    if (reason := oversized(data)) is not None:
        raise FormatError(f"invalid JSON: {reason}", path=name)
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError:
            raise
        except ValueError as error:
            if (repaired := _repair(data)) is None:
                raise error from None
            text, value, odd = repaired
            return msgspec.convert(value, kind) if odd & CONSTANTS.keys() else msgspec.json.decode(text, type=kind)
    except ValueError as error:  # msgspec's errors, text that isn't UTF-8, numbers of over 4300 digits
        raise FormatError(f"invalid JSON: {error}", path=name) from error
    except RecursionError as error:
        raise FormatError("JSON is nested too deeply", path=name) from error


def oddities(data: bytes) -> list[str]:
    """Returns the reasons why `data` isn't JSON although its meaning is clear; empty if it is JSON or unreadable."""
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError):
        with suppress(RecursionError):
            if repaired := _repair(data):
                return [*repaired[2]]
    return []


def repeated_keys(data: bytes) -> list[str]:
    """Returns the keys that occur twice in an object, at any depth, in file order. JSON readers silently take the last.
    Empty if `data` can't be read."""
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


def _repair(data: bytes) -> tuple[str, Any, dict[str, None]] | None:
    """Returns the text without a byte order mark and superfluous commas, its value, and the names of all oddities. None
    if the file has others."""
    try:
        text = data.removeprefix(_MARK).decode()
    except UnicodeDecodeError:
        return None
    plain = _without_commas(text)
    constants = set[str]()

    def constant(word: str) -> float:
        constants.add(word)
        return CONSTANTS[word]

    try:
        value = json.loads(plain, parse_constant=constant)
    except ValueError:
        return None
    mark = ["a byte order mark"] if data.startswith(_MARK) else []
    comma = ["a comma before a closing bracket"] if plain != text else []
    return plain, value, dict.fromkeys([*mark, *comma, *sorted(constants)])


def _without_commas(text: str) -> str:
    """Removes commas before a closing bracket, outside strings."""
    out, inside = list[str](), False
    for part in text.split('"'):
        if inside:
            out.append(part)
            inside = (len(part) - len(part.rstrip("\\"))) % 2 == 1  # an escaped quote doesn't end the string
            continue
        pieces = part.split(",")
        kept = pieces[:1]
        for before, piece in pairwise(pieces):
            closes = piece.lstrip().startswith(("}", "]")) and not before.rstrip().endswith(("{", "["))
            kept.append(piece if closes else f",{piece}")
        out.append("".join(kept))
        inside = True
    return '"'.join(out)
