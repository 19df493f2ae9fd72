"""Rows that tie a config's keys to GGUF key-values, read from keys.toml, and how one row is applied either way.

Pure over parsed JSON and over a GGUF's metadata. A value that doesn't fit its key's type is a FormatError naming the
config's key: a file is never written with a number that was cut to fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.derived import f32
from weighbridge.models.arch.registry import families_of_graph
from weighbridge.models.arch.tables import expression, validate
from weighbridge.models.arch.tables.expression import by_layer, evaluate
from weighbridge.models.arch.tables.schema import ImpliedEntry, KeyEntry, MetaEntry, PresenceEntry, RequiredValueEntry
from weighbridge.models.arch.tables.values import number, one_value

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family

_RANGES: Final = MappingProxyType({"u32": (0, (1 << 32) - 1), "i32": (-(1 << 31), (1 << 31) - 1)})

_ITEMS: Final = MappingProxyType({"arr[bool]": "bool", "arr[u32]": "u32", "arr[i32]": "i32", "arr[f32]": "f32"})


_LAST: Final = "general.quantization_version"
_TOKENS: Final = MappingProxyType({
    "bos_token_id": "tokenizer.ggml.bos_token_id", "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
})  # fmt: skip


class KeyTable(Struct, frozen=True, forbid_unknown_fields=True):
    """keys.toml: key-values that families share (`MetaEntry.base`), and those of generation_config.json."""

    key: list[KeyEntry]
    sampling: list[KeyEntry]


@dataclass(frozen=True, slots=True)
class Rules:
    """What ties one family's configs to its GGUFs; see `schema.MetaEntry` for the fields. `keys`: the shared key-values
    and the family's own, which stand before the last of those, or with `replaces` in the place of that of the same
    name."""

    keys: tuple[KeyEntry, ...]
    tokens: Mapping[str, str]
    presence: Mapping[str, str | PresenceEntry]
    assumed: Mapping[str, Sequence[Any]]
    implied: Sequence[ImpliedEntry]
    tokenizer: Sequence[KeyEntry]
    requires_value: Sequence[RequiredValueEntry]


def build_table(document: Mapping[str, Any]) -> KeyTable:
    """The shared key-values from their parsed TOML."""
    return validate.convert(document, KeyTable)


@cache
def table() -> KeyTable:
    """The table that is shipped."""
    import tomllib

    return build_table(tomllib.loads((resources.files(__package__ or "") / "keys.toml").read_text(encoding="utf-8")))


def rules(family: Family) -> Rules:
    """What ties a family's configs to its GGUFs. A table without `[meta]` has that of the graph's own family."""
    meta = family.document.meta
    if meta is None:
        same = (f.document.meta for f in families_of_graph(family.gguf) if f.name == family.gguf)
        meta = next(same, None) or MetaEntry()
    shared = table().key
    at = next((i for i, entry in enumerate(shared) if entry.name == _LAST), len(shared))
    first = [entry for entry in shared[:at] if meta.base and entry.name not in meta.without]
    keys = (*_in_place(first, meta.key), *shared[at:], *(entry for entry in meta.key if entry.last))
    tokens = _TOKENS if meta.tokens is None else meta.tokens
    presence = {**_tied_output(family), **meta.presence}
    return Rules(keys, tokens, presence, meta.assumed, meta.implied, meta.tokenizer, meta.requires_value)


def _tied_output(family: Family) -> dict[str, str]:
    """An output matrix that may be the embedding: a GGUF without it states `tie_word_embeddings`."""
    for role in family.rows.values():
        if role.kind == "head" and role.tied and family.rows[role.tied].kind == "embedding" and "gguf" in role.names:
            return {"tie_word_embeddings": f"!{role.names['gguf']}"}
    return {}


def _in_place(first: Sequence[KeyEntry], own: Sequence[KeyEntry]) -> Iterator[KeyEntry]:
    """The entries of `own` after the others, or in the place of one of them."""
    replacing = {entry.name: [e for e in own if e.replaces and e.name == entry.name] for entry in own if entry.replaces}
    if unknown := replacing.keys() - {entry.name for entry in first}:
        raise UsageError(f"meta.key: no shared key-value is called {min(unknown)}")
    yield from (e for entry in first for e in replacing.get(entry.name, [entry]))
    yield from (entry for entry in own if not (entry.replaces or entry.last))


def differs(entry: RequiredValueEntry, config: Mapping[str, Any]) -> bool:
    """Whether a config has a value with which llama.cpp's graph computes something else."""
    value = lookup(config, entry.config)
    wrong = (entry.only and value not in entry.only) or (entry.nonzero and not value)
    unequal = bool(entry.equals) and value != lookup(config, entry.equals)
    least = lookup(config, entry.at_least) if entry.at_least else None
    less = least is not None and bool(value) and number(value, entry.config) < number(least, entry.at_least)
    return bool(wrong or unequal or less) and _all_hold(entry.when, config)


