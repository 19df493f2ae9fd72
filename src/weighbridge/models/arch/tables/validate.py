"""Converts TOML tables to structs; errors name the first wrong place and the nearest valid word."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from weighbridge.base.errors import UsageError

T = TypeVar("T")


def convert(document: Any, kind: type[T]) -> T:
    """Converts TOML to a struct. UsageError names the first wrong place and the nearest valid word."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        _find(document, kind, "")
        raise UsageError(str(error)) from None


def _find(value: Any, kind: Any, place: str) -> None:
    """Raises a UsageError for the first value of a wrong kind."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin = get_origin(kind)
    if _is_struct(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind, include_extras=True)
        for key in value:
            if key not in hints:
                raise UsageError(f"{place or 'the table'}: unknown field {key!r}{nearest_word(key, hints)}")
        for f in msgspec.structs.fields(kind):
            if f.required and f.name not in value:
                raise UsageError(f"{place or 'the table'}: the field {f.name!r} is missing")
        for key, entry in value.items():
            _find(entry, hints[key], _join(place, key))
    elif origin is dict and isinstance(value, Mapping):
        for key, entry in value.items():
            _find(entry, get_args(kind)[1], _join(place, key))
    elif origin is list and isinstance(value, list):
        for i, entry in enumerate(value):
            _find(entry, get_args(kind)[0], f"{place}[{i}]")
    elif origin in (Union, types.UnionType) and isinstance(value, Mapping | list):
        container = list if isinstance(value, list) else dict
        fits = (k for k in get_args(kind) if get_origin(k) is container or (container is dict and _is_struct(k)))
        _find(value, next(fits, Any), place)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message = f"{str(error)[:1].lower()}{str(error)[1:]}"
        if get_origin(kind) is Literal:
            words = get_args(kind)
            message = f"{value!r} is none of {', '.join(map(str, words))}{nearest_word(str(value), words)}"
        raise UsageError(f"{place}: {message}") from None


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def nearest_word(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the known words if none is near."""
    listed = [str(k) for k in known]
    import difflib  # late: for errors only

    if near := difflib.get_close_matches(word, listed, 1, 0.5):
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(listed)}" if listed else ""
