"""Several weights as one: q|k|v, gate|up, also of experts, stacked experts, and in every packing.

Parts of one type keep it: blocks follow one another, and each member of a packing is joined separately
([Wq|Wk|Wv|Sq|Sk|Sv|Bq|Bk|Bv]). Parts of several types can't form a single buffer; a `FusedWeight` then lists them
with the reason, or has their joined values with `mixed="decode"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from weighbridge.base.dtypes import F32, DType
from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.providers.dtypes import WeightType, type_of
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, as_node, concat, reshape
from weighbridge.tensors.slicing import part

Mixed = Literal["parts", "decode"]


@dataclass(frozen=True)
class FusedPart:
    """Neighbouring weights that are of one type, as one tensor."""

    names: tuple[str, ...]
    type: WeightType
    tensor: LogicalTensor


@dataclass(frozen=True)
class FusedWeight:
    """`parts` in the requested order; a single part if all have one type. `reason`: why there are several parts, or
    why a single one is decoded; empty if the weights keep their type in one buffer."""

    names: tuple[str, ...]
    axis: int
    parts: tuple[FusedPart, ...]
    reason: str = ""

    @property
    def single(self) -> bool:
        return len(self.parts) == 1

    @property
    def tensor(self) -> LogicalTensor:
        """The joined tensor. Raises UsageError, with the reason, if the weights have several types."""
        if not self.single:
            raise UsageError(
                f"{', '.join(self.names)} can't be one buffer: {self.reason}",
                hint='take .parts, or decode them: mixed="decode"',
            )
        return self.parts[0].tensor


def fuse(
    names: Sequence[str], tensors: Sequence[LogicalTensor], *, axis: int | None, mixed: Mixed, dtype: DType | None
) -> FusedWeight:
    """See `Provider.fuse`."""
    axis = _axis(tensors, axis)
    if dtype is not None:
        return _decoded(names, [as_node(t, dtype) for t in tensors], axis, "")
    kinds = [type_of(t).name for t in tensors]
    if len(set(kinds)) == 1:
        joined = join(tensors, axis)
        kept = isinstance(joined, QuantizedTensor) or not isinstance(tensors[0], QuantizedTensor)
        if kept or mixed == "decode":
            why = "" if kept else _why_decoded(joined)
            return FusedWeight(tuple(names), axis, (FusedPart(tuple(names), type_of(joined), joined),), why)
        reason = _why_decoded(joined)
        return FusedWeight(tuple(names), axis, tuple(map(_alone, names, tensors)), reason)
    reason = "the weights are of several types: " + ", ".join(f"{n} {k}" for n, k in zip(names, kinds, strict=True))
    if mixed == "decode":
        return _decoded(names, [as_node(t, F32) for t in tensors], axis, f"decoded, since {reason}")
    runs: list[FusedPart] = []
    for name, tensor in zip(names, tensors, strict=True):
        last = runs[-1] if runs else None
        if last is not None and last.type == type_of(tensor):
            joined = join([last.tensor, tensor], axis)
            if isinstance(joined, QuantizedTensor) or not isinstance(tensor, QuantizedTensor):
                runs[-1] = FusedPart((*last.names, name), last.type, joined)
                continue
        runs.append(_alone(name, tensor))
    return FusedWeight(tuple(names), axis, tuple(runs), reason)


def _axis(tensors: Sequence[LogicalTensor], axis: int | None) -> int:
    """Returns the default axis, that of the outputs: the last but one of matrices and stacks of matrices."""
    if not tensors:
        raise UsageError("no weights to fuse")
    rank = len(tensors[0].spec.shape)
    if axis is None:
        return max(rank - 2, 0)
    if not -rank <= axis < rank:
        raise UsageError(f"no axis {axis} in {tensors[0].spec}")
    return axis % rank


def _decoded(names: Sequence[str], nodes: Sequence[Node], axis: int, reason: str) -> FusedWeight:
    joined = concat(nodes, axis)
    return FusedWeight(tuple(names), axis, (FusedPart(tuple(names), type_of(joined), joined),), reason)


def _why_decoded(joined: LogicalTensor) -> str:
    from weighbridge.tensors.nodes import DecodePacked, walk

    nodes = walk(joined) if isinstance(joined, Node) else ()
    return next((n.reason for n in nodes if isinstance(n, DecodePacked)), "their parameters differ")


def _alone(name: str, tensor: LogicalTensor) -> FusedPart:
    return FusedPart((name,), type_of(tensor), tensor)


def join(tensors: Sequence[LogicalTensor], axis: int) -> LogicalTensor:
    """Tensors of one type on an axis. Stacks of packed matrices are joined matrix by matrix and stay packed."""
    shape = tensors[0].spec.shape
    stacked = len(shape) == 3 and axis == 1 and any(isinstance(t, QuantizedTensor) for t in tensors)
    if not stacked:
        return concat(tensors, axis)
    if len({t.spec.shape[::2] for t in tensors}) > 1:
        raise UsageError(f"stacks of {' and '.join(str(t.spec) for t in tensors)} can't be joined on axis {axis}")
    matrices = [reshape(part(t, e, e + 1), t.spec.shape[1:]) for e in range(shape[0]) for t in tensors]
    return reshape(concat(matrices), (shape[0], sum(t.spec.shape[1] for t in tensors), shape[2]))
