"""Expands templates to names: every tensor that a dialect must or may hold, with its shape and parts.

Names are generated from the sizes and looked up, never matched, so missing and leftover tensors are known by name. This
is arithmetic over shapes without numpy, so inspecting a file stays cheap.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from itertools import groupby, product
from typing import Any, NamedTuple

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import MAPPED_TENSORS
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.layers import slice_bounds
from weighbridge.models.arch.tables.spec import (
    LAYER,
    OUTER,
    PREFIX,
    Dialect,
    LayoutCall,
    NameTemplate,
    Role,
    is_number,
    numbering,
)
from weighbridge.models.arch.tables.values import multiplier

_OPTIONAL = "the optional layers"  # their group, in addition to a role's own
Instance = tuple[str, tuple[int, ...]]  # a role and its indices: one logical tensor
SizeValues = tuple[tuple[str, int], ...]  # sizes by symbol
ListedSizes = tuple[tuple[str, tuple[int, ...], str], ...]  # sizes by symbol and layer, or the index that is named


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model by symbol. `facts`: the effective config that they come from; empty for a GGUF.
    `layers`: the sets of layers; `orders`: those of sets whose layers names number in another order. `by_layer`: sizes
    that vary by layer, of which `values` has the largest."""

    values: SizeValues
    by_layer: ListedSizes
    architecture: str
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)
    layers: tuple[tuple[str, frozenset[int]], ...] = ()
    orders: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def at(self, index: Sequence[int], lead: str | None = None) -> Sizes:
        """The sizes of the layer that an index begins with; a size of 0 is unknown there. `lead`: the name of that
        first index, if it may be another than the layer's."""
        if not self.by_layer or not index:
            return self
        here = {symbol: listed[index[0]] for symbol, listed, of in self.by_layer if lead in (None, of)}
        return replace(self, values=tuple((s, here.get(s, n)) for s, n in self.values if here.get(s, n)), by_layer=())

    @cached_property
    def by_symbol(self) -> Mapping[str, int]:
        return dict(self.values)

    def get(self, symbol: str) -> int | None:
        return self.by_symbol.get(symbol)

    def __getitem__(self, symbol: str) -> int:
        return self.by_symbol[symbol]


class RoleSlice(NamedTuple):
    """One logical tensor inside a physical one: rows [start, start + height(shape)) before the layout of the joined
    tensor is applied. A vector has one element per row."""

    instance: Instance
    start: int
    shape: Shape


@dataclass(frozen=True)
class CompiledTemplate:
    """A template compiled for a model's sizes: a printf format, and the order of an instance's index."""

    text: str
    lead: tuple[str, ...]  # the first named index, which neighbouring templates share
    rest: tuple[str, ...]
    stacked: tuple[Sequence[int], ...]  # values of each stacked index
    order: tuple[int, ...]  # position of each index of an instance in (lead, rest, stacked)
    parts: tuple[tuple[str, Shape], ...]  # role and shape of the joined parts
    joined: Shape  # shape of the joined parts, for one value of the stacked indices
    layouts: tuple[tuple[LayoutCall, tuple[float, ...]], ...]  # its layout changes, with their arguments
    block: Shape  # its shape after them
    shape: Shape
    need: str | None
    layers: Collection[int] | None = None  # which of the lead index exist; None: all
    interleave: int = 0  # number of groups in which the parts are interleaved; 0: one after the other
    indices: tuple[str, ...] = ()  # names of the indices: lead, rest, then the stacked ones
    optional: Collection[int] = ()  # layers whose tensors may all be absent
    mtp_name: str = ""  # format of its name in those; "": the same
    part: str = ""  # "others" or "mtp" if it is only for these layers
    set_names: tuple[tuple[str, str], ...] = ()  # formats of its names in sets of layers
    unnamed: int = 0  # number of leading indices that the name lacks, since it is for one layer
    first: int = 0  # number of the lead index's first value in names
    runs: tuple[int, ...] = ()  # number of values of each of `rest`

    @property
    def depth(self) -> int:
        """The number of stacked tensors, of one role each or joined."""
        return math.prod(map(len, self.stacked))

    def name_of(self, named: tuple[int, ...]) -> str:
        """The name of a physical tensor with these numbers of its indices."""
        if self.first:
            named = (self.first + named[0], *named[1:])
        return self.text % named[self.unnamed :]

    @cached_property
    def plain(self) -> bool:
        """Whether a physical tensor holds one logical tensor, or a stack of those of one role, in its own layout."""
        return len(self.parts) == 1 and not self.layouts and not self.interleave

    @cached_property
    def index_of(self) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
        """Maps (lead, rest, stacked) to the index of an instance."""
        if self.order == tuple(range(len(self.order))):
            return lambda at: at
        return lambda at: tuple([at[n] for n in self.order])

    def instances(self, named: tuple[int, ...]) -> list[Instance]:
        """The instances in one physical tensor, in the order of its rows."""
        if not self.stacked and len(self.parts) == 1:  # the most common case, of up to 100,000
            return [(self.parts[0][0], self.index_of(named))]
        indices = [self.index_of(named + values) for values in product(*self.stacked)]
        return [(role, index) for index in indices for role, _ in self.parts]

    def cells(self, named: tuple[int, ...]) -> list[RoleSlice]:
        """The instances with their rows."""
        cells, start, count = [], 0, len(self.parts)
        for n, instance in enumerate(self.instances(named)):
            shape = self.parts[n % count][1]
            cells.append(RoleSlice(instance, start, shape))
            start += height(shape)
        return cells


