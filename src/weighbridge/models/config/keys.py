"""Rows that tie a config's keys to GGUF key-values, read from keys.toml, and how one row is applied either way.

Pure over parsed JSON and over a GGUF's metadata. A value that doesn't fit its key's type is a FormatError naming the
config's key: a file is never written with a number that was cut to fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.config import by_layer, evaluate, number
from weighbridge.models.arch.derived import f32

if TYPE_CHECKING:
    from weighbridge.models.arch.table import Family

_RANGES: Final = MappingProxyType({"u32": (0, (1 << 32) - 1), "i32": (-(1 << 31), (1 << 31) - 1)})

_ITEMS: Final = MappingProxyType({"arr[bool]": "bool", "arr[u32]": "u32", "arr[i32]": "i32", "arr[f32]": "f32"})


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key and where a config says it; see keys.toml for the columns."""

    name: str
    type: str
    config: tuple[str, ...]
    value: Any
    map: Mapping[str, Any]
    when: Mapping[str, tuple[Any, ...]]
    families: tuple[str, ...]  # empty: all
    back: tuple[str, ...]  # empty: nothing
    absent: Any = None  # what is written where the config says nothing
    null: bool = False  # a GGUF without the key means a null
    unsaid: Any = None  # ... or this
    times: float = 1.0  # what the config's number is multiplied by
    token: str | None = None  # the number of this token
    last: bool = False  # after all of the tokenizer's
    first: bool = (
        False  # before the general keys, as what the reference finds among the tensors; of a tokenizer's rows:
    )
    # before its own, whose value for it counts
    whole: bool = False  # a whole number in a config though the key is an f32
    over: str = ""  # what the config's number is divided by, another of its numbers, which alone comes back
    root: str = ""  # the square root of this number of the config divides it
    less: str = ""  # what the config's number is lessened by
    usual: Any = None  # what llama.cpp takes where the key is absent: isn't written
    instead: bool = False  # in a family's own table: in the place of the shared row of this name
    known_back: bool = False  # `back` isn't said: the first of `config` that the class has
    padded: int = 0  # a list is filled up with zeros to this length; a zero in the last place doesn't come back
    quantile: bool = False  # a list of shares: written as the standard normal's quantiles
    layers: str | None = None  # a list by layer: the value in the layers of this set, zero in the others; or whether
    others: str = ""  # what the config says for the others
    means: Mapping[str, Any] = field(default_factory=dict)  # what a config says beside that a GGUF with the key is of

    def key(self, architecture: str) -> str:
        return self.name.replace("{a}", architecture)


@dataclass(frozen=True, slots=True)
class KeyTable:
    """keys.toml, parsed."""

    keys: tuple[KeyRow, ...]
    sampling: tuple[KeyRow, ...]
    tokens: Mapping[str, Mapping[str, str]]
    presence: Mapping[str, Mapping[str, str | Mapping[str, str]]]
    silent: Mapping[str, Mapping[str, tuple[Any, ...]]]

    def of_family(self, family: str) -> Iterator[KeyRow]:
        return (row for row in self.keys if not row.families or _of(family, row.families))

    def rules(self, family: Family) -> Rules:
        """What ties a family's configs to its GGUFs: what keys.toml says of it, or its own table."""
        name = family.name if family.name in self.tokens else family.gguf  # a table of somebody's own for a known graph
        if family.meta is None and name in self.tokens:
            return Rules(tuple(self.of_family(name)), self.tokens[name], self.presence[name], self.silent[name])
        return _own_rules(family.meta or {}, tuple(self.of_family(family.name)))


@dataclass(frozen=True, slots=True)
class Rules:
    """One family's part. `[meta]` in its table: `key` are rows as in keys.toml, which stand before the last of those
    (`general.quantization_version`), or with `instead` in the place of that of the same name; `base = false`: in place
    of the others; `without`: names of those it hasn't; `tokens`, `presence`, `silent` as in keys.toml (of a
    presence also `tensor` with values for `there` and `absent`); `tokenizer`: rows that come after the
    tokenizer's own, over them; `graph`: what llama.cpp computes otherwise, see `Computed`."""

    keys: tuple[KeyRow, ...]
    tokens: Mapping[str, str]
    presence: Mapping[str, str | Mapping[str, Any]]
    silent: Mapping[str, tuple[Any, ...]]
    implied: tuple[Implied, ...] = ()
    tokenizer: tuple[KeyRow, ...] = ()
    graph: tuple[Computed, ...] = ()


