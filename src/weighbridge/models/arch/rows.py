"""An architecture TOML as checked, immutable rows. Knows the file's grammar and nothing of tensors.

A table is ours, not input: a mistake in it is a UsageError that names the row, raised when the family is first loaded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from weighbridge.base.errors import UsageError

_PLACEHOLDER = re.compile(r"{(\w+)}")
_CALL = re.compile(r"(\w+)\(([\w., ]*)\)")
_OPERATORS = re.compile(r"[*+]")
ATTRIBUTES = frozenset({
    "kind", "shape", "via", "when", "group", "tied", "make", "span", "flat", "each", "zeros", "shaped", "layers",
    "keyed",
})  # fmt: skip
_TURNING = frozenset({"transpose"})  # layouts that swap a tensor's last two axes
_OF_CONFIG = frozenset({"times"})  # layouts that take numbers of the config by their keys, and no sizes
PREFIX = "m"  # the placeholder that stands for a name prefix and is no index


@dataclass(frozen=True, slots=True)
class Via:
    """A layout by name and what it takes: symbols of sizes, or keys of the config."""

    layout: str
    symbols: tuple[str, ...]

    @property
    def turns(self) -> bool:
        """Whether it swaps a tensor's last two axes."""
        return self.layout in _TURNING

    @property
    def of_config(self) -> bool:
        """Whether it takes numbers that a config says, and a GGUF doesn't."""
        return self.layout in _OF_CONFIG

    @property
    def sizes(self) -> frozenset[str]:
        """The symbols of sizes that it takes."""
        return frozenset(s for s in self.symbols if not self.of_config and not s.isdigit())

    def __str__(self) -> str:
        return f"{self.layout}({','.join(self.symbols)})"


@dataclass(frozen=True, slots=True)
class Row:
    """One role: a logical tensor (or, with indices, as many) and its name in each dialect that holds it; an empty name
    says that a dialect doesn't, though its base does."""

    name: str
    kind: str
    shape: tuple[str, ...]
    names: Mapping[str, str]
    via: Mapping[str, Via]
    when: str | None = None
    group: str | None = None
    tied: str | None = None
    make: str | None = None
    span: tuple[str, ...] | None = None
    flat: tuple[str, ...] = ()
    each: tuple[str, ...] = ()  # indices that no dialect's name has
    zeros: tuple[str, ...] = ()  # dialects in which zeros stand for it where it is absent: nothing computes with it
    shaped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # its shape where a dialect has another one
    layers: str | None = None  # only in the layers of this set
    keyed: tuple[str, ...] = ()  # dialects that have it in a key of this name, a number for each index: keyed.py
    symbols: frozenset[str] = field(init=False, repr=False)  # the sizes in its shape, `a*b+2*c`

    @property
    def optional(self) -> bool:
        return bool(self.group or self.tied or self.make)

    def __post_init__(self) -> None:
        dims = (*self.shape, *(dim for shape in self.shaped.values() for dim in shape))
        found = frozenset(s for dim in dims for s in _OPERATORS.split(dim) if not s.isdigit())
        object.__setattr__(self, "symbols", found)

    def turned(self, dialect: str) -> bool:
        """Whether the dialect holds it with its last two axes swapped."""
        return dialect in self.via and self.via[dialect].turns


@dataclass(frozen=True, slots=True)
class Template:
    """One physical name of a dialect with its placeholders, and the roles it holds in joining order. `dealt`: in how
    many groups (a size), each with its share of every role; None: one role under the other. `via`: how what is joined
    then lies, one layout after another. Where an index is stacked, that is done for each by itself. `keyed`: it is the
    name of a key. `further`: its name in the spare layers, the first of which is {n} 0; "": as in the others. `part`:
    "others" or "further", the only layers that it is for."""

    name: str
    roles: tuple[str, ...]
    dealt: str | None = None
    via: tuple[Via, ...] = ()
    keyed: bool = False
    further: str = ""
    part: str = ""

    @property
    def indices(self) -> tuple[str, ...]:
        return tuple(i for i in placeholders(self.name) if i != PREFIX)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A column: its templates in the order of the rows, the prefixes it is written with, names that are dropped.
    `first`: roles that the reference writes before all others of a source under these names. `holds`: the block type
    whose codes it holds as they are; what a GGUF has in that type is written under these names.
    `without`: sets of layers that it hasn't."""

    name: str
    templates: tuple[Template, ...]
    prefixes: tuple[str, ...]
    drop: tuple[str, ...]
    order: str  # "table": layer by layer; "source": as the reference converter writes, see order.py
    together: tuple[tuple[str, ...], ...]
    first: tuple[str, ...] = ()
    holds: str | None = None
    without: tuple[str, ...] = ()

    def prefix_for(self, wanted: str, plain: Sequence[str]) -> str:
        """A class's prefix among Hugging Face's (`plain`), or what stands in its place among the dialect's own."""
        if wanted in self.prefixes:
            return wanted
        matched = len(plain) == len(self.prefixes) and wanted in plain
        return self.prefixes[plain.index(wanted) if matched else 0]


