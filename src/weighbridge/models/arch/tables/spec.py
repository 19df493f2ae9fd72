"""A family's table as checked, immutable objects: roles, dialects and their templates, sizes, classes.

They are built from the structs of `schema.py`. All names in these must exist: sizes, indices, dialects, sets of layers,
roles. A mistake is a UsageError that names the place and the nearest known word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.layers import LayerSet, slice_bounds
from weighbridge.models.arch.tables.schema import (
    ArchitectureEntry,
    DialectEntry,
    FamilyTable,
    FuseEntry,
    RoleEntry,
    SizeEntry,
)
from weighbridge.models.arch.tables.validate import nearest_word
from weighbridge.tensors.layout_table import LAYOUTS, LayoutRow

_PLACEHOLDER = re.compile(r"{(\w+)}")
LAYER: Final = "layer"  # argument of a layout: the number of the layer
PREFIX = "m"  # placeholder for a name prefix, not an index
OUTER = "o"  # placeholder for the part of a prefix before its `model.`
PREFIXES: Final = (PREFIX, OUTER)


@dataclass(frozen=True, slots=True)
class LayoutCall:
    """A layout by name, with its arguments: symbols of sizes, numbers, `layer`, or keys of the config."""

    layout: str
    symbols: tuple[str, ...]

    @property
    def row(self) -> LayoutRow:
        return LAYOUTS[self.layout]

    @property
    def transposes(self) -> bool:
        """Whether it swaps a tensor's last two axes."""
        return self.row.transposes

    @property
    def from_config(self) -> bool:
        """Whether it takes numbers that only a config has."""
        return self.row.from_config

    @property
    def normalizes(self) -> bool:
        """Whether it normalizes rows, as the model's class does when it runs."""
        return self.row.normalizes

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies two joined roles of one shape."""
        return self.row.multiplies

    @property
    def sizes(self) -> frozenset[str]:
        """The symbols of sizes that it takes."""
        return frozenset(s for s in self.symbols if not self.from_config and s != LAYER and not is_number(s))

    @property
    def by_layer(self) -> bool:
        """Whether it takes the number of the layer."""
        return LAYER in self.symbols

    def __str__(self) -> str:
        return f"{self.layout}({','.join(self.symbols)})"


@dataclass(frozen=True)
class Role:
    """One logical tensor, or one per index, and its name in each dialect. The fields are those of `schema.RoleEntry`;
    dimensions of shapes are expressions of sizes."""

    name: str
    kind: str
    shape: tuple[str, ...]
    names: Mapping[str, str]
    layouts: Mapping[str, LayoutCall]
    when: str | None = None
    layers: str | None = None
    group: str | None = None
    tied: str | None = None
    derived: str | None = None
    unstacked: tuple[str, ...] = ()
    stacked: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    as_metadata: tuple[str, ...] = ()
    copies: str | None = None
    gguf_dtype: str = ""

    @property
    def optional(self) -> bool:
        return bool(self.group or self.tied or self.derived)

    @property
    def made(self) -> bool:
        """Whether it is computed from the config or copied from another role, so not a weight."""
        return bool(self.derived or self.copies)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The sizes in its shapes."""
        dims = (*self.shape, *(dim for shape in self.shapes.values() for dim in shape))
        return frozenset(name for dim in dims for name in expression.names(expression.parse(dim)))

    def transposed(self, dialect: str) -> bool:
        """Whether the dialect holds it with its last two axes swapped."""
        return dialect in self.layouts and self.layouts[dialect].transposes


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """One physical name of a dialect with its placeholders, and the roles it holds in joining order.

    `interleave`: the size with the number of groups, each with its share of every role; None: one role after the
    other. `layouts`: the layout changes of the joined tensor, in order; for each value of a stacked index separately.
    `metadata`: whether it names a key. `mtp_name`: its name in the optional layers, numbered by {n} from 0; "": the
    same. `part`: "others" or "mtp" if it is only for these layers. `shape`: its dimensions, if they aren't those of the
    joined roles.
    """

    name: str
    roles: tuple[str, ...]
    interleave: str | None = None
    layouts: tuple[LayoutCall, ...] = ()
    metadata: bool = False
    mtp_name: str = ""
    part: str = ""
    shape: tuple[str, ...] = ()

    @property
    def indices(self) -> tuple[str, ...]:
        return tuple(i for i in placeholders(self.name) if i not in PREFIXES)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A convention of names: its templates in the order of the roles, the names that it ignores (`drop`), and the
    fields of `schema.DialectEntry`."""

    name: str
    templates: tuple[NameTemplate, ...]
    prefixes: tuple[str, ...]
    drop: tuple[str, ...]
    order: str
    write_groups: tuple[tuple[str, ...], ...]
    write_first: tuple[str, ...] = ()
    block_dtype: str | None = None
    without: tuple[str, ...] = ()
    write_by_layer: tuple[tuple[str, ...], ...] = ()
    kept_dtypes: Mapping[str, str] = field(default_factory=dict)
    write_packed_first: bool = False

    def prefix_for(self, prefix: str | None, hf_prefixes: Sequence[str]) -> str:
        """The dialect's prefix that corresponds to a class's Hugging Face prefix; None: the first."""
        if prefix in self.prefixes:
            return prefix
        corresponds = len(hf_prefixes) == len(self.prefixes) and prefix in hf_prefixes
        return self.prefixes[hf_prefixes.index(prefix) if corresponds else 0]


@dataclass(frozen=True, slots=True)
class Size:
    """The sources of a size in a config and a GGUF: the first expression whose keys are present counts."""

    hf: tuple[str, ...]
    gguf: tuple[str, ...]
    optional: bool = False
    by_layer: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """A class of transformers in the family; see `schema.ArchitectureEntry`. `defaults` include the family's."""

    name: str
    model_type: str
    aliases: tuple[str, ...]
    prefix: str | None
    gguf: tuple[str, ...] | None
    defaults: Mapping[str, Any]
    null: Mapping[str, str]
    like: tuple[str, ...]
    full_layers: tuple[str, ...] = ()
    part: str | None = None
    requires: str | None = None
    forbids: str | None = None
    part_type: str | None = None
    part_aliases: tuple[str, ...] = ()
    known_as: str | None = None

    def merged(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config with the keys of this part of the model laid over it, as the reference converter does."""
        part = self.part_config(config)
        return config if part is None else {**config, **part}

    def part_config(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The object of a config that describes this part of the model; None if the whole config does."""
        value: Any = config if self.part else None
        for key in self.part.split(".") if self.part else ():
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else None


def outer(prefix: str) -> str:
    """The part of a prefix before its `model.`: `thinker.` of `thinker.model.`; "" if it has another end."""
    return prefix.removesuffix("model.") if f".{prefix}".endswith(".model.") else ""


def placeholders(template: str) -> list[str]:
    return _PLACEHOLDER.findall(template)


# ---------------------------------------------------------------------- building


def build_size(entry: SizeEntry) -> Size:
    return Size(tuple(entry.hf), tuple(entry.gguf), entry.optional, entry.by_layer)


def build_role(name: str, entry: RoleEntry) -> Role:
    try:
        layouts = {dialect: layout_call(text) for dialect, text in entry.layout.items()}
        shape, shapes = dimensions(entry.shape), {d: dimensions(shape) for d, shape in entry.shapes.items()}
    except UsageError as error:
        raise UsageError(f"role.{name}: {error}") from None
    return Role(
        name, entry.kind, shape, entry.names, layouts, entry.when, entry.layers, entry.group, entry.tied, entry.derived,
        tuple(entry.unstacked), tuple(entry.stacked), tuple(entry.zeros), shapes, tuple(entry.as_metadata),
        entry.copies, entry.gguf_dtype,
    )  # fmt: skip


def dimensions(shape: str) -> tuple[str, ...]:
    """The dimensions of a shape such as `H*D, N`, without spaces; a scalar has none."""
    parts = expression.elements(expression.parse(shape)) if shape else ()
    return tuple(ast.unparse(part).replace(" ", "") for part in parts)


def is_number(argument: str) -> bool:
    """Whether a layout's argument is a number, not a symbol."""
    return argument[:1].isdigit()


def layout_call(text: str) -> LayoutCall:
    called = expression.call(expression.parse(text, decimals=True))
    if called is None:
        raise UsageError(f"a layout has the form name(sizes), not {text!r}")
    if called[0] not in LAYOUTS:
        raise UsageError(f"unknown layout {called[0]!r}", hint=f"known: {', '.join(LAYOUTS)}")
    return LayoutCall(called[0], tuple(ast.unparse(argument) for argument in called[1]))


def build_architecture(name: str, entry: ArchitectureEntry, shared: Mapping[str, Any]) -> Architecture:
    return Architecture(
        name, entry.model_type, tuple(entry.aliases), entry.prefix, None if entry.gguf is None else tuple(entry.gguf),
        {**shared, **entry.defaults}, entry.null, tuple(entry.like), tuple(entry.full_layers), entry.part,
        entry.requires, entry.forbids, entry.part_type, tuple(entry.part_aliases), entry.known_as,
    )  # fmt: skip


def build_dialect(name: str, table: FamilyTable, roles: Mapping[str, Role]) -> Dialect:
    """A dialect with everything that it inherits from its base: names, prefixes, drops, fused tensors."""
    chain, entry = _bases(name, table.dialect)
    templates: dict[str, NameTemplate] = {}
    for role in roles.values():
        named = (_template_in(d, role, table.fuse.get(d, {})) for d in chain)
        template = next((t for t in named if t is not None), None)
        if template and template.name:  # "": not in this dialect
            key = f"{template.name} {role.when or ''}{role.layers if role.layers in table.layers else ''}"
            starts = (start for start in entry.mtp_prefixes if template.name.startswith(start))
            start = next(starts, None)
            mtp_name = "" if start is None else entry.mtp_prefixes[start] + template.name.removeprefix(start)
            name_here = reduce(lambda text, pair: text.replace(*pair), entry.replace.items(), template.name)
            templates.setdefault(key, replace(template, name=name_here, mtp_name=mtp_name))
    if entry.mtp_dialect is not None:
        other = {t.name: t for t in build_dialect(entry.mtp_dialect, table, roles).templates}
        names = {t.name for t in templates.values()}
        templates = {key: t if t.name in other else replace(t, part="others") for key, t in templates.items()}
        templates |= {n: replace(t, part="mtp") for n, t in other.items() if n not in names}
    return Dialect(
        name, tuple(templates.values()), tuple(entry.prefixes), tuple(t for d in chain for t in table.drop.get(d, ())),
        entry.order, tuple(map(tuple, entry.write_groups)), tuple(entry.write_first), entry.block_dtype,
        tuple(entry.without or ()), tuple(map(tuple, entry.write_by_layer)), entry.kept_dtypes,
        entry.write_packed_first,
    )  # fmt: skip


def _template_in(dialect: str, role: Role, fuses: Mapping[str, FuseEntry]) -> NameTemplate | None:
    """The template of a role in one dialect: that of the tensor it is joined in, or its own."""
    for fuse in fuses.values():
        if role.name in fuse.roles:
            layouts = tuple(map(layout_call, fuse.layout))
            return NameTemplate(
                fuse.name, tuple(fuse.roles), fuse.interleave, layouts, shape=dimensions(fuse.shape)
            )  # fmt: skip
    name = role.names.get(dialect)
    return None if name is None else NameTemplate(name, (role.name,), metadata=dialect in role.as_metadata)


def _bases(name: str, dialects: Mapping[str, DialectEntry]) -> tuple[list[str], DialectEntry]:
    """A dialect and its bases, nearest first, and their options merged."""
    chain = [name]
    while (base := dialects[chain[-1]].base) is not None:
        if base in chain or base not in dialects:
            raise UsageError(f"dialect.{name}.base: {base!r} is not another dialect{nearest_word(base, dialects)}")
        chain.append(base)
    options: dict[str, Any] = {}
    for link in reversed(chain):
        entry = dialects[link]
        defaults = DialectEntry()
        options.update({f: v for f in entry.__struct_fields__ if (v := getattr(entry, f)) != getattr(defaults, f)})
    return chain, DialectEntry(**options)


# ---------------------------------------------------------------------- checking


def check(
    table: FamilyTable, roles: Mapping[str, Role], dialects: Iterable[Dialect], layers: Mapping[str, LayerSet]
) -> None:
    """Checks that all names in a table exist, and that joined roles differ only in their first axis."""
    if not table.index or next(iter(table.index.values())) not in table.size:
        raise UsageError("index: the size of the first index, the number of layers, is unknown")
    for symbol, size in table.size.items():
        _check_expressions(f"size.{symbol}", (*size.hf, *size.gguf), partial(expression.check_number, sets=layers))
    for name, layer_set in layers.items():
        _check_expressions(f"layers.{name}", (*layer_set.hf, *layer_set.gguf), expression.check_layers)
    for name, entry in table.architecture.items():
        place = f"architecture.{name}"
        _check_expressions(place, entry.null.values(), expression.check_number)
        _check_expressions(place, entry.gguf or (), expression.check_condition)
        _check_expressions(place, entry.full_layers, lambda text: slice_bounds(expression.parse(text)))
        _check_known(place, "set of layers", filter(None, (entry.requires, entry.forbids)), layers)
    for dialect in dialects:
        for template in dialect.templates:
            _check_template(template, roles, table)
        used = {i for name in dialect.drop for i in placeholders(name)}
        _check_known(f"drop.{dialect.name}", "index", used, {*table.index, *PREFIXES})
        _check_known(f"dialect.{dialect.name}.without", "set of layers", dialect.without, layers)
    for name, fuses in table.fuse.items():
        _check_known("fuse", "dialect", [name], table.dialect)
        for key, fuse in fuses.items():
            _check_known(f"fuse.{name}.{key}.roles", "role", fuse.roles, roles)
    _check_known("drop", "dialect", table.drop, table.dialect)
    for role in roles.values():
        _check_role(role, table, roles, layers)


def _check_expressions(place: str, texts: Iterable[str], check_one: Callable[[str], object]) -> None:
    for text in texts:
        try:
            check_one(text)
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None


def _check_known(place: str, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{place}: unknown {kind} {name!r}{nearest_word(name, known)}")


def _check_template(template: NameTemplate, roles: Mapping[str, Role], table: FamilyTable) -> None:
    _check_known(template.name, "role", template.roles, roles)
    first = roles[template.roles[0]]
    joined = [roles[name] for name in template.roles]
    if any(r.shape[1:] != first.shape[1:] or r.group != first.group for r in joined):
        raise UsageError(f"{template.name}: joined roles differ in shape or group")
    if template.interleave is not None:
        _check_known(template.name, "size", [template.interleave], table.size)
    _check_known(template.name, "index", template.indices, table.index)
    _check_known(template.name, "size", (s for call in template.layouts for s in call.sizes), table.size)
    if any(call.from_config for call in template.layouts):
        raise UsageError(f"{template.name}: `times` isn't allowed on a fused tensor; put it on the roles")


def _check_role(role: Role, table: FamilyTable, roles: Mapping[str, Role], layers: Mapping[str, LayerSet]) -> None:
    place = f"role.{role.name}"
    by_dialect = (role.names, role.layouts, role.shapes, role.zeros, role.unstacked, role.as_metadata)
    for column in by_dialect:
        _check_known(place, "dialect", column, table.dialect)
    for dim in (*role.shape, *(dim for shape in role.shapes.values() for dim in shape)):
        _check_expressions(f"{place}.shape", [dim], expression.check_number)
    _check_known(f"{place}.shape", "size", role.symbols, table.size)
    for dialect, called in role.layouts.items():
        _check_known(f"{place}.layout.{dialect}", "size", called.sizes, table.size)
    if role.when is not None:
        _check_expressions(f"{place}.when", [role.when], expression.check_condition)
        _check_known(f"{place}.when", "size", expression.names(expression.parse(role.when)), table.size)
    if role.tied is not None:
        _check_known(f"{place}.tied", "role", [role.tied], roles)
    if role.copies is not None:
        _check_known(f"{place}.copies", "role", [role.copies], roles)
    _check_known(place, "index", role.stacked, table.index)
    if role.as_metadata and (role.shape != ("1",) or any("{" in role.names.get(d, "{") for d in role.as_metadata)):
        raise UsageError(f"{place}: `as_metadata` needs the shape 1 and a name without indices")
    if role.layers is not None and role.layers not in layers:
        if not isinstance(tree := expression.parse(role.layers), ast.Subscript):
            raise UsageError(
                f"{place}.layers: unknown set of layers {role.layers!r}{nearest_word(role.layers, layers)}"
            )
        _check_expressions(f"{place}.layers", [role.layers], expression.check_layers)
        _check_known(f"{place}.layers", "size", expression.names(tree.slice), table.size)