class TensorSlot:
    """One physical tensor of a dialect. `need`: None if it is required, else the name of its all-or-none group. There
    is one per name, so its contents are computed on request and not kept."""

    __slots__ = ("name", "named", "plan")

    def __init__(self, plan: CompiledTemplate, named: tuple[int, ...]) -> None:
        self.name, self.named, self.plan = plan.name_of(named), named, plan

    @property
    def shape(self) -> Shape:
        return self.plan.shape

    @property
    def need(self) -> str | None:
        plan = self.plan
        optional = plan.optional and self.named and self.named[0] in plan.optional
        return " of ".join(filter(None, (plan.need, _OPTIONAL))) if optional else plan.need

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role for role, _ in self.plan.parts)

    @property
    def heights(self) -> tuple[int, ...]:
        """The number of rows of each part."""
        return tuple(height(shape) for _, shape in self.plan.parts)

    @property
    def indices(self) -> tuple[str, ...]:
        """The names of its indices: those in its name, with the numbers in `named`, then the stacked ones."""
        return self.plan.indices

    def renumbered(self, index: str, number: int) -> str:
        """The name with another number for one of its indices."""
        at = self.indices.index(index)
        return self.plan.name_of((*self.named[:at], number, *self.named[at + 1 :]))

    @property
    def instances(self) -> list[Instance]:
        """The logical tensors in it, in the order of its rows."""
        return self.plan.instances(self.named)

    @property
    def cells(self) -> list[RoleSlice]:
        """The logical tensors in it, with their rows."""
        return self.plan.cells(self.named)


@dataclass(frozen=True)
class Expansion:
    """All names of one dialect for one model."""

    places: Mapping[str, TensorSlot]
    dropped: frozenset[str]


def shape_of(row: Role, sizes: Sizes, dialect: str = "") -> Shape:
    """A role's own shape, or its shape in a dialect that has another one."""
    return dimensions_of(row.shapes.get(dialect, row.shape), sizes)


def dimensions_of(texts: Iterable[str], sizes: Sizes) -> Shape:
    """The values of dimensions, which are expressions of sizes."""
    shape = []
    for text in texts:
        value = sizes.get(text)
        value = expression.evaluate(text, sizes.by_symbol) if value is None else value
        assert value is not None, text
        shape.append(value)
    return tuple(shape)


def height(shape: Shape) -> int:
    """The number of rows of a logical tensor: a vector has one element per row, a scalar is one row."""
    return math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape)


def applies(row: Role, sizes: Sizes) -> bool:
    """Whether the role exists in a model of these sizes: its condition holds and the sizes in its shape are known."""
    if row.when is not None and not _holds(expression.parse(row.when), sizes):
        return False
    return row.symbols <= sizes.by_symbol.keys()


