"""Divides quantized tensors among ranks without changing a code: each stored member is cut where the logical tensor is.
A cut through a word of codes, a block or a scale group is refused.

Two members are recomputed per rank, since they follow from the matrix's sizes: compressed-tensors' `weight_shape` and a
sequential `g_idx`. With activation order a rank's columns belong to all groups, so every rank gets all scales and its
own columns' group numbers, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.models.tensor_parallel.partition import Partition, RolePartitioner, Segment, slice_rank
from weighbridge.packings.schema.base import COLUMNS, AxisUse, StorageAxes, axes_of_blocks

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Sizes
    from weighbridge.models.arch.family import Family
    from weighbridge.packings.unpacking import PackedGroup
    from weighbridge.tensors.nodes import Node

_AXIS_NAMES: Final = ("rows", "columns")
_INTEGERS: Final = {"I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True)
class MatrixShape:
    """A stored [out, in] pair: of the whole matrix and of a rank's part."""

    whole: tuple[int, int]
    rank: tuple[int, int]


@dataclass(frozen=True)
class GroupIndex:
    """The group of each column, in ascending order: `columns` of them, `group` columns a group."""

    columns: int
    group: int


@dataclass(frozen=True)
class OneRank:
    """One expert's tensor, that `rank` has and no other."""

    rank: int


Split = Partition | MatrixShape | GroupIndex | None
_EXPERT: Final = "e"  # what tables call the index of an expert


