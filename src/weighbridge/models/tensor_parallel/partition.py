"""How a tensor is divided among the ranks of a tensor-parallel group: ranges of one axis. The tensor's role decides the
axis and the unit (`partition_rules`). A head is never cut; with fewer key/value heads than ranks, each one is stored on
several ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.models.arch.expand import Sizes, TensorSlot, shape_of
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.size_keys import HEADS
from weighbridge.models.arch.tables.spec import LayoutCall, Role
from weighbridge.models.tensor_parallel.partition_rules import SplitRule, Unit, rule_of
from weighbridge.tensors.layout_table import Run

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node


class Segment(NamedTuple):
    """`size` entries of an axis that are divided evenly, each stored on `copies` ranks."""

    size: int
    copies: int = 1


@dataclass(frozen=True)
class Partition:
    """A tensor divided along `axis`, each of its segments evenly among the ranks."""

    axis: int
    parts: tuple[Segment, ...]

    def ranges(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """A rank's entries of the axis, one half-open range for each segment."""
        out, start = [], 0
        for size, copies in self.parts:
            each = size * copies // ranks
            first = start + rank // copies * each
            out.append((first, first + each))
            start += size
        return out

    def local_sizes(self, ranks: int) -> tuple[int, ...]:
        """How many entries of each segment a rank has."""
        return tuple(size * copies // ranks for size, copies in self.parts)


def slice_rank(node: Node, partition: Partition | None, rank: int, ranks: int) -> Node:
    """A rank's part of a tensor; the whole tensor without a partition."""
    from weighbridge.tensors.slicing import take

    return node if partition is None else take(node, partition.axis, partition.ranges(rank, ranks))


def gather(nodes: Sequence[Node], partition: Partition | None) -> Node:
    """The whole tensor from every rank's part, in rank order."""
    from weighbridge.tensors.nodes import concat
    from weighbridge.tensors.slicing import take

    if partition is None:
        return nodes[0]
    out, start = [], 0
    for (_, copies), size in zip(partition.parts, partition.local_sizes(len(nodes)), strict=True):
        out += [take(node, partition.axis, [(start, start + size)]) for node in nodes[::copies]]
        start += size
    return concat(out, partition.axis)


def gather_parts(nodes: Sequence[Node], axis: int | None, sections: Sequence[int]) -> Node:
    """The whole tensor from equal parts along an axis; None: each is whole. `sections`: sizes along the axis of each
    part's sections, which are joined with those of the others."""
    if axis is None or len(nodes) == 1:
        return nodes[0]
    return gather(nodes, Partition(axis, tuple(Segment(size * len(nodes)) for size in sections)))


# ------------------------------------------------------------------------------------------------ by the family's table


def partition_tensors(
    family: Family, dialect: str, sizes: Sizes, names: Mapping[str, Any], ranks: int
) -> dict[str, Partition | None]:
    """How each tensor of a model is divided; None: whole on every rank. UnsupportedError for a role without a
    rule, UsageError if the number of ranks doesn't divide a size."""
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, names, sizes)).places
    partitioner = RolePartitioner(family, dialect, sizes, ranks)
    return {name: partitioner.partition(places[name]) for name in names if name in places}


class _AxisUnits(NamedTuple):
    """The axis to divide and the runs along it."""

    axis: int
    runs: list[Run]


_HEADS: Final = ("H", "HS")  # the numbers of attention heads, and of those in layers with a window