def _holds(node: ast.expr, sizes: Sizes) -> bool:
    """Whether a condition on which sizes are known holds."""
    if isinstance(node, ast.BoolOp):
        return (all if isinstance(node.op, ast.And) else any)(_holds(part, sizes) for part in node.values)
    if isinstance(node, ast.UnaryOp):
        return not _holds(node.operand, sizes)
    return (expression.path(node) or "") in sizes.by_symbol


def expand(
    dialect: Dialect, rows: Mapping[str, Role], role_indices: Mapping[str, tuple[str, ...]], index: Mapping[str, str],
    sizes: Sizes, prefix: str, optional: Collection[int] = (),
) -> Expansion:  # fmt: skip
    """All tensors of a dialect, layer by layer in the order of the table, and all names that it drops. `optional`:
    layers whose tensors may all be absent."""
    counts = index_counts(index, sizes)
    listed = [*_places(_compiled(dialect, rows, role_indices, index, sizes, prefix, optional), counts)]
    places = {place.name: place for place in listed}
    if len(places) < len(listed):
        twice = next(name for name, n in Counter(place.name for place in listed).items() if n > 1)
        raise UsageError(f"two rows of the table have the {dialect.name} name {twice}")
    return Expansion(places, frozenset(run(dialect.drop, counts, prefix)))


def optional_slots(
    dialect: Dialect, rows: Mapping[str, Role], role_indices: Mapping[str, tuple[str, ...]], index: Mapping[str, str],
    sizes: Sizes, prefix: str, optional: Collection[int] = (),
) -> Iterator[TensorSlot]:  # fmt: skip
    """Only the tensors of a dialect that may be absent: a few of up to 100,000."""
    plans = _compiled(dialect, rows, role_indices, index, sizes, prefix, optional)
    listed = [p if p.need else _within(p, p.optional) for p in plans if p.need or p.optional]
    yield from _places(listed, index_counts(index, sizes))


def _compiled(
    dialect: Dialect, rows: Mapping[str, Role], role_indices: Mapping[str, tuple[str, ...]], index: Mapping[str, str],
    sizes: Sizes, prefix: str, optional: Collection[int],
) -> list[CompiledTemplate]:  # fmt: skip
    """Compiles the dialect's templates for these sizes. FormatError if they have more names than any model."""
    counts, gone = index_counts(index, sizes), absent(dialect, sizes)
    plans = [
        plan
        for t in dialect.templates
        for at, layers in _alike(dialect.name, t, rows, sizes, [index[i] for i in role_indices[t.roles[0]]])
        if applies(rows[t.roles[0]], at)
        for plan in [_within(_plan(dialect.name, t, rows, role_indices, index_counts(index, at), at, prefix), layers)]
        if plan.depth
    ]
    if optional or gone:
        layer = next(iter(index))
        for i, plan in enumerate(plans):
            if plan.lead == (layer,):
                kept = range(counts[layer]) if plan.layers is None else plan.layers
                plans[i] = replace(plan, optional=optional, layers=[n for n in kept if n not in gone])
        plans = [part for plan in plans for part in _with_mtp_names(plan)]
    ordered = {**dict(sizes.layers), **dict(sizes.orders)}
    plans = [part for plan in plans for part in _with_set_names(plan, ordered, counts)]
    _bound(math.prod(counts[i] for i in p.lead + p.rest) * p.depth * len(p.parts) for p in plans)
    return plans


def _alike(
    dialect: str, template: NameTemplate, rows: Mapping[str, Role], sizes: Sizes, counts: Iterable[str]
) -> Iterator[tuple[Sizes, Collection[int] | None]]:
    """The different sizes of a template's layers, with the layers that have them; None: all. `counts`: the sizes that
    its indices run to."""
    if not sizes.by_layer:
        yield sizes, None
        return
    symbols = frozenset(counts).union(*(rows[role].symbols_in(dialect) for role in template.roles))
    varying = [listed for symbol, listed, _ in sizes.by_layer if symbol in symbols]
    if not varying:
        yield sizes, None
        return
    lead = next(of for symbol, _, of in sizes.by_layer if symbol in symbols)
    alike: dict[tuple[int, ...], list[int]] = {}
    for layer, values in enumerate(zip(*varying, strict=True)):
        alike.setdefault(values, []).append(layer)
    yield from ((sizes.at(layers, lead), layers) for layers in alike.values())


