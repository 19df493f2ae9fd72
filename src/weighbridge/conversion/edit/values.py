"""The values of an edit: text from the command line, or Python objects, as GGUF values of the right type."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.containers.gguf.values import IDS, KV, RANGES, SCALARS, check_type, element_type, infer


@dataclass(frozen=True, slots=True)
class Edit:
    """Sets or removes one key. `type`: the GGUF type of `value`; None: the key's current type, or one that fits."""

    key: str
    value: Any = None
    type: str | None = None
    remove: bool = False


def edits_of(given: Sequence[Edit] | Mapping[str, Any]) -> Iterator[Edit]:
    """The edits of an option. In a mapping a text stays text, whatever it looks like, and a `KV` has its own type."""
    if not isinstance(given, Mapping):
        yield from given
        return
    for key, value in given.items():
        if isinstance(value, KV):
            yield Edit(key, value.value, value.type)
        else:
            yield Edit(key, value, "str" if isinstance(value, str) else None)


# Keys that describe the structure of a GGUF: changing one breaks the file, or its readers.
_GUARDED: Final = (
    (re.compile(r"split\.(no|count|tensors\.count)"), "it ties the shards of a set together"),
    (re.compile(r"general\.architecture"), "every other key is named after it"),
    (re.compile(r"tokenizer\.ggml\.(tokens|token_type|scores|merges)"), "the model's token ids depend on it"),
)


def why_guarded(key: str) -> str | None:
    """Why a key of a GGUF is protected; None if it isn't."""
    return next((reason for keys, reason in _GUARDED if keys.fullmatch(key)), None)


def typed(
    edit: Edit, old: KV | None, *, text_only: bool = False, force: bool = False, option: str | None = "--allow-guarded"
) -> KV:
    """The value of an edit in the requested GGUF type, else in the key's current type, else in one that fits.

    Raises RefusedError, which names the `option` that allows it, if the type of a key would change, unless `force` is
    set; UsageError for an invalid value.
    """
    if not edit.key:
        raise UsageError("a key can't be empty")
    if text_only and edit.type in (None, "str"):
        return KV("str", edit.value if isinstance(edit.value, str) else json.dumps(edit.value))
    kind = edit.type or (old.type if old else None)
    if old is not None and kind != old.type and not force:
        raise RefusedError(
            f"{edit.key} has the type {old.type}, not {kind}; readers look for exactly one type",
            option=option, hint=None if option else "leave the type out",
        )  # fmt: skip
    if kind is None:
        fitting = infer(parse_untyped(edit.value) if isinstance(edit.value, str) else edit.value)
        return KV(fitting.type, coerce(edit.key, fitting.type, fitting.value))
    return KV(check_type(kind), coerce(edit.key, kind, edit.value))


# At most 20 digits fit into 64 bits; longer numbers stay text instead of costing big-integer parsing.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT: Final = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]{1,4})?")


def parse_untyped(text: str) -> Any:
    """An untyped value of a new key: true/false, a number, a JSON array of these or of strings, or a string."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("[") and (elements := _elements(text)):
        return elements
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _elements(text: str) -> list[Any] | None:
    """A JSON array of scalars; None for any other text, such as `[INST]`."""
    try:
        elements = json.loads(text)
    except (ValueError, RecursionError):
        return None
    scalars = isinstance(elements, list) and all(isinstance(x, str | int | float) for x in elements)
    return elements if scalars else None


def coerce(key: str, kind: str, value: Any) -> Any:
    """Converts `value`, possibly text, to the GGUF type `kind`. Raises UsageError if that is impossible."""
    inner = element_type(kind)
    if inner is not None:
        if isinstance(value, str) and (elements := _elements(value)) is not None:
            value = elements
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise UsageError(f"{key} is an array, {kind}", hint="give its elements: --set-array KEY=TYPE:[...]")
        return [coerce(key, inner, element) for element in value]
    if kind == "str":
        if not isinstance(value, str):
            raise UsageError(f"{key}: {value!r} is not text")
        return value
    value = parse_untyped(value) if isinstance(value, str) else value
    if kind == "bool":
        if isinstance(value, bool):
            return value
        raise UsageError(f"{key}: {value!r} is neither true nor false")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{key}: {value!r} is not a number")
    if kind in RANGES:
        low, high = RANGES[kind]
        if not isinstance(value, int) or not low <= value <= high:
            raise UsageError(f"{key}: {value} is not a {kind} ({low} to {high})")
        return value
    try:  # the value as stored, which may have fewer digits
        stored: float = struct.unpack("<" + SCALARS[kind], struct.pack("<" + SCALARS[kind], value))[0]
    except OverflowError:
        raise UsageError(f"{key}: {value} is too large for {kind}") from None
    return stored


# Other spellings of types: llama.cpp's --override-kv has int, float, bool and str.
_ALIASES: Final = {"string": "str", "float": "f32", "int": "i32", "float32": "f32", "uint32": "u32", "int32": "i32"}


def parse_assignment(text: str) -> Edit:
    """Parses `KEY=VALUE`, or `KEY=TYPE:VALUE` with a GGUF type (`KEY=str:i32:5` for a string that looks like one), also
    of an array (`KEY=arr[u8]:[1, 2]`)."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} isn't an assignment", hint="write KEY=VALUE or KEY=TYPE:VALUE")
    kind, colon, text = value.partition(":")
    kind = _ALIASES.get(kind, kind)
    scalar = element_type(kind) or kind
    return Edit(key, text, kind) if colon and scalar in IDS and scalar != "arr" else Edit(key, value)


def parse_array(text: str, read: Callable[[str], str]) -> Edit:
    """Parses `KEY=TYPE:[...]` with the elements as JSON, or `KEY=TYPE:@FILE`, whose JSON `read` returns."""
    key, _, value = text.partition("=")
    kind, colon, elements = value.partition(":")
    kind = _ALIASES.get(kind, kind)
    if not colon or kind not in IDS or kind == "arr":
        raise UsageError(
            f"{text[:80]!r} isn't an array", hint='write KEY=TYPE:[...], such as general.tags=str:["a","b"]'
        )
    try:
        values = json.loads(read(elements[1:]) if elements.startswith("@") else elements)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{key}: the elements are not JSON: {error}") from None
    if not isinstance(values, list):
        raise UsageError(f"{key}: the JSON is not an array")
    return Edit(key, values, f"arr[{kind}]")
