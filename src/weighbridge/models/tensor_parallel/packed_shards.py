"""What a quantized tensor is stored in, shared out as the tensor is: every part at its own entries, so that no code
changes. A share that would cut a word of codes, a block, or the columns under one scale is refused.

A few parts are numbers that follow from the matrix's sizes, and are a rank's own: compressed-tensors' `weight_shape`,
the group of each column where groups come in turn. Where columns were grouped in the order of activations, a rank's
columns are of all groups: it has every group's scales, and its columns' numbers of them (so does vLLM).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.models.tensor_parallel.partition import Partition, RolePartitioner, Segment, slice_rank

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Sizes
    from weighbridge.models.arch.family import Family
    from weighbridge.packings import Found
    from weighbridge.packings.storage_axes import AxisUse, StorageAxes
    from weighbridge.tensors.nodes import Node

_NAMES: Final = ("rows", "columns")
_KINDS: Final = {"I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True)
class MatrixShape:
    """A matrix's [out, in] as numbers."""

    whole: tuple[int, int]
    rank: tuple[int, int]


@dataclass(frozen=True)
class GroupIndex:
    """The group of each column, groups in turn."""

    columns: int
    group: int


Split = Partition | MatrixShape | GroupIndex | None


class Splitter:
    """How the tensors of a model, quantized ones too, are shared out."""

    def __init__(self, family: Family, dialect: str, sizes: Sizes, stored: Mapping[str, Node],
                 groups: Mapping[str, Found]) -> None:  # fmt: skip
        """`groups`: of each stored tensor that is a part of a logical one."""
        names = {groups[name].name if name in groups else name for name in stored}
        self.family, self.dialect, self.sizes, self.stored = family, dialect, sizes, stored
        self.groups = {found.name: found for found in groups.values()}
        self.places = family.expansion(dialect, sizes, family.prefix_of(dialect, dict.fromkeys(names), sizes)).places

    def of(self, name: str, ranks: int) -> dict[str, Split]:
        """How what a logical tensor is stored in is shared out. UsageError where the ranks don't divide what must be
        divided, UnsupportedError for a role that no rule is known for. A tensor of another part of the model, which the
        family's table doesn't have, is whole on every rank."""
        place, found = self.places.get(name), self.groups.get(name)
        share = RolePartitioner(self.family, self.dialect, self.sizes, ranks).share(place) if place else None
        if found is None:
            _check_blocks(name, self.stored[name].spec, share, ranks)
            return {name: share}
        if share is None:
            return dict.fromkeys(found.stored)
        return _group(found, share, {s: self.stored[s] for s in found.stored}, ranks)


def _check_blocks(name: str, spec: Spec, share: Partition | None, ranks: int) -> None:
    from weighbridge.packings import storage_axes as axes

    if share is not None and spec.dtype.kind is Kind.BLOCK and share.axis == len(spec.shape) - 1:
        _, along = axes.of_blocks(spec.dtype)
        assert along is not None
        _part_of(name, share, along, ranks)


def _group(found: Found, share: Partition, stored: Mapping[str, Node], ranks: int) -> dict[str, Split]:
    from weighbridge.packings import storage_axes as axes

    spec = found.node.spec
    side = share.axis - (len(spec.shape) - 2)
    if side < 0:
        return {name: _stack(name, node.spec, spec, share) for name, node in stored.items()}
    lies = axes.lies(found, {name: node.spec for name, node in stored.items()})
    ordered = _is_ordered(found) and side == axes.COLUMNS
    out: dict[str, Split] = {}
    for name, node in stored.items():
        if name.endswith(axes.SHAPE):
            out[name] = _shape(spec, share, side, ranks)
        elif name.endswith(axes.ORDER) and side == axes.COLUMNS and not ordered and _in_turn(node):
            out[name] = GroupIndex(spec.shape[-1], _columns_of_scale(lies) or spec.shape[-1])
        elif ordered and not name.endswith((*axes.ORDER, ".qweight", ".weight_packed", ".weight")):
            out[name] = None
        else:
            out[name] = _stored(name, node.spec, lies[name], side, share, ranks)
    return out


def _is_ordered(found: Found) -> bool:
    from weighbridge.tensors.nodes import QuantizedTensor

    node = found.node
    return isinstance(node, QuantizedTensor) and bool(getattr(node.packing, "ordered", False))


def _in_turn(node: Node) -> bool:
    """Whether groups of columns are said at all: -1 says that they never were."""
    return int(node.read(0, 1).view(_KINDS[node.spec.dtype.name])[0]) >= 0


def _columns_of_scale(lies: Mapping[str, StorageAxes]) -> int | None:
    scales = next(lie for name, lie in lies.items() if name.endswith(("scales", "weight_scale")))
    return next((along.each for along in scales if along is not None and along.side == 1), None)


def _stack(name: str, spec: Spec, whole: Spec, share: Partition) -> Split:
    """A cut along a leading axis, which every part has that says something of single matrices."""
    if len(spec.shape) > share.axis and spec.shape[share.axis] == whole.shape[share.axis]:
        return share
    if spec.elements == 1:
        return None
    raise UnsupportedError(f"{name} {spec} can't be cut as its tensor {whole} is, on axis {share.axis}")


def _shape(spec: Spec, share: Partition, side: int, ranks: int) -> MatrixShape:
    outer, inner = spec.shape
    local = sum(share.local(ranks))
    return MatrixShape((outer, inner), (local, inner) if side == 0 else (outer, local))


def _stored(name: str, spec: Spec, lie: StorageAxes, side: int, share: Partition, ranks: int) -> Split:
    """A part at its own entries."""
    first = len(spec.shape) - len(lie)
    for at, along in enumerate(lie):
        if along is not None and along.side == side:
            return Partition(first + at, tuple(_part_of(name, share, along, ranks)))
    return None


def _part_of(name: str, share: Partition, along: AxisUse, ranks: int) -> list[Segment]:
    each, entries = along.each, along.entries
    out = []
    for (size, copies), local in zip(share.parts, share.local(ranks), strict=True):
        if local % each:
            raise UsageError(
                f"{name}: of {size:,} {_NAMES[along.side]} a rank of {ranks} would have {local:,}, but {each:,} share "
                f"{along.what}, and it can't be cut"
            )
        out.append(Segment(size // each * entries, copies))
    return out


def rank_part(node: Node, how: Split, rank: int, ranks: int) -> Node:
    """A rank's share of a stored tensor."""
    if isinstance(how, MatrixShape):
        return _numbers(node, how.rank)
    if isinstance(how, GroupIndex):
        return _numbers(node, tuple(c // how.group for c in range(how.columns // ranks)))
    return slice_rank(node, how, rank, ranks)


def _numbers(like: Node, values: tuple[int, ...]) -> Node:
    """Whole numbers as a tensor of another's type."""
    import numpy as np

    from weighbridge.tensors.nodes import const

    return const(np.array(values, _KINDS[like.spec.dtype.name]), like.spec.dtype)


def gather_numbers(like: Node, how: MatrixShape | GroupIndex) -> Node:
    """The whole tensor of such numbers, in the type of a rank's."""
    if isinstance(how, MatrixShape):
        return _numbers(like, how.whole)
    return _numbers(like, tuple(c // how.group for c in range(how.columns)))
