"""How a tensor is shared out among the ranks of a tensor-parallel group: runs of its entries along one axis. Which
that is, and between which units it is cut, is said by the role (`rules`); heads are never cut, and where there are
fewer key heads than ranks, each is on several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.models.arch.expand import Sizes, TensorSlot, shape_of
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.spec import LayoutCall, Role
from weighbridge.models.tensor_parallel.partition_rules import Rule, Unit, rule_of

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
# Layouts of a dialect that leave every row in its head, or whose runs are known here.
_LAYOUTS: Final = frozenset(
    {"rope", "halves", "shift", "neg_exp", "times", "transpose", "parted", "tiled", "tiled_columns", "padded"}
)


class Segment(NamedTuple):
    """A run of entries that is shared out by itself: `size` entries, each unit of them on `copies` ranks."""

    size: int
    copies: int = 1


@dataclass(frozen=True)
class Partition:
    """How a tensor is shared out: on `axis`, every part in as many runs as there are ranks (over copies)."""

    axis: int
    parts: tuple[Segment, ...]

    def runs(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """A rank's entries of the axis."""
        out, start = [], 0
        for size, copies in self.parts:
            each = size * copies // ranks
            first = start + rank // copies * each
            out.append((first, first + each))
            start += size
        return out

    def local(self, ranks: int) -> tuple[int, ...]:
        """How many entries a rank has of each part."""
        return tuple(size * copies // ranks for size, copies in self.parts)


def slice_rank(node: Node, share: Partition | None, rank: int, ranks: int) -> Node:
    """A rank's share of a tensor."""
    from weighbridge.tensors.slicing import take

    return node if share is None else take(node, share.axis, share.runs(rank, ranks))


def gather(nodes: Sequence[Node], share: Partition | None) -> Node:
    """The tensor whose shares these are, rank by rank."""
    from weighbridge.tensors.nodes import concat
    from weighbridge.tensors.slicing import take

    if share is None:
        return nodes[0]
    out, start = [], 0
    for (_, copies), size in zip(share.parts, share.local(len(nodes)), strict=True):
        out += [take(node, share.axis, [(start, start + size)]) for node in nodes[::copies]]
        start += size
    return concat(out, share.axis)


# ------------------------------------------------------------------------------------------------ by the family's table


def partition_tensors(
    family: Family, dialect: str, sizes: Sizes, names: Mapping[str, Any], ranks: int
) -> dict[str, Partition | None]:
    """How each of a model's tensors is shared out; None: whole on every rank. UnsupportedError for a role that no rule
    is known for, UsageError where the ranks don't divide what must be divided."""
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, names, sizes)).places
    cutter = RolePartitioner(family, dialect, sizes, ranks)
    return {name: cutter.share(places[name]) for name in names if name in places}


class _Units(NamedTuple):
    """A part of a role along its axis: entries, units, and whether a unit may be on several ranks."""

    size: int
    units: int
    copied: bool = False


class _AxisUnits(NamedTuple):
    """The axis of a role's shape in a dialect, and the parts there."""

    axis: int
    runs: list[_Units]


