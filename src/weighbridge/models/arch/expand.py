"""From templates and sizes to names: every tensor that a dialect must, may or must not hold, with its shape and parts.

Names are generated from the sizes and looked up, never matched: so what is missing and what is left over is known by
name. Pure arithmetic over shapes, no numpy, so that inspecting a file costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from typing import Any, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MAPPED_TENSORS
from weighbridge.base.spec import Shape
from weighbridge.models.arch.rows import PREFIX, Dialect, Row, Template, placeholders

Instance = tuple[str, tuple[int, ...]]  # a role and its indices: one logical tensor


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model by symbol, its architecture, and the effective config they come from (`facts`; empty where
    they come from a GGUF)."""

    values: tuple[tuple[str, int], ...]
    architecture: str
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    def get(self, symbol: str) -> int | None:
        return next((n for s, n in self.values if s == symbol), None)

    def __getitem__(self, symbol: str) -> int:
        if (n := self.get(symbol)) is None:
            raise KeyError(symbol)
        return n

    def __contains__(self, symbol: object) -> bool:
        return any(s == symbol for s, _ in self.values)


class Cell(NamedTuple):
    """One logical tensor inside a physical one: rows [start, start + rows of its shape)."""

    instance: Instance
    start: int
    shape: Shape


class Place(NamedTuple):
    """One physical tensor of a dialect. `need`: None if it must be there, else the name of the all-or-none group."""

    name: str
    shape: Shape
    cells: tuple[Cell, ...]
    need: str | None


@dataclass(frozen=True)
class Expansion:
    """All names of one dialect for one model."""

    places: Mapping[str, Place]
    dropped: frozenset[str]


def shape_of(row: Row, sizes: Sizes) -> Shape:
    return tuple(math.prod(int(s) if s.isdigit() else sizes[s] for s in dim.split("*")) for dim in row.shape)


def height(shape: Shape) -> int:
    """Rows of a logical tensor: a vector has one element a row."""
    return math.prod(shape[:-1]) if len(shape) > 1 else shape[0]


def applies(row: Row, sizes: Sizes) -> bool:
    """Whether the role exists in a model of these sizes: its condition holds and the sizes in its shape are known."""
    if row.when and (row.when.lstrip("!") in sizes) == row.when.startswith("!"):
        return False
    return all(s.isdigit() or s in sizes for dim in row.shape for s in dim.split("*"))


@dataclass(frozen=True)
class _Plan:
    """A template ready to be run through its indices."""

    template: Template
    rows: tuple[Row, ...]
    shapes: tuple[Shape, ...]
    stacked: tuple[str, ...]
    shape: Shape
    order: tuple[str, ...]  # the roles' indices, in the order of an instance


def expand(
    dialect: Dialect, rows: Mapping[str, Row], role_indices: Mapping[str, tuple[str, ...]], index: Mapping[str, str],
    sizes: Sizes, prefix: str,
) -> Expansion:  # fmt: skip
    """Every place of a dialect, layer by layer in the order of the table, and every name it drops."""
    counts = {i: sizes.get(symbol) or 0 for i, symbol in index.items()}
    plans = [_plan(t, rows, role_indices, counts, sizes) for t in dialect.templates if applies(rows[t.roles[0]], sizes)]
    wanted = sum(math.prod(counts[i] for i in p.order) * len(p.rows) for p in plans)
    if wanted > MAPPED_TENSORS:
        raise FormatError("the sizes ask for more tensors than any model has", expected=MAPPED_TENSORS, found=wanted)
    places = {place.name: place for place in _places(plans, counts, prefix)}
    dropped = frozenset(name for template in dialect.drop for name in _run(template, counts, prefix))
    return Expansion(places, dropped)


def _run(template: str, counts: Mapping[str, int], prefix: str) -> Iterator[str]:
    names = [i for i in placeholders(template) if i != PREFIX]
    for values in product(*(range(counts[i]) for i in names)):
        yield template.format(**{PREFIX: prefix}, **dict(zip(names, values, strict=True)))


def _plan(
    template: Template, rows: Mapping[str, Row], role_indices: Mapping[str, tuple[str, ...]], counts: Mapping[str, int],
    sizes: Sizes,
) -> _Plan:  # fmt: skip
    members = tuple(rows[r] for r in template.roles)
    order = role_indices[members[0].name]
    shapes = tuple(shape_of(r, sizes) for r in members)
    stacked = tuple(i for i in order if i not in template.indices)
    joined = (sum(s[0] for s in shapes), *shapes[0][1:])
    return _Plan(template, members, shapes, stacked, (*(counts[i] for i in stacked), *joined), order)


def _places(plans: Sequence[_Plan], counts: Mapping[str, int], prefix: str) -> Iterator[Place]:
    """Rows that share their first named index run together, so that a layer's tensors are neighbours."""
    for lead, block in groupby(plans, key=lambda p: p.template.indices[:1]):
        group = list(block)
        for n in range(counts[lead[0]]) if lead else (None,):
            for plan in group:
                rest = plan.template.indices[len(lead) :]
                for values in product(*(range(counts[i]) for i in rest)):
                    fixed = {**({lead[0]: n} if lead else {}), **dict(zip(rest, values, strict=True))}
                    yield _place(plan, fixed, counts, prefix)


def _place(plan: _Plan, fixed: Mapping[str, int | None], counts: Mapping[str, int], prefix: str) -> Place:
    cells, start = [], 0
    for values in product(*(range(counts[i]) for i in plan.stacked)):
        at: dict[str, Any] = {**fixed, **dict(zip(plan.stacked, values, strict=True))}
        index = tuple(at[i] for i in plan.order)
        for row, shape in zip(plan.rows, plan.shapes, strict=True):
            cells.append(Cell((row.name, index), start, shape))
            start += height(shape)
    first = plan.rows[0]
    need = first.group or (f"only {first.name}" if first.optional else None)
    return Place(plan.template.name.format(**{PREFIX: prefix}, **fixed), plan.shape, tuple(cells), need)