def _within(plan: CompiledTemplate, layers: Collection[int] | None) -> CompiledTemplate:
    """A plan for only some layers."""
    if layers is None:
        return plan
    return replace(plan, layers=[n for n in layers if plan.layers is None or n in plan.layers])


def started_groups(places: Iterable[TensorSlot]) -> frozenset[str]:
    """The groups that must be complete: those of these tensors, and the optional layers if one is in them."""
    needs = {need for place in places if (need := place.need) is not None}
    return frozenset(needs | {_OPTIONAL for need in needs if need.endswith(_OPTIONAL)})


def absent(dialect: Dialect, sizes: Sizes) -> frozenset[int]:
    """The layers that a dialect doesn't hold."""
    return frozenset[int]().union(*(dict(sizes.layers)[name] for name in dialect.without))


def _with_mtp_names(plan: CompiledTemplate) -> Iterator[CompiledTemplate]:
    """The plan itself, or one for each layer with another name and one for the others."""
    if not plan.mtp_name or plan.layers is None:
        yield plan
        return
    if plan.part != "mtp":
        yield replace(plan, layers=[n for n in plan.layers if n not in plan.optional])
    for number, layer in enumerate(sorted(plan.optional)):
        if layer in plan.layers and plan.part != "others":
            text, *_ = _printf(plan.mtp_name.replace("{n}", str(number)), "")
            yield replace(plan, text=text, unnamed=1, layers=[layer])


def _with_set_names(
    plan: CompiledTemplate, sets: Mapping[str, Collection[int]], counts: Mapping[str, int]
) -> Iterator[CompiledTemplate]:
    """The plan itself, or one for each layer of a set with another name and one for the others. `sets`: their layers,
    in a tuple as names number them."""
    kept = range(counts[plan.lead[0]]) if plan.set_names and plan.layers is None else plan.layers
    for name, format_ in plan.set_names:
        numbered = sets[name] if isinstance(sets[name], tuple) else sorted(sets[name])
        for number, layer in enumerate(numbered):
            if kept is not None and layer in kept:
                text, *_ = _printf(format_.replace("{n}", str(number)), "")
                yield replace(plan, text=text, unnamed=1, layers=[layer])
    named = frozenset[int]().union(*(sets[name] for name, _ in plan.set_names))
    yield replace(plan, layers=[n for n in kept or () if n not in named]) if named else plan


def index_counts(index: Mapping[str, str], sizes: Sizes) -> dict[str, int]:
    """The number of values of each index."""
    return {i: sizes.get(symbol) or 0 for i, symbol in index.items()}


def run(templates: Iterable[str], counts: Mapping[str, int], prefix: str) -> Iterator[str]:
    """The names of templates. FormatError if these have more names than any model has tensors."""
    runs = [_printf(template, prefix) for template in templates]
    _bound(math.prod(counts[i] for i in names) for _, names, _ in runs)
    return (
        text % values
        for text, names, before in runs
        for values in product(*(_numbers(i, other, counts) for i, other in zip(names, before, strict=True)))
    )


def _numbers(index: str, before: str, counts: Mapping[str, int]) -> range:
    start = counts.get(before, 0)
    return range(start, start + counts[index])


def first_name(template: str, counts: Mapping[str, int], prefix: str) -> str | None:
    """The first name of a template; None if it has no names."""
    text, names, before = _printf(template, prefix)
    return text % tuple(counts.get(i, 0) for i in before) if all(counts[i] > 0 for i in names) else None


def _bound(counts: Iterable[int]) -> None:
    """FormatError if there are too many tensors; sizes are untrusted, so this runs before any name is generated."""
    if (total := sum(counts)) > MAPPED_TENSORS:
        raise FormatError("the sizes ask for more tensors than any model has", expected=MAPPED_TENSORS, found=total)