class Splitter:
    """How the stored tensors of a model, quantized ones included, are divided among ranks."""

    def __init__(self, family: Family, dialect: str, sizes: Sizes, stored: Mapping[str, Node],
                 groups: Mapping[str, PackedGroup]) -> None:  # fmt: skip
        """`groups`: for each stored tensor that is a member of a packed tensor, the packed tensor."""
        names = {groups[name].name if name in groups else name for name in stored}
        self.family, self.dialect, self.sizes, self.stored = family, dialect, sizes, stored
        self.groups = {found.name: found for found in groups.values()}
        self.places = family.expansion(dialect, sizes, family.prefix_of(dialect, dict.fromkeys(names), sizes)).places

    def split(self, name: str, ranks: int) -> dict[str, Split]:
        """How each stored tensor of a logical one is divided. A tensor that the family's table doesn't have belongs to
        another part of the model and stays whole. UsageError if the ranks don't divide a size, UnsupportedError for a
        role without a rule."""
        place, found = self.places.get(name), self.groups.get(name)
        partition = RolePartitioner(self.family, self.dialect, self.sizes, ranks).partition(place) if place else None
        if found is None:
            spec = self.stored[name].spec
            if partition is not None and spec.dtype.kind is Kind.BLOCK and partition.axis == len(spec.shape) - 1:
                _, along = axes_of_blocks(spec.dtype)
                assert along is not None
                _member_segments(name, partition, along, ranks)  # refuses to cut a block
            return {name: partition}
        if partition is None:
            return dict.fromkeys(found.stored)
        return _split_members(found, partition, {s: self.stored[s] for s in found.stored}, ranks)

    def split_experts(self, name: str, ranks: int) -> Mapping[str, Split | OneRank] | None:
        """How each stored tensor of a logical one is divided where every expert stays whole, and the first rank has the
        first ones; None for what isn't experts'. UsageError if the ranks don't divide their number."""
        place = self.places.get(name)
        if place is None or _EXPERT not in place.indices:
            return None
        own, at = self.sizes.at(place.named), place.indices.index(_EXPERT)
        experts, found = own["E"], self.groups.get(name)
        if experts % ranks:
            raise UsageError(f"{name}: {plural(experts, 'expert')} can't be divided among {plural(ranks, 'rank')}")
        stored = {s: self.stored[s] for s in (found.stored if found else (name,))}
        if at < len(place.named):
            return dict.fromkeys(stored, OneRank(place.named[at] * ranks // experts))
        axis = at - len(place.named)
        if place.shape[axis] != experts:
            raise UnsupportedError(f"{name} doesn't stack its experts; they can't be kept whole")
        whole = Partition(axis, (Segment(experts),))
        return _split_members(found, whole, stored, ranks) if found else {name: whole}


def _split_members(
    found: PackedGroup, partition: Partition, stored: Mapping[str, Node], ranks: int
) -> dict[str, Split]:
    from weighbridge.tensors.nodes import QuantizedTensor

    spec = found.node.spec
    side = partition.axis - (len(spec.shape) - 2)
    if side < 0:
        return {name: _split_stack(name, node.spec, spec, partition) for name, node in stored.items()}
    layouts = found.match.storage_axes
    roles = {name: role for role, name in found.match.stored.items()}
    packing = found.node.packing if isinstance(found.node, QuantizedTensor) else None
    ordered = bool(getattr(packing, "ordered", False)) and side == COLUMNS
    out: dict[str, Split] = {}
    for name, node in stored.items():
        role = roles.get(name, "")
        if role == "shape":
            outer, inner = spec.shape
            local = sum(partition.local_sizes(ranks))
            out[name] = MatrixShape((outer, inner), (local, inner) if side == 0 else (outer, local))
        elif role == "g_idx" and side == COLUMNS and not ordered and _has_groups(node):
            out[name] = GroupIndex(spec.shape[-1], found.match.group or spec.shape[-1])
        elif ordered and role not in ("g_idx", found.match.schema.codes):
            out[name] = None
        else:
            out[name] = _split_member(name, node.spec, layouts[name], side, partition, ranks)
    return out


def _has_groups(node: Node) -> bool:
    """Whether a `g_idx` was ever filled in: -1 marks one that wasn't."""
    return int(node.read(0, 1).view(_INTEGERS[node.spec.dtype.name])[0]) >= 0


def _split_stack(name: str, spec: Spec, whole: Spec, partition: Partition) -> Split:
    """A split along a leading axis, which every per-matrix member has."""
    if len(spec.shape) > partition.axis and spec.shape[partition.axis] == whole.shape[partition.axis]:
        return partition
    if spec.elements == 1:
        return None
    raise UnsupportedError(f"{name} {spec} can't be split along axis {partition.axis} as its tensor {whole} is")


def _split_member(name: str, spec: Spec, layout: StorageAxes, side: int, partition: Partition, ranks: int) -> Split:
    """The split of a member along its own axis that runs along `side`; None if it has none."""
    first = len(spec.shape) - len(layout)
    for at, along in enumerate(layout):
        if along is not None and along.side == side:
            return Partition(first + at, tuple(_member_segments(name, partition, along, ranks)))
    return None


def _member_segments(name: str, partition: Partition, along: AxisUse, ranks: int) -> list[Segment]:
    each, entries = along.each, along.entries
    out = []
    for (size, copies), local in zip(partition.parts, partition.local_sizes(ranks), strict=True):
        if local % each:
            raise UsageError(
                f"{name}: each of {ranks} ranks would get {local:,} of {size:,} {_AXIS_NAMES[along.side]}, but "
                f"{each:,} share {along.what}, which can't be cut"
            )
        out.append(Segment(size // each * entries, copies))
    return out


def rank_part(node: Node, split: Split, rank: int, ranks: int) -> Node:
    """A rank's part of a stored tensor."""
    if isinstance(split, MatrixShape):
        return _integers(node, split.rank)
    if isinstance(split, GroupIndex):
        return _integers(node, tuple(c // split.group for c in range(split.columns // ranks)))
    return slice_rank(node, split, rank, ranks)


def _integers(like: Node, values: tuple[int, ...]) -> Node:
    """A 1-D constant of `like`'s integer type."""
    import numpy as np

    from weighbridge.tensors.nodes import const

    return const(np.array(values, _INTEGERS[like.spec.dtype.name]), like.spec.dtype)


def gather_numbers(like: Node, split: MatrixShape | GroupIndex) -> Node:
    """The whole tensor of a recomputed member, in the type of a rank's."""
    if isinstance(split, MatrixShape):
        return _integers(like, split.whole)
    return _integers(like, tuple(c // split.group for c in range(split.columns)))