@dataclass(frozen=True)
class RolePartitioner:
    """The sizes of a model, and how many ranks there are."""

    family: Family
    dialect: str
    sizes: Sizes
    ranks: int

    @property
    def heads(self) -> int:
        """Attention heads."""
        said = self.sizes.facts
        return self.sizes.get("H") or next((int(n) for key in _HEADS if (n := said.get(key))), 1)

    @property
    def state_heads(self) -> int:
        """Heads, or channels, of a state space: what A is there for; of a convolution alone its channels."""
        rows = self.family.rows
        row = rows.get("a_log") or rows["conv"]
        return shape_of(row, self.sizes)[0]

    def share(self, place: TensorSlot) -> Partition | None:
        rows = [self.family.rows[role] for role in place.roles]
        rules = {rule_of(row) for row in rows}
        if len(rules) > 1 and len({rule and rule.axis for rule in rules}) > 1:
            raise UnsupportedError(f"{place.name} joins what is cut on different axes")
        rule = rules.pop()
        if rule is None:
            return None
        stacked = place.indices[len(place.named) :]
        if "h" in stacked:  # one tensor a head, in a stack or one under the other
            axis, runs = 0, [_Units(place.shape[0], self.sizes["H"])]
        else:
            axis, runs = self._cut(place, rows)
        return Partition(axis, tuple(self._part(place.name, rule.unit, run) for run in runs))

    def _cut(self, place: TensorSlot, rows: Sequence[Role]) -> _AxisUnits:
        """The axis of the stored tensor that is cut, and its parts."""
        cuts = [self._of_role(row, rule) for row in rows if (rule := rule_of(row))]
        axis, rank = cuts[0].axis, len(rows[0].shapes.get(self.dialect, rows[0].shape))
        runs = [run for cut in cuts for run in cut.runs]
        if place.interleave:
            runs = [_Units(sum(place.heights), place.interleave)]
        turned = rows[0].transposed(self.dialect)
        for via, _ in place.plan.layouts:
            turned ^= via.transposes
            laid = [] if via.transposes or len(rows) > 1 else self._laid(via, sum(run.size for run in runs))
            if not via.transposes and not laid:
                raise UnsupportedError(f"{place.name} joins its parts so that they can't be shared out by themselves")
            runs = laid or runs
        if turned:
            axis = 2 * rank - 3 - axis  # the last two change places
        return _AxisUnits(len(place.shape) - rank + axis, runs)

    def _of_role(self, row: Role, rule: Rule) -> _AxisUnits:
        dims = row.shapes.get(self.dialect, row.shape)
        if dims == ("G", "W"):  # a norm of all groups: of one group cut inside it, or group by group
            groups = self.sizes["G"]
            inside = groups == 1
            return _AxisUnits(
                int(inside), [_Units(self.sizes["W"], self.state_heads) if inside else _Units(groups, groups)]
            )
        whole = shape_of(row, self.sizes, self.dialect)[rule.axis]
        via = row.layouts.get(self.dialect)
        if via is not None and via.layout not in _LAYOUTS:
            raise UnsupportedError(f"{row.name!r} lies so ({via}) that it can't be shared out")
        if via is not None and (found := self._laid(via, whole)):
            return _AxisUnits(rule.axis, found)
        return _AxisUnits(rule.axis, self._runs(row, rule, dims[rule.axis], whole))

    def _laid(self, via: LayoutCall, whole: int) -> list[_Units]:
        """The runs of a layout that takes heads apart; [] of others."""
        if via.layout == "parted":
            heads, groups = (self.sizes[s] for s in via.symbols)
            width = whole // (heads + 2 * groups)
            return [_Units(heads * width, heads), *[_Units(groups * width, groups, copied=True)] * 2]
        if via.layout.startswith("tiled"):  # one of each group, then the next of each
            groups, heads = (self.sizes[s] for s in via.symbols)
            turns = heads // groups
            return [_Units(whole // turns, groups)] * turns
        return []

    def _runs(self, row: Role, rule: Rule, dim: str, whole: int) -> list[_Units]:
        """The parts of a role along its axis."""
        if rule.unit is Unit.HEAD:
            return [_Units(whole, self.heads)]
        if rule.unit is Unit.KV_HEAD:
            wide = self.sizes.get("GK") if "GK" in dim else None  # Gemma 4's layers that see all tokens
            key_heads = wide or self.sizes.get("KV") or (1 if row.shape[0] == "D" else self.heads)
            return [_Units(whole, key_heads, copied=True)]
        if rule.unit is Unit.KEY_HEAD:
            return [_Units(whole, self.sizes["G"])]
        if rule.unit is Unit.STATE:
            return self._state_terms(dim)
        if rule.unit is not Unit.FUSED:
            return [_Units(whole, whole)]
        if (via := row.layouts.get("gguf")) is not None and via.layout == "parted":  # each group has its own three
            return [_Units(whole, self.sizes[via.symbols[1]])]
        return self._fused_terms(row.shape[0])

    def _fused_terms(self, dim: str) -> list[_Units]:
        """Queries, keys and values one under the other: `3*N`, `N+2*D`."""
        out: list[_Units] = []
        for count, symbols in _terms(dim):
            size = math.prod(self.sizes[s] for s in symbols)
            units = self.heads if not out or size == out[0].size else 1 if symbols == ["D"] else self.sizes["KV"]
            out += [_Units(size, units, copied=bool(out))] * count
        return out

    def _state_terms(self, dim: str) -> list[_Units]:
        """What goes into a state space, one under the other: by heads, and what a group of heads shares by groups."""
        out: list[_Units] = []
        for count, symbols in _terms(dim):
            size = math.prod(self.sizes[s] for s in symbols)
            shared = "G" in symbols
            out += [_Units(size, self.sizes["G"] if shared else self.state_heads, shared)] * count
        return out

    def _part(self, name: str, unit: Unit, run: _Units) -> Segment:
        size, units, copied = run
        ranks = self.ranks
        if units and units % ranks == 0 and size % units == 0:
            return Segment(size)
        if copied and units and ranks % units == 0 and size % units == 0:
            return Segment(size, ranks // units)
        raise UsageError(
            f"{name}: {ranks} ranks can't share {units:,} evenly ({unit})",
            hint=f"a number of ranks that divides {units:,}, and what else is cut",
        )


def _terms(dim: str) -> list[tuple[int, list[str]]]:
    """`2*I+G*S` as how often and of which sizes."""
    out = []
    for term in dim.split("+"):
        symbols = term.split("*")
        count = int(symbols.pop(0)) if symbols[0].isdigit() else 1
        out.append((count, symbols))
    return out