@dataclass(frozen=True)
class RolePartitioner:
    """Divides a model's tensors by role, for a number of ranks."""

    family: Family
    dialect: str
    sizes: Sizes
    ranks: int

    @property
    def heads(self) -> int:
        """The number of attention heads."""
        facts = self.sizes.facts
        return self.sizes.get("H") or next((int(n) for key in HEADS.config if (n := facts.get(key))), 1)

    @property
    def state_heads(self) -> int:
        """The number of state-space heads or channels: the rows of A, else the channels of the convolution."""
        row = self.family.rows.get("a_log") or self.family.rows["conv"]
        return shape_of(row, self.sizes)[0]

    def partition(self, place: TensorSlot) -> Partition | None:
        """How the tensor at `place` is divided; see `partition_tensors`."""
        own = self.sizes.at(place.named)
        if own is not self.sizes:
            return replace(self, sizes=own).partition(place)
        rows = [self.family.rows[role] for role in place.roles]
        rules = {rule_of(self.family, row) for row in rows}
        if len({rule and rule.axis for rule in rules}) > 1:
            raise UnsupportedError(f"{place.name} joins roles that are split along different axes")
        rule = rules.pop()
        if rule is None:
            return None
        stacked = place.indices[len(place.named) :]
        heads = next((symbol for index in stacked if (symbol := self.family.index[index]) in _HEADS), None)
        if heads is not None:  # one tensor per head, stacked or concatenated
            axis, runs = 0, [Run(place.shape[0], self.sizes[heads])]
        else:
            axis, runs = self._axis_units(place, rows)
        if sum(run.size for run in runs) != place.shape[axis]:
            raise UnsupportedError(f"{place.name} has parts of unknown sizes; it can't be split")
        return Partition(axis, tuple(self._segment(place.name, rule.unit, run) for run in runs))

    def _axis_units(self, place: TensorSlot, rows: Sequence[Role]) -> _AxisUnits:
        """The axis of the stored tensor and its runs."""
        by_role = [self._role_units(row, rule) for row in rows if (rule := rule_of(self.family, row))]
        axis, rank = by_role[0].axis, len(rows[0].shapes.get(self.dialect, rows[0].shape))
        runs = [run for units in by_role for run in units.runs]
        if place.plan.interleave:
            runs = [Run(sum(place.heights), place.plan.interleave)]
        transposed = rows[0].transposed(self.dialect)
        for via, _ in place.plan.layouts:
            transposed ^= via.row.transposes
            laid = [] if via.row.transposes or len(rows) > 1 else self._layout_units(via, sum(run.size for run in runs))
            if not via.row.transposes and not laid:
                raise UnsupportedError(f"{place.name} interleaves its roles ({via}); it can't be split")
            runs = laid or runs
        if transposed:
            axis = 2 * rank - 3 - axis  # the last two axes swap
        return _AxisUnits(len(place.shape) - rank + axis, runs)

    def _role_units(self, row: Role, rule: SplitRule) -> _AxisUnits:
        dims = row.shapes.get(self.dialect, row.shape)
        if dims == ("G", "W"):  # a norm per group: divide inside a single group, else group by group
            groups = self.sizes["G"]
            inside = groups == 1
            run = Run(self.sizes["W"], self.state_heads) if inside else Run(groups, groups)
            return _AxisUnits(int(inside), [run])
        size = shape_of(row, self.sizes, self.dialect)[rule.axis]
        via = row.layouts.get(self.dialect)
        if via is not None and not via.row.splits:
            raise UnsupportedError(f"{row.name!r} has the layout {via}, which can't be split")
        if via is not None and (found := self._layout_units(via, size)):
            return _AxisUnits(rule.axis, found)
        return _AxisUnits(rule.axis, self._units(row, rule, dims[rule.axis], size))

    def _layout_units(self, via: LayoutCall, size: int) -> list[Run]:
        """The runs of a layout that regroups heads; [] for other layouts."""
        return via.row.runs(size, *(self.sizes[s] for s in via.symbols)) if via.row.runs else []

    def _units(self, row: Role, rule: SplitRule, dim: str, size: int) -> list[Run]:
        """The runs of a role along its axis, which its shape calls `dim`."""
        if rule.unit is Unit.HEADS:
            return [Run(size, self._own(dim, "HS") or self.heads)]
        if rule.unit is Unit.KV_HEADS:
            layers_own = self._own(dim, "GK") or self._own(dim, "KS")
            heads = layers_own or self.sizes.get("KV") or (1 if row.shape[0] == "D" else self.heads)
            return [Run(size, heads, copied=True)]
        if rule.unit is Unit.KEY_HEADS:
            return [Run(size, self.sizes["G"])]
        if rule.unit is Unit.STATE_HEADS:
            return self._concatenated(dim, rule.unit)
        if rule.unit is not Unit.QKV:
            return [Run(size, size)]
        if (via := row.layouts.get("gguf")) is not None and via.layout == "parted":  # q, k and v within each group
            return [Run(size, self.sizes[via.symbols[1]])]
        return self._concatenated(row.shape[0], rule.unit)

    def _own(self, dim: str, size: str) -> int | None:
        """The number of heads of the layers with a window (HS, KS) or with full attention (GK), if a shape has it."""
        return self.sizes.get(size) if size in dim else None

    def _concatenated(self, dim: str, unit: Unit) -> list[Run]:
        """The terms of `3*N`, `N+2*D`: queries, keys and values, or the inputs of a state space, per head or per group
        for inputs that its heads share."""
        out: list[Run] = []
        for term in dim.split("+"):
            symbols = term.split("*")
            count = int(symbols.pop(0)) if symbols[0].isdigit() else 1
            size = math.prod(self.sizes[s] for s in symbols)
            if unit is Unit.STATE_HEADS:
                shared = "G" in symbols
                units = self.sizes["G"] if shared else self.state_heads
            else:
                shared = bool(out)
                units = self.heads if not out or size == out[0].size else 1 if symbols == ["D"] else self.sizes["KV"]
            out += [Run(size, units, shared)] * count
        return out

    def _segment(self, name: str, unit: Unit, run: Run) -> Segment:
        size, units, copied = run
        ranks = self.ranks
        if units and units % ranks == 0 and size % units == 0:
            return Segment(size)
        if copied and units and ranks % units == 0 and size % units == 0:
            return Segment(size, ranks // units)
        raise UsageError(
            f"{name}: {plural(units, 'unit')} ({unit}) can't be divided evenly among {plural(ranks, 'rank')}",
            hint=f"use a number of ranks that divides {units:,} and the other sizes",
        )