@lru_cache(maxsize=4096)
def _printf(template: str, prefix: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Turns `model.layers.{l}.norm` into `model.layers.%d.norm` and its indices, three times as fast as `format`; and
    for each index the one whose numbers precede its own, or ""."""
    numbered = numbering(template)
    text = template.replace("%", "%%")
    outer = prefix.removesuffix("model.") if f".{prefix}".endswith(".model.") else ""  # `thinker.` of `thinker.model.`
    for placeholder, value in ((PREFIX, prefix), (OUTER, outer)):
        text = text.replace(f"{{{placeholder}}}", value.replace("%", "%%"))
    for name, other in numbered:
        text = text.replace(f"{{{name}+{other}}}" if other else f"{{{name}}}", "%d", 1)
    return text, tuple(name for name, _ in numbered), tuple(before for _, before in numbered)


def _plan(
    dialect: str, template: NameTemplate, rows: Mapping[str, Role], role_indices: Mapping[str, tuple[str, ...]],
    counts: Mapping[str, int], sizes: Sizes, prefix: str,
) -> CompiledTemplate:  # fmt: skip
    members = [rows[r] for r in template.roles]
    text, named, before = _printf(template.name, prefix)
    all_indices = role_indices[members[0].name]
    stacked = tuple(i for i in all_indices if i not in named)
    order = tuple((*named, *stacked).index(i) for i in all_indices)
    parts = tuple((row.name, _turned(shape_of(row, sizes, dialect), row.transposed(dialect))) for row in members)
    joined = (sum(shape[0] for _, shape in parts), *parts[0][1][1:]) if len(parts) > 1 else parts[0][1]
    product_or_joined = parts[0][1] if any(call.row.multiplies for call in template.layouts) else joined
    block = _turned(product_or_joined, sum(call.row.transposes for call in template.layouts) % 2 == 1)
    layouts = tuple((call, arguments(call, sizes)) for call in template.layouts)
    need = members[0].group or (f"only {members[0].name}" if members[0].optional else None)
    layers = _layers(members[0], sizes, counts[all_indices[0]]) if all_indices else None
    every = {} if layers is None else {all_indices[0]: sorted(layers)}
    runs = tuple(every.get(i, range(counts[i])) for i in stacked)
    lengths = tuple(map(len, runs))
    whole = (*lengths, *block)
    if block and dialect in (*members[0].unstacked, *members[0].as_metadata):
        whole = (math.prod(lengths) * block[0], *block[1:])
    whole = dimensions_of(template.shape, sizes) or whole
    interleave = sizes[template.interleave] if template.interleave else 0
    indices = (*named, *stacked)
    return CompiledTemplate(
        text, named[:1], named[1:], runs, order, parts, joined, layouts, block, whole, need, layers if named else None,
        interleave, indices, mtp_name=template.mtp_name, part=template.part, set_names=template.set_names,
        first=counts.get(before[0], 0) if before else 0,
        runs=tuple(counts[i] for i in named[1:]),
    )  # fmt: skip


def arguments(call: LayoutCall, sizes: Sizes, layer: int = 0) -> tuple[float, ...]:
    """The arguments of a layout for these sizes in this layer. There are no numbers of a config if the sizes come
    from a GGUF, whose tensors are multiplied already."""
    if call.row.from_config:
        return tuple(multiplier(key, sizes.facts) for key in call.symbols if sizes.facts)
    symbols = (layer if s == LAYER else ast.literal_eval(s) if is_number(s) else sizes[s] for s in call.symbols)
    return tuple(symbols)


def _turned(shape: Shape, swap: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def _layers(row: Role, sizes: Sizes, count: int) -> Collection[int] | None:
    """The layers of a role's set or slice `layers[lo:hi:step]`, in which an unknown size is 0. None: all."""
    if row.layers is None:
        return None
    if not isinstance(tree := expression.parse(row.layers), ast.Subscript):
        return dict(sizes.layers)[row.layers]
    known = dict(sizes.values)
    bounds = [None if bound is None else expression.evaluate(bound, known) or 0 for bound in slice_bounds(tree)]
    return range(*slice(*bounds).indices(count))


def _places(plans: Sequence[CompiledTemplate], counts: Mapping[str, int]) -> Iterator[TensorSlot]:
    """Runs templates with the same first index together, so that a layer's tensors are neighbours."""
    for lead, block in groupby(plans, key=lambda p: p.lead):
        group = list(block)
        for first in product(*(range(counts[i]) for i in lead)):
            for plan in group:
                if plan.layers is not None and first[0] not in plan.layers:
                    continue
                for rest in product(*map(range, plan.runs)):
                    yield TensorSlot(plan, first + rest)