@dataclass(frozen=True, slots=True)
class Size:
    """Where a config and a GGUF say a size; first that is present."""

    hf: tuple[str, ...]
    gguf: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """A class of transformers that belongs to the family. `gguf`: keys and tensors by which a GGUF of it is known
    (empty: any, None: never). `like`: classes that a GGUF doesn't tell from it. `full_layers`: see config.py. `part`:
    where its config describes the model of the table, if that is one of several. `some`, `none`: a set of layers that a
    model of the class has, or hasn't, to be of this family."""

    name: str
    model_type: str
    aliases: tuple[str, ...]
    prefix: str
    gguf: tuple[str, ...] | None
    defaults: Mapping[str, Any]
    null: Mapping[str, str]
    like: tuple[str, ...]
    full_layers: tuple[str, ...] = ()
    part: str | None = None
    some: str | None = None
    none: str | None = None

    def whole(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config with what it says of this part of the model on top, as the reference converter lays them."""
        said = config.get(self.part) if self.part else None
        return {**config, **said} if isinstance(said, Mapping) else config


def placeholders(template: str) -> list[str]:
    return _PLACEHOLDER.findall(template)


def parse_row(name: str, row: Mapping[str, Any]) -> Row:
    names = {key: value for key, value in row.items() if key not in ATTRIBUTES}
    plain = {key: row.get(key) for key in ("when", "group", "tied", "make", "layers")}
    via = {dialect: _parse_via(text) for dialect, text in row.get("via", {}).items()}
    span = tuple(row["span"].split(":")) if "span" in row else None
    return Row(
        name, row["kind"], tuple(row["shape"].split(",")), MappingProxyType(names), MappingProxyType(via), **plain,
        span=span, flat=tuple(row.get("flat", ())), each=tuple(row.get("each", ())),
        zeros=tuple(row.get("zeros", ())),
        shaped=MappingProxyType({d: _dims(shape) for d, shape in row.get("shaped", {}).items()}),
        keyed=tuple(row.get("keyed", ())),
    )  # fmt: skip


def _dims(shape: str) -> tuple[str, ...]:
    """`H*D,N` as its dimensions; a scalar has none."""
    return tuple(shape.split(",")) if shape else ()


def _parse_via(text: str) -> Via:
    found = _CALL.fullmatch(text)
    if found is None:
        raise UsageError(f"a layout is written name(sizes), not {text!r}")
    return Via(found[1], tuple(s.strip() for s in found[2].split(",") if s.strip()))


def parse_architecture(name: str, doc: Mapping[str, Any], shared: Mapping[str, Any]) -> Architecture:
    known = doc.get("gguf")
    return Architecture(
        name, doc["model_type"], tuple(doc.get("aliases", ())), doc.get("prefix", ""),
        None if known is None else tuple(known),
        MappingProxyType({**shared, **doc.get("defaults", {})}), MappingProxyType(doc.get("null", {})),
        tuple(doc.get("like", ())), tuple(doc.get("full_layers", ())), doc.get("part"),
        doc.get("some"), doc.get("none"),
    )  # fmt: skip


def parse_dialect(name: str, doc: Mapping[str, Any], rows: Mapping[str, Row]) -> Dialect:
    """A dialect with all that it takes from its base: names, prefixes, drops, fused tensors."""
    chain, options = _bases(name, doc["dialect"])
    renamed = options.get("replace", {})
    templates: dict[str, Template] = {}
    for row in rows.values():
        held = (_template_in(d, row, doc.get("fuse", {}).get(d, {})) for d in chain)
        found = next((t for t in held if t is not None), None)
        if found and found.name:  # an empty one: not in this dialect
            key = f"{found.name} {row.when or ''}{row.layers or ''}"  # rows may share a name if they exclude each other
            further = _begun_otherwise(found.name, options.get("further", {}))
            templates.setdefault(key, replace(found, name=_replaced(found.name, renamed), further=further))
    if "further_as" in options:
        templates = _parted(templates, parse_dialect(options["further_as"], doc, rows))
    return Dialect(
        name, tuple(templates.values()), tuple(options.get("prefixes", ("",))),
        tuple(t for d in chain for t in doc.get("drop", {}).get(d, ())),
        options.get("order", "table"),
        tuple(tuple(group) for group in options.get("together", ())),
        tuple(options.get("first", ())), options.get("holds"), tuple(options.get("without", ())),
    )  # fmt: skip


def _template_in(dialect: str, row: Row, fuses: Mapping[str, Any]) -> Template | None:
    """What holds the row in one dialect: the tensor it is joined in, or its own."""
    for fuse in fuses.values():
        if row.name in fuse["roles"]:
            via = tuple(map(_parse_via, fuse.get("via", ())))
            return Template(str(fuse["name"]), tuple(fuse["roles"]), fuse.get("dealt"), via)
    name = row.names.get(dialect)
    return None if name is None else Template(name, (row.name,), keyed=dialect in row.keyed)


def _bases(name: str, dialects: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """A dialect and its bases, nearest first, and their options merged."""
    chain = [name]
    while base := dialects[chain[-1]].get("base"):
        if base in chain or dialects.get(base, False) is False:
            raise UsageError(f"dialect {name}: {base!r} is no other dialect that it can begin as")
        chain.append(base)
    options: dict[str, Any] = {}
    for link in reversed(chain):
        options.update(dialects[link])
    return chain, options


def _parted(own: Mapping[str, Template], other: Dialect) -> dict[str, Template]:
    """A dialect's templates where the further layers are called as in another."""
    theirs = {t.name: t for t in other.templates}
    mine = {t.name for t in own.values()}
    others = {key: t if t.name in theirs else replace(t, part="others") for key, t in own.items()}
    return others | {name: replace(t, part="further") for name, t in theirs.items() if name not in mine}


def _begun_otherwise(name: str, pairs: Mapping[str, str]) -> str:
    """The name with another beginning, by the first of the pairs that fits; "" where none does."""
    return next((new + name.removeprefix(old) for old, new in pairs.items() if name.startswith(old)), "")


def _replaced(text: str, pairs: Mapping[str, str]) -> str:
    for old, new in pairs.items():
        text = text.replace(old, new)
    return text


def check(
    rows: Mapping[str, Row],
    dialects: Iterable[Dialect],
    indices: Mapping[str, str],
    sizes: Mapping[str, Size],
    layers: Collection[str] = (),
) -> None:
    """What a table must hold to: known indices, known sizes, joined roles alike in all but their first axis."""
    if not indices or next(iter(indices.values())) not in sizes:
        raise UsageError("the first index doesn't run to a known size, the number of layers")
    for dialect in dialects:
        for template in dialect.templates:
            first = rows[template.roles[0]]
            if any(r.shape[1:] != first.shape[1:] or r.group != first.group for r in (rows[n] for n in template.roles)):
                raise UsageError(f"{template.name}: joined roles differ in shape or group")
            if template.dealt is not None and template.dealt not in sizes:
                raise UsageError(f"{template.name}: dealt in an unknown size")
            if set(template.indices) - set(indices):
                raise UsageError(f"{template.name}: unknown index")
            if unknown := {s for via in template.via for s in via.sizes} - set(sizes):
                raise UsageError(f"{template.name}: unknown sizes {sorted(unknown)}")
            if any(via.of_config for via in template.via):
                raise UsageError(f"{template.name}: what is joined is laid by sizes; multiply the roles")
        if unknown := {i for name in dialect.drop for i in placeholders(name)} - {*indices, PREFIX}:
            raise UsageError(f"{dialect.name}: drops names with unknown indices {sorted(unknown)}")
        if unknown := set(dialect.without).difference(layers):
            raise UsageError(f"{dialect.name}: unknown layers {sorted(unknown)}")
    for row in rows.values():
        symbols = {*row.symbols, *(s for via in row.via.values() for s in via.sizes), *(row.span or ())} - {""}
        if unknown := {s for s in symbols if not s.isdigit()} - set(sizes):
            raise UsageError(f"{row.name}: unknown sizes {sorted(unknown)}")
        if set(row.each) - set(indices):
            raise UsageError(f"{row.name}: unknown index")
        if row.keyed and (row.shape != ("1",) or any("{" in row.names.get(d, "{") for d in row.keyed)):
            raise UsageError(f"{row.name}: what is in a key is one number for each index, under a name without one")
        if row.layers is not None and row.layers not in layers:
            raise UsageError(f"{row.name}: unknown layers {row.layers!r}")
