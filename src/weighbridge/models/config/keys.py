"""The default key-values (key_values.toml), which map a config's keys, and how a row is applied in either direction.

All functions are pure: they read parsed JSON and a GGUF's metadata. A value that doesn't fit its key's type raises a
FormatError that names the config's key; no number is ever truncated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from msgspec import Struct

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.config import value_at
from weighbridge.models.arch.derived import f32
from weighbridge.models.arch.registry import families_of_graph
from weighbridge.models.arch.tables import expression, short_forms, validate
from weighbridge.models.arch.tables.expression import by_layer, evaluate
from weighbridge.models.arch.tables.schema import ImpliedEntry, KeyEntry, MetaEntry, PresenceEntry, RequiredValueEntry
from weighbridge.models.arch.tables.values import number, one_value

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family

_RANGES: Final = MappingProxyType(
    {"u32": (0, (1 << 32) - 1), "u64": (0, (1 << 64) - 1), "i32": (-(1 << 31), (1 << 31) - 1)}
)
_ITEMS: Final = MappingProxyType({f"arr[{item}]": item for item in ("bool", "u32", "u64", "i32", "f32")})
LAST: Final = "general.quantization_version"
_TOKENS: Final = MappingProxyType({
    "bos_token_id": "tokenizer.ggml.bos_token_id", "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
})  # fmt: skip


class KeyTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Key-values that families have by default (`MetaEntry.base`), and those for generation_config.json."""

    base: list[KeyEntry]
    sampling: list[KeyEntry]


@dataclass(frozen=True, slots=True)
class Rules:
    """The mapping between one family's configs and its GGUFs; `schema.MetaEntry` documents the fields. `keys`: the
    shared key-values with the family's inserted before the last of them, or replacing the one of the same name."""

    keys: tuple[KeyEntry, ...]
    tokens: Mapping[str, str]
    presence: Mapping[str, str | PresenceEntry]
    assumed: Mapping[str, Sequence[Any]]
    implied: Sequence[ImpliedEntry]
    tokenizer: Sequence[KeyEntry]
    requires_value: Sequence[RequiredValueEntry]


def rows() -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of the table in their full form."""
    document = short_forms.shared("key_values.toml")
    return {part: [short_forms.key_value(row) for row in document[part]] for part in ("base", "sampling")}


@cache
def table() -> KeyTable:
    return validate.convert(rows(), KeyTable)


def rules(family: Family) -> Rules:
    """Returns the rules of a family. A table without `[meta]` has those of the family that its GGUF architecture is
    named after."""
    meta = family.document.meta
    if meta is None:
        same = (f.document.meta for f in families_of_graph(family.gguf) if f.name == family.gguf)
        meta = next(same, None) or MetaEntry()
    shared = table().base
    at = next((i for i, entry in enumerate(shared) if entry.name == LAST), len(shared))
    first = [entry for entry in shared[:at] if meta.base and entry.name not in meta.without]
    replacing = {e.name: [r for r in meta.key if r.replaces and r.name == e.name] for e in meta.key if e.replaces}
    if unknown := replacing.keys() - {entry.name for entry in first}:
        raise UsageError(f"meta.key: no shared key-value is called {min(unknown)}")
    keys = [
        *(new for entry in first for new in replacing.get(entry.name, [entry])),
        *(entry for entry in meta.key if not (entry.replaces or entry.last)),
        *shared[at:],
        *(entry for entry in meta.key if entry.last),
    ]
    presence: dict[str, str | PresenceEntry] = {}
    for role in family.rows.values():  # a GGUF without an output matrix has tied embeddings
        if role.kind == "head" and role.tied and family.rows[role.tied].kind == "embedding" and "gguf" in role.names:
            presence["tie_word_embeddings"] = f"!{role.names['gguf']}"
            break
    tokens = _TOKENS if meta.tokens is None else meta.tokens
    presence |= meta.presence
    return Rules(tuple(keys), tokens, presence, meta.assumed, meta.implied, meta.tokenizer, meta.requires_value)


def differs(entry: RequiredValueEntry, config: Mapping[str, Any]) -> bool:
    """Whether a config has a value that llama.cpp's graph, or mlx-lm's class, doesn't implement."""
    value = lookup(config, entry.config)
    wrong = (entry.only and value not in entry.only) or (entry.nonzero and not value)
    unequal = bool(entry.equals) and value != lookup(config, entry.equals)
    least = lookup(config, entry.at_least) if entry.at_least else None
    less = least is not None and bool(value) and number(value, entry.config) < number(least, entry.at_least)
    return bool(wrong or unequal or less) and all_hold(entry.when, config)


