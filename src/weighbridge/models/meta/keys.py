"""Rows that tie a config's keys to GGUF key-values, read from keys.toml, and how one row is applied either way.

Pure over parsed JSON and over a GGUF's metadata. A value that doesn't fit its key's type is a FormatError naming the
config's key: a file is never written with a number that was cut to fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.containers.gguf_meta import KV
from weighbridge.models.arch.config import evaluate, number
from weighbridge.models.arch.make import f32

_RANGES: Final = MappingProxyType({"u32": (0, (1 << 32) - 1), "i32": (-(1 << 31), (1 << 31) - 1)})


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key and where a config says it; see keys.toml for the columns."""

    name: str
    type: str
    config: tuple[str, ...]
    value: Any
    map: Mapping[str, str]
    when: Mapping[str, tuple[Any, ...]]
    families: tuple[str, ...]  # empty: all
    back: str | None

    def key(self, architecture: str) -> str:
        return self.name.replace("{a}", architecture)


@dataclass(frozen=True, slots=True)
class KeyTable:
    """keys.toml, parsed."""

    keys: tuple[KeyRow, ...]
    sampling: tuple[KeyRow, ...]
    tokens: Mapping[str, Mapping[str, str]]
    presence: Mapping[str, Mapping[str, str]]
    silent: Mapping[str, Mapping[str, tuple[Any, ...]]]

    def of_family(self, family: str) -> Iterator[KeyRow]:
        return (row for row in self.keys if not row.families or family in row.families)


def build_table(doc: Mapping[str, Any]) -> KeyTable:
    """The table from its parsed TOML."""
    silent = {f: {k: tuple(v) for k, v in rules.items()} for f, rules in doc["silent"].items()}
    return KeyTable(
        tuple(map(_parse_row, doc["key"])), tuple(map(_parse_row, doc["sampling"])),
        MappingProxyType(doc["tokens"]), MappingProxyType(doc["presence"]), MappingProxyType(silent),
    )  # fmt: skip


def _parse_row(row: Mapping[str, Any]) -> KeyRow:
    config = tuple(row.get("config", ()))
    back = row.get("back", True)
    when = {key: tuple(values) for key, values in row.get("when", {}).items()}
    restored = back if isinstance(back, str) else (config[0] if back and config else None)
    listed = row.get("family", ())
    families = (listed,) if isinstance(listed, str) else tuple(listed)
    return KeyRow(row["name"], row["type"], config, row.get("value"), row.get("map", {}), when, families, restored)


@cache
def table() -> KeyTable:
    """The table that is shipped."""
    import tomllib

    return build_table(tomllib.loads((resources.files(__package__ or "") / "keys.toml").read_text(encoding="utf-8")))


# ---------------------------------------------------------------------- config -> GGUF


def lookup(config: Mapping[str, Any], path: str) -> Any:
    """What a config says at a path: dots go into objects, a slash divides sizes. None where it says nothing."""
    if "/" in path:
        return evaluate(path, config)
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def to_kv(row: KeyRow, config: Mapping[str, Any]) -> KV | None:
    """The row's key-value for an effective config, None where the row doesn't count or the config says nothing."""
    if not all(_holds(lookup(config, path), wanted) for path, wanted in row.when.items()):
        return None
    if row.value is not None:
        return KV(row.type, row.value)
    path, value = next(((p, v) for p in row.config if (v := lookup(config, p)) is not None), ("", None))
    if value is None:
        return None
    value = row.map.get(value, value) if row.map else value
    typed = coerce(value, row.type, path)
    return None if typed in ("", []) else KV(row.type, typed)  # the reference's writer skips what is empty


def _holds(value: Any, wanted: Sequence[Any]) -> bool:
    if value is None:
        return False
    return "*" in wanted or any(type(value) is type(w) and value == w for w in wanted)


def coerce(value: Any, kind: str, field: str) -> Any:
    """The value as a GGUF type takes it, or FormatError."""
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "arr[str]" and isinstance(value, list | tuple):
        return [str(v) for v in value]
    if kind == "f32":
        return number(value, field)
    if kind in _RANGES:
        whole = int(number(value, field))
        low, high = _RANGES[kind]
        if whole == value and low <= whole <= high:
            return whole
    raise FormatError("doesn't fit its GGUF key", field=field, expected=kind, found=repr(value)[:80])


# ---------------------------------------------------------------------- GGUF -> config


def from_value(row: KeyRow, value: Any) -> Any:
    """The config's value for a key's value."""
    if row.map:
        return next((said for said, written in row.map.items() if written == value), value)
    if row.type == "f32":
        return shortest(number(value, row.name))
    return list(value) if row.type.startswith("arr") else value


def shortest(value: float) -> float:
    """The shortest decimal that is the same f32: 1e-06, not 9.999999974752427e-07."""
    for digits in range(1, 10):
        if f32(candidate := float(f"{value:.{digits}g}")) == f32(value):
            return candidate
    return value


def store(config: dict[str, Any], path: str, value: Any) -> None:
    """Puts a value at a dotted path."""
    *parents, last = path.split(".")
    for name in parents:
        config = config.setdefault(name, {})
    config[last] = value