@dataclass(frozen=True, slots=True)
class Computed:
    """A config's value with which llama.cpp's graph computes what the model's own class does: one of `only`, that of
    the key `equals`, or (`some`) any that is neither absent nor zero; `why`: what it makes of another."""

    config: str
    only: tuple[Any, ...]
    equals: str
    some: bool
    when: Mapping[str, tuple[Any, ...]]
    why: str

    def differs(self, config: Mapping[str, Any]) -> bool:
        value = lookup(config, self.config)
        wrong = (self.only and value not in self.only) or (self.some and not value)
        unequal = bool(self.equals) and value != lookup(config, self.equals)
        return bool(wrong or unequal) and all(_holds(lookup(config, k), v) for k, v in self.when.items())


@dataclass(frozen=True, slots=True)
class Implied:
    """A config's value that llama.cpp's graph takes to be this expression, or that all of the family have: coming back
    it is that, and a config that says otherwise loses it. The first of several for one key that counts."""

    config: str
    value: str | bool
    when: Mapping[str, tuple[Any, ...]]


_LAST: Final = "general.quantization_version"
_TOKENS: Final = MappingProxyType({
    "bos_token_id": "tokenizer.ggml.bos_token_id", "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
})  # fmt: skip


def _own_rules(meta: Mapping[str, Any], shared: tuple[KeyRow, ...]) -> Rules:
    at = next(i for i, row in enumerate(shared) if row.name == _LAST)
    without = meta.get("without", ())
    own = [_parse_row(row) for row in meta.get("key", ())]
    first = [row for row in shared[:at] if meta.get("base", True) and row.name not in without]
    rows = (*_in_place(first, own), *shared[at:])
    silent = {key: tuple(values) for key, values in meta.get("silent", {}).items()}
    implied = tuple(
        Implied(row["config"], row["value"], {k: tuple(v) for k, v in row.get("when", {}).items()})
        for row in meta.get("implied", ())
    )
    tokenizer = tuple(map(_parse_row, meta.get("tokenizer", ())))
    graph = tuple(
        Computed(row["config"], tuple(row.get("only", ())), row.get("equals", ""), row.get("some", False),
                 {k: tuple(v) for k, v in row.get("when", {}).items()}, row["why"])
        for row in meta.get("graph", ())
    )  # fmt: skip
    return Rules(rows, meta.get("tokens", _TOKENS), meta.get("presence", {}), silent, implied, tokenizer, graph)


def _in_place(first: Sequence[KeyRow], own: Sequence[KeyRow]) -> Iterator[KeyRow]:
    """The rows of `own` after the others, or in the place of one of them."""
    instead = {row.name: [r for r in own if r.instead and r.name == row.name] for row in own if row.instead}
    if unknown := instead.keys() - {row.name for row in first}:
        raise UsageError(f"no shared key-value is called {min(unknown)}")
    yield from (r for row in first for r in instead.get(row.name, [row]))
    yield from (row for row in own if not row.instead)


