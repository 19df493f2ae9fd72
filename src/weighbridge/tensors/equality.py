"""Whether two tensors have the same bytes. Reads both, up to the first difference."""

from __future__ import annotations

from typing import Final

from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor
from weighbridge.tensors.nodes.base import RowRange, borrow

_COMPARED: Final = 2 << 20  # bytes of either side compared at a time


def same_bytes(a: LogicalTensor, b: LogicalTensor) -> bool:
    """Returns whether two tensors have the same type and bytes, NaN payloads included; packed tensors are compared
    member by member."""
    if isinstance(a, QuantizedTensor) and isinstance(b, QuantizedTensor):
        return a.packing == b.packing and all(same_bytes(a.members[m], b.members[m]) for m in a.members)
    if isinstance(a, QuantizedTensor) or isinstance(b, QuantizedTensor) or a.spec != b.spec:
        return False
    step = max(1, _COMPARED // max(a.spec.row_bytes, 1))
    return all(_same_rows(a, b, lo, min(lo + step, a.spec.rows)) for lo in range(0, a.spec.rows, step))


def _same_rows(a: Node, b: Node, lo: int, hi: int) -> bool:
    import numpy as np

    with borrow(RowRange(a, lo, hi), RowRange(b, lo, hi)) as pair:
        left, right = (data.view(np.uint64) if data.nbytes % 8 == 0 else data for data in pair)
        return bool((left == right).all())