def implied(rules: Rules, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a GGUF of this config means without a key for it: the first of several entries for a key that counts."""
    out: dict[str, Any] = {}
    for entry in rules.implied:
        known = {**config, **{key: value for key, value in out.items() if value is not None}}
        if entry.config not in out and _all_hold(entry.when, known):
            out[entry.config] = lookup(known, entry.value) if isinstance(entry.value, str) else entry.value
    return out


# ---------------------------------------------------------------------- config -> GGUF


def lookup(config: Mapping[str, Any], text: str) -> Any:
    """What a config states at a dotted path, or the number that an expression over such paths gives. None where a path
    has nothing."""
    tree = expression.parse(text)
    if expression.path(tree) is not None:
        return _at(config, text)
    found = expression.Evaluator(lambda path: _at(config, path), number).number(tree)
    return int(found) if found is not None and found == int(found) else found


def _at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def to_kv(row: KeyEntry, config: Mapping[str, Any]) -> KV | None:
    """The row's key-value for an effective config, None where the row doesn't count or the config says nothing."""
    if not _all_hold(row.when, config):
        return None
    if row.layers is not None and not row.config:
        return KV(row.type, _by_layer(row, config, True))
    if row.value is not None:
        return KV(row.type, row.value)
    path, value = next(((p, v) for p in row.config if (v := lookup(config, p)) is not None), ("", None))
    if value is None:
        return None if row.absent is None else KV(row.type, row.absent)
    if row.map:
        value = [_mapped(row, v) for v in value] if isinstance(value, list | tuple) else _mapped(row, value)
    if row.quantile and is_list(value):
        return KV(row.type, [quantile(number(v, path), path) for v in value])
    value = number(value, path) * row.times if row.times != 1.0 else value
    value = number(value, path) - (evaluate(row.subtract, config) or 0) if row.subtract else value
    value = value if row.layers is None else _by_layer(row, config, value)
    value = number(value, path) / _divisor(row, config) if row.divide_by or row.divide_by_sqrt else value
    value = _filled(value, row.pad_to) if row.pad_to else value
    typed = coerce(value, row.type, path)
    # The reference's writer skips what is empty.
    return None if typed in ("", []) or typed == row.omit_if else KV(row.type, typed)


def _filled(value: Any, length: int) -> Any:
    """A list padded with zeros, or cut, to this length."""
    return [*value, *[0] * (length - len(value))][:length] if is_list(value) else value


def quantile(share: float, field: str) -> float:
    """The number below which the standard normal has this share, in F32 by the steps of torch's `Normal.icdf`: erfinv
    of twice the share less one, times the root of two. erfinv is computed in F64 and rounded once, so that the result
    is the same on every processor; torch's differs from it in the last bit now and then."""
    from statistics import NormalDist

    if not 0 <= share <= 1:
        raise FormatError("is no share", field=field, expected="a number from 0 to 1", found=share)
    twice = f32(2 * f32(share) - 1)
    if abs(twice) == 1:
        return math.copysign(math.inf, twice)
    return f32(f32(NormalDist().inv_cdf((twice + 1) / 2) / math.sqrt(2)) * f32(math.sqrt(2)))


def _share(value: Any, field: str) -> float:
    """The shortest number whose quantile this is."""
    from statistics import NormalDist

    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise FormatError("is no quantile", field=field, expected="a number", found=repr(value)[:80])
    near = NormalDist().cdf(value)
    return next((s for s in _decimals(near) if quantile(s, field) == f32(value)), near)


def _divisor(row: KeyEntry, config: Mapping[str, Any]) -> float:
    if (divisor := number(config.get(row.divide_by or row.divide_by_sqrt), row.divide_by or row.divide_by_sqrt)) <= 0:
        raise FormatError("is not positive, but a number is divided by it", field=row.divide_by or row.divide_by_sqrt)
    return math.sqrt(divisor) if row.divide_by_sqrt else divisor


def _mapped(row: KeyEntry, value: Any) -> Any:
    declared = str(value).lower() if isinstance(value, bool) else str(value)
    return row.map.get(declared, value) if isinstance(value, str | int | bool) else value


def _by_layer(row: KeyEntry, config: Mapping[str, Any], value: Any) -> list[Any]:
    """The value in the layers of the row's set, in the others another one or nothing of its kind."""
    count = config["layer_count"]
    if row.layers == "*":
        listed = list(value) if is_list(value) else [value] * count
        if len(listed) != count:
            raise FormatError("hasn't a number for each layer", field=row.config[0], expected=count, found=len(listed))
        return listed
    layers = config["layer_sets"][row.layers]
    other = lookup(config, row.others) if row.others else type(value)()
    return [value if i in layers else other for i in range(count)]


def _all_hold(when: Mapping[str, Sequence[Any]], config: Mapping[str, Any]) -> bool:
    return all(_holds(lookup(config, path), wanted) for path, wanted in when.items())


def _holds(value: Any, wanted: Sequence[Any]) -> bool:
    if value is None:
        return False
    return "*" in wanted or ("+" in wanted and value != 0) or any(type(value) is type(w) and value == w for w in wanted)


def coerce(value: Any, kind: str, field: str) -> Any:
    """The value as a GGUF type takes it, or FormatError."""
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "arr[str]" and isinstance(value, list | tuple):
        return [str(v) for v in value]
    if kind in _ITEMS and isinstance(value, list | tuple):
        return [coerce(v, _ITEMS[kind], field) for v in value]
    if kind == "f32":
        return number(value, field)
    if kind in _RANGES:
        whole = int(number(value, field))
        low, high = _RANGES[kind]
        if whole == value and low <= whole <= high:
            return whole
    raise FormatError("doesn't fit its GGUF key", field=field, expected=kind, found=repr(value)[:80])


# ---------------------------------------------------------------------- GGUF -> config


def from_value(row: KeyEntry, value: Any, config: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The config's value for a key's value. `config`: what is restored already."""
    if row.absent == 0 and value == 0:
        return None
    if row.map:
        return [_declared(row, item) for item in value] if is_list(value) else _declared(row, value)
    if row.quantile:
        return [_share(item, row.name) for item in value]
    if row.divide_by or row.divide_by_sqrt:
        return _multiplied(row, number(value, row.name), config)
    if row.type == "f32":
        declared = number(value, row.name)
        declared = shortest(declared if row.times == 1.0 else f32(shortest(declared) / row.times))
        return int(declared) if row.whole and declared == int(declared) else declared
    if row.layers not in (None, "*"):
        return _shared_float(value, row) if row.type == "arr[f32]" else by_layer(value, row.name)
    if row.pad_to and len(value) == row.pad_to and not value[-1]:
        return list(value[:-1])
    return list(value) if row.type.startswith("arr") else value


def _shared_float(value: Sequence[Any], row: KeyEntry) -> float:
    """The one number in a list with an entry for each layer, zeros aside."""
    listed = {shortest(number(v, row.name)) for v in value} - {0.0}
    return one_value(listed, row.name, default=0.0)


def _multiplied(row: KeyEntry, value: float, config: Mapping[str, Any]) -> float | int:
    """The divided number, or what it was divided by: the shortest that gives this f32 again."""
    declared = next((v for path in row.config if (v := lookup(config, path)) is not None), None)
    if row.divide_by_sqrt:
        divisor = _divisor(row, config)
        return next((d for d in _decimals(value * divisor) if f32(d / divisor) == value), value * divisor)
    if value <= 0:
        raise FormatError("is not positive", field=row.name, found=value)
    whole = number(declared, row.config[0])
    found = next((d for d in _decimals(whole / value) if f32(whole / d) == value), whole / value)
    return int(found) if found == int(found) else found


def understood(row: KeyEntry, value: Any) -> bool:
    """Whether the row can give back this value: a list where its type is one, and what its map has."""
    if row.type.startswith("arr") != is_list(value):
        return False
    return not row.map or all(v in row.map.values() for v in (value if is_list(value) else [value]))


def is_list(value: Any) -> bool:
    """A list, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _declared(row: KeyEntry, value: Any) -> Any:
    return next((declared for declared, written in row.map.items() if written == value), value)


def shortest(value: float) -> float:
    """The shortest decimal that is the same f32: 1e-06, not 9.999999974752427e-07."""
    return next((d for d in _decimals(value) if f32(d) == f32(value)), value)


def _decimals(value: float) -> Iterator[float]:
    """The number in one digit, in two, and so on."""
    return (float(f"{value:.{digits}g}") for digits in range(1, 10))


def store(config: dict[str, Any], path: str, value: Any) -> None:
    """Puts a value at a dotted path."""
    *parents, last = path.split(".")
    for name in parents:
        config = config.setdefault(name, {})
    config[last] = value
