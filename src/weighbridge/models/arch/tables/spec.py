"""A family's table as checked, immutable objects: roles, dialects and their templates, sizes, classes.

They are built from the structs of `schema.py`; `check.py` checks that all names in them exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial, reduce
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.schema import (
    ArchitectureEntry,
    DialectEntry,
    FamilyTable,
    FuseEntry,
    RoleEntry,
)
from weighbridge.models.arch.tables.validate import nearest_word
from weighbridge.tensors.layout_table import LAYOUTS, LayoutRow

_PLACEHOLDER = re.compile(r"{(\w+)(?:\+(\w+))?}")
INTEGERS: Final = "integers"  # class of roles that are constants in I64, not weights
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
    def sizes(self) -> frozenset[str]:
        """The symbols of sizes that it takes."""
        return frozenset(s for s in self.symbols if not self.row.from_config and s != LAYER and not is_number(s))

    @property
    def by_layer(self) -> bool:
        """Whether it takes the number of the layer."""
        return LAYER in self.symbols

    def __str__(self) -> str:
        return f"{self.layout}({','.join(self.symbols)})"


@dataclass(frozen=True, slots=True)
class ComputedCall:
    """A function of `models/arch/computed.py` by name, and the roles that it takes."""

    function: str
    roles: tuple[str, ...]


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
    token: str | None = None
    batch_norm: bool = False
    written_with: str | None = None
    computed: ComputedCall | None = None

    @property
    def read_with(self) -> tuple[str, ...]:
        """The roles with whose tensors of a folder the reference converter reads it."""
        return self.computed.roles if self.computed else (self.copies or self.written_with or self.name,)

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

    def symbols_in(self, dialect: str) -> frozenset[str]:
        """The sizes in its shape in a dialect."""
        dims = self.shapes.get(dialect, self.shape)
        return self.symbols.intersection(name for dim in dims for name in expression.names(expression.parse(dim)))

    def transposed(self, dialect: str) -> bool:
        """Whether the dialect holds it with its last two axes swapped."""
        return dialect in self.layouts and self.layouts[dialect].row.transposes


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """One physical name of a dialect with its placeholders, and the roles it holds in joining order.

    `interleave`: the size with the number of groups, each with its share of every role; None: one role after the
    other. `layouts`: the layout changes of the joined tensor, in order; for each value of a stacked index separately.
    `metadata`: whether it names a key. `mtp_name`: its name in the optional layers, numbered by {n} from 0; "": the
    same. `part`: "others" or "mtp" if it is only for these layers. `set_names`: its names in sets of layers, numbered
    likewise. `shape`: its dimensions, if they aren't those of the joined roles.
    """

    name: str
    roles: tuple[str, ...]
    interleave: str | None = None
    layouts: tuple[LayoutCall, ...] = ()
    metadata: bool = False
    mtp_name: str = ""
    part: str = ""
    set_names: tuple[tuple[str, str], ...] = ()
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
    f32: tuple[str, ...] = ()
    write_packed_first: bool = False
    write_last: tuple[str, ...] = ()

    def prefix_for(self, prefix: str | None, hf_prefixes: Sequence[str]) -> str:
        """The dialect's prefix that corresponds to a class's Hugging Face prefix; None: the first."""
        if prefix in self.prefixes:
            return prefix
        corresponds = len(hf_prefixes) == len(self.prefixes) and prefix in hf_prefixes
        return self.prefixes[hf_prefixes.index(prefix) if corresponds else 0]


class Architecture(ArchitectureEntry, frozen=True, kw_only=True):
    """A class of transformers in the family, with its name. `defaults` include the family's. `stated_type`:
    `model_type` in config.json."""

    name: str
    stated_type: str

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


def placeholders(template: str) -> list[str]:
    """The indices in a name, and its prefixes."""
    return [name for name, _ in _PLACEHOLDER.findall(template)]


def numbering(template: str) -> list[tuple[str, str]]:
    """The indices in a name, each with the index whose numbers precede its own, or "": in `dec.blk.{j+r}.` the numbers
    of j follow those of r."""
    return [(name, before) for name, before in _PLACEHOLDER.findall(template) if name not in PREFIXES]


# ---------------------------------------------------------------------- building


def build_role(name: str, entry: RoleEntry) -> Role:
    try:
        layouts = {dialect: layout_call(text) for dialect, text in entry.layout.items()}
        called = expression.call(expression.parse(entry.computed)) if entry.computed else None
        shape, shapes = dimensions(entry.shape), {d: dimensions(shape) for d, shape in entry.shapes.items()}
    except UsageError as error:
        raise UsageError(f"role.{name}: {error}") from None
    return Role(
        name, entry.kind, shape, entry.names, layouts, entry.when, entry.layers, entry.group, entry.tied, entry.derived,
        tuple(entry.unstacked), tuple(entry.stacked), tuple(entry.zeros), shapes,
        tuple(entry.as_metadata), entry.copies, entry.gguf_dtype, entry.token, entry.batch_norm, entry.written_with,
        ComputedCall(called[0], tuple(map(ast.unparse, called[1]))) if called else None,
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


def build_dialect(name: str, table: FamilyTable, roles: Mapping[str, Role]) -> Dialect:
    """A dialect with everything that it inherits from its base: names, prefixes, drops, fused tensors."""
    chain, entry = _bases(name, table.dialect)
    templates: dict[str, NameTemplate] = {}
    replaced = partial(reduce, lambda text, pair: text.replace(*pair), entry.replace.items())
    for role in roles.values():
        named = (_template_in(d, role, table.fuse.get(d, {})) for d in chain)
        template = next((t for t in named if t is not None), None)
        if template and template.name:  # "": not in this dialect
            key = f"{template.name} {role.when or ''}{role.layers or ''}"
            mtp_name = _started(template.name, entry.mtp_prefixes)
            by_set = ((layers, _started(template.name, starts)) for layers, starts in entry.set_prefixes.items())
            set_names = tuple((layers, replaced(named)) for layers, named in by_set if named)
            name_here = replaced(template.name)
            templates.setdefault(key, replace(template, name=name_here, mtp_name=mtp_name, set_names=set_names))
    if entry.mtp_dialect is not None:
        other = {t.name: t for t in build_dialect(entry.mtp_dialect, table, roles).templates}
        names = {t.name for t in templates.values()}
        templates = {key: t if t.name in other else replace(t, part="others") for key, t in templates.items()}
        templates |= {n: replace(t, part="mtp") for n, t in other.items() if n not in names}
    return Dialect(
        name, tuple(templates.values()), tuple(entry.prefixes), tuple(t for d in chain for t in table.drop.get(d, ())),
        entry.order, tuple(map(tuple, entry.write_groups)), tuple(entry.write_first), entry.block_dtype,
        tuple(entry.without or ()), tuple(map(tuple, entry.write_by_layer)), entry.kept_dtypes,
        tuple(entry.f32), entry.write_packed_first, tuple(entry.write_last),
    )  # fmt: skip


def _started(name: str, prefixes: Mapping[str, str]) -> str:
    """The name with the first of these prefixes replaced; "" if it has none of them."""
    start = next((start for start in prefixes if name.startswith(start)), None)
    return "" if start is None else prefixes[start] + name.removeprefix(start)


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