def implied(rules: Rules, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that a GGUF of this config means without having keys for them. The first entry of a key that
    applies counts."""
    out: dict[str, Any] = {}
    for entry in rules.implied:
        facts = {**config, **{key: value for key, value in out.items() if value is not None}}
        if entry.config not in out and all_hold(entry.when, facts):
            out[entry.config] = lookup(facts, entry.value) if isinstance(entry.value, str) else entry.value
    return out


# ---------------------------------------------------------------------- config -> GGUF


def lookup(config: Mapping[str, Any], text: str) -> Any:
    """Returns a config's value at a dotted path, or the number that an expression over such paths evaluates to. None if
    a path has no value."""
    tree = expression.parse(text)
    if expression.path(tree) is not None:
        return value_at(config, text.split("."))
    result = expression.Evaluator(partial(expression.stated, config), number).number(tree)
    return int(result) if result is not None and result == int(result) else result


def entries(row: KeyEntry, config: Mapping[str, Any]) -> Iterator[tuple[str, KV]]:
    """Returns the key-values of a row with one for each entry of an object, by the entry's name."""
    stated = lookup(config, row.config[0]) if row.each else None
    for name, value in stated.items() if isinstance(stated, Mapping) else ():
        yield str(name), KV(row.type, coerce(value, row.type, f"{row.config[0]}.{name}"))


def to_kv(row: KeyEntry, config: Mapping[str, Any]) -> KV | None:
    """Returns the row's key-value for an effective config, or None if the row doesn't apply or the config sets none of
    its keys."""
    if row.each or row.language or not all_hold(row.when, config):
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
    if row.pad_to and is_list(value):  # with zeros, or cut
        value = [*value, *[0] * (row.pad_to - len(value))][: row.pad_to]
    typed = coerce(value, row.type, path)
    # The reference's writer skips empty values.
    return None if typed in ("", []) or typed == row.omit_if else KV(row.type, typed)


def quantile(share: float, field: str) -> float:
    """Returns the number below which the standard normal distribution has this share (0 to 1), in F32.

    Follows torch's `Normal.icdf`: erfinv of twice the share minus one, times the square root of two. Computes erfinv in
    F64 and rounds once, so that every processor gets the same result; torch's sometimes differs in the last bit.
    """
    from statistics import NormalDist  # late: only one family needs it

    if not 0 <= share <= 1:
        raise FormatError("is not a share", field=field, expected="a number from 0 to 1", found=share)
    twice = f32(2 * f32(share) - 1)
    if abs(twice) == 1:
        return math.copysign(math.inf, twice)
    return f32(f32(NormalDist().inv_cdf((twice + 1) / 2) / math.sqrt(2)) * f32(math.sqrt(2)))


def _divisor(row: KeyEntry, config: Mapping[str, Any]) -> float:
    if (divisor := number(config.get(row.divide_by or row.divide_by_sqrt), row.divide_by or row.divide_by_sqrt)) <= 0:
        raise FormatError("is not positive, but a number is divided by it", field=row.divide_by or row.divide_by_sqrt)
    return math.sqrt(divisor) if row.divide_by_sqrt else divisor


def _mapped(row: KeyEntry, value: Any) -> Any:
    declared = str(value).lower() if isinstance(value, bool) else str(value)
    return row.map.get(declared, value) if isinstance(value, str | int | bool) else value


def _by_layer(row: KeyEntry, config: Mapping[str, Any], value: Any) -> list[Any]:
    """Returns one value per layer: `value` in the layers of the row's set, in the others that of `row.others`, or an
    empty value of the same type."""
    count = config["layer_count"]
    if row.layers == "*":
        listed = list(value) if is_list(value) else [value] * count
        if len(listed) != count:
            raise FormatError("must have one number per layer", field=row.config[0], expected=count, found=len(listed))
        return listed
    layers = config["layer_sets"][row.layers]
    outside = lookup(config, row.others) if row.others else type(value)()
    return [value if i in layers else outside for i in range(count)]


def all_hold(when: Mapping[str, Sequence[Any]], config: Mapping[str, Any]) -> bool:
    """Whether each path has one of its values; `*` is any value, `+` any but 0."""
    for path, allowed in when.items():
        value = lookup(config, path)
        if value is None:
            return False
        equal = any(type(value) is type(option) and value == option for option in allowed)
        if not (equal or "*" in allowed or ("+" in allowed and value != 0)):
            return False
    return True


def coerce(value: Any, kind: str, field: str) -> Any:
    """Returns the value as a GGUF type. Raises FormatError if it doesn't fit."""
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
    """Returns the config's value for a key's value. `config`: the values restored so far."""
    if row.absent == 0 and value == 0:
        return None
    if row.map:
        return [_declared(row, item) for item in value] if is_list(value) else _declared(row, value)
    if row.quantile:
        return [_share(item, row.name) for item in value]
    if row.divide_by or row.divide_by_sqrt:
        return _undivided(row, number(value, row.name), config)
    if row.type == "f32":
        declared = number(value, row.name)
        declared = shortest(declared if row.times == 1.0 else f32(shortest(declared) / row.times))
        return int(declared) if row.whole and declared == int(declared) else declared
    if row.type in _RANGES and row.times != 1.0:
        return int(number(value, row.name) // row.times)
    if row.layers not in (None, "*"):
        if row.type != "arr[f32]":
            return by_layer(value, row.name)
        return one_value({shortest(number(v, row.name)) for v in value} - {0.0}, row.name, default=0.0)
    if row.pad_to and len(value) == row.pad_to and not value[-1]:
        return list(value[:-1])
    return list(value) if row.type.startswith("arr") else value


def _declared(row: KeyEntry, value: Any) -> Any:
    declared = next((declared for declared, written in row.map.items() if written == value), value)
    return int(declared) if isinstance(declared, str) and declared.isdigit() else declared


def _share(value: Any, field: str) -> float:
    """Returns the shortest number that has this quantile."""
    from statistics import NormalDist

    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise FormatError("is not a quantile", field=field, expected="a number", found=repr(value)[:80])
    near = NormalDist().cdf(value)
    return next((s for s in _decimals(near) if quantile(s, field) == f32(value)), near)


def _undivided(row: KeyEntry, value: float, config: Mapping[str, Any]) -> float | int:
    """Returns the number before the division, or the divisor if the number is known: the shortest that reproduces this
    F32."""
    if row.divide_by_sqrt:
        divisor = _divisor(row, config)
        return next((d for d in _decimals(value * divisor) if f32(d / divisor) == value), value * divisor)
    if value <= 0:
        raise FormatError("is not positive", field=row.name, found=value)
    declared = next((v for path in row.config if (v := lookup(config, path)) is not None), None)
    whole = number(declared, row.config[0])
    divisor = next((d for d in _decimals(whole / value) if f32(whole / d) == value), whole / value)
    return int(divisor) if divisor == int(divisor) else divisor


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a sequence other than text or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def shortest(value: float) -> float:
    """Returns the shortest decimal of the same F32: 1e-06, not 9.999999974752427e-07."""
    return next((d for d in _decimals(value) if f32(d) == f32(value)), value)


def _decimals(value: float) -> Iterator[float]:
    """Yields the number rounded to one digit, to two, and so on."""
    return (float(f"{value:.{digits}g}") for digits in range(1, 10))


def store(config: dict[str, Any], path: str, value: Any) -> None:
    """Sets the value at a dotted path."""
    *parents, last = path.split(".")
    for name in parents:
        config = config.setdefault(name, {})
    config[last] = value