def implied(rules: Rules, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a GGUF of this config means without a key for it."""
    out: dict[str, Any] = {}
    for row in rules.implied:
        known = {**config, **{key: value for key, value in out.items() if value is not None}}
        if row.config not in out and all(_holds(lookup(known, path), wanted) for path, wanted in row.when.items()):
            out[row.config] = lookup(known, row.value) if isinstance(row.value, str) else row.value
    return out


def _of(family: str, families: Sequence[str]) -> bool:
    return family in families or (families[0][:1] == "!" and f"!{family}" not in families)


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
    restored = back if isinstance(back, str | list) else config[:1] if back else ()
    restored = (restored,) if isinstance(restored, str) else tuple(restored)
    listed = row.get("family", ())
    families = (listed,) if isinstance(listed, str) else tuple(listed)
    known = "back" not in row
    return KeyRow(
        row["name"], row["type"], config, row.get("value"), row.get("map", {}), when, families, restored,
        absent=row.get("absent"), null=row.get("null", False), unsaid=row.get("unsaid"),
        times=row.get("times", 1.0), token=row.get("token"),
        last=row.get("last", False), first=row.get("first", False), less=row.get("less", ""),
        usual=row.get("usual"),
        instead=row.get("instead", False), known_back=known, whole=row.get("whole", False),
        layers=row.get("layers"), others=row.get("others", ""), means=row.get("means", {}),
        quantile=row.get("quantile", False),
        over=row.get("over", ""), root=row.get("root", ""), padded=row.get("padded", 0),
    )  # fmt: skip


@cache
def table() -> KeyTable:
    """The table that is shipped."""
    import tomllib

    return build_table(tomllib.loads((resources.files(__package__ or "") / "keys.toml").read_text(encoding="utf-8")))


# ---------------------------------------------------------------------- config -> GGUF


def lookup(config: Mapping[str, Any], path: str) -> Any:
    """What a config says at a path: dots go into objects, a slash divides sizes. None where it says nothing."""
    if "*" in path:
        return _product(config, path)
    if "/" in path or "+" in path or "-" in path:
        return evaluate(path, config)
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _product(config: Mapping[str, Any], path: str) -> Any:
    """`a*b/c`, left to right, a part cut to a whole number before it is divided, as `int(a * b) // c`."""
    left, _, divisor = path.partition("/")
    factors = [float(name) if name.isdigit() else lookup(config, name) for name in left.split("*")]
    if any(f is None for f in factors):
        return None
    product = math.prod(number(f, path) for f in factors)
    if not divisor:
        return int(product) if product == int(product) else product
    by = number(lookup(config, divisor), divisor)
    return int(product) // int(by) if by >= 1 else None


def to_kv(row: KeyRow, config: Mapping[str, Any]) -> KV | None:
    """The row's key-value for an effective config, None where the row doesn't count or the config says nothing."""
    if not all(_holds(lookup(config, path), wanted) for path, wanted in row.when.items()):
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
    value = number(value, path) - (evaluate(row.less, config) or 0) if row.less else value
    value = value if row.layers is None else _by_layer(row, config, value)
    value = number(value, path) / _divisor(row, config) if row.over or row.root else value
    value = _filled(value, row.padded) if row.padded else value
    typed = coerce(value, row.type, path)
    # The reference's writer skips what is empty.
    return None if typed in ("", []) or typed == row.usual else KV(row.type, typed)


def _filled(value: Any, length: int) -> Any:
    """A list of this length, zeros behind what is said."""
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


def _divisor(row: KeyRow, config: Mapping[str, Any]) -> float:
    if (divisor := number(config.get(row.over or row.root), row.over or row.root)) <= 0:
        raise FormatError("is not positive, but a number is divided by it", field=row.over or row.root)
    return math.sqrt(divisor) if row.root else divisor


def _mapped(row: KeyRow, value: Any) -> Any:
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return row.map.get(said, value) if isinstance(value, str | int | bool) else value


def _by_layer(row: KeyRow, config: Mapping[str, Any], value: Any) -> list[Any]:
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


def from_value(row: KeyRow, value: Any, config: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The config's value for a key's value. `config`: what is restored already."""
    if row.absent == 0 and value == 0:
        return None
    if row.map:
        return [_said(row, item) for item in value] if is_list(value) else _said(row, value)
    if row.quantile:
        return [_share(item, row.name) for item in value]
    if row.over or row.root:
        return _multiplied(row, number(value, row.name), config)
    if row.type == "f32":
        said = number(value, row.name)
        said = shortest(said if row.times == 1.0 else f32(shortest(said) / row.times))
        return int(said) if row.whole and said == int(said) else said
    if row.layers not in (None, "*"):
        return by_layer(value, row.name)
    if row.padded and len(value) == row.padded and not value[-1]:
        return list(value[:-1])
    return list(value) if row.type.startswith("arr") else value


def _multiplied(row: KeyRow, value: float, config: Mapping[str, Any]) -> float | int:
    """The divided number, or what it was divided by: the shortest that gives this f32 again."""
    said = next((v for path in row.config if (v := lookup(config, path)) is not None), None)
    if row.root:
        divisor = _divisor(row, config)
        return next((d for d in _decimals(value * divisor) if f32(d / divisor) == value), value * divisor)
    if value <= 0:
        raise FormatError("is not positive", field=row.name, found=value)
    whole = number(said, row.config[0])
    found = next((d for d in _decimals(whole / value) if f32(whole / d) == value), whole / value)
    return int(found) if found == int(found) else found


def understood(row: KeyRow, value: Any) -> bool:
    """Whether the row can give back this value: a list where its type is one, and what its map has."""
    if row.type.startswith("arr") != is_list(value):
        return False
    return not row.map or all(v in row.map.values() for v in (value if is_list(value) else [value]))


def is_list(value: Any) -> bool:
    """A list, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _said(row: KeyRow, value: Any) -> Any:
    return next((said for said, written in row.map.items() if written == value), value)


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
