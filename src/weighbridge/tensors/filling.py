"""Reads whole tensors into memory: slab by slab, so that intermediate results stay in the cache, and with several
threads for large tensors (kernels and reads release the interpreter)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weighbridge.base.limits import MIB
from weighbridge.io.options import cores
from weighbridge.io.workers import Workers
from weighbridge.tensors.memory import new_bytes
from weighbridge.tensors.nodes import LogicalTensor, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node, RowRange, borrow, walk
from weighbridge.tensors.nodes.packed import PackedMember, make

#: Bytes of a result that are computed at a time.
SLAB: Final = MIB
#: Results of at least this size use several threads, which take about 0.1 ms to start.
THREADED: Final = 8 * MIB
_WORKERS: Final = min(cores(), 8)
_COMPARED: Final = 2 << 20  # bytes of either side compared at a time


def filled(node: Node) -> Bytes:
    """The bytes of a tensor in new memory."""
    out = new_bytes(node.spec.nbytes)
    fill(node, out)
    return out


def fill(node: Node, out: Bytes) -> None:
    """Reads all rows of a tensor into `out`, U8 [nbytes] of any alignment."""
    rows, width = node.spec.rows, node.spec.row_bytes
    step = max(1, SLAB // max(width, 1))
    if step >= rows or any(below.stripes for below in walk(node)):
        node.read(0, rows, out)
        return

    def slab(lo: int) -> None:
        hi = min(lo + step, rows)
        node.read(lo, hi, out[lo * width : hi * width])

    starts = range(0, rows, step)
    if out.nbytes < THREADED or _WORKERS == 1:
        for lo in starts:
            slab(lo)
        return
    with Workers(_WORKERS, "fill") as pool:
        for _ in pool.map(slab, starts):
            pass


def fill_all(nodes: Sequence[Node], outs: Sequence[Bytes]) -> None:
    """Reads several tensors. Parts that one packer computes from one source are filled together, so it is read once."""
    groups: dict[tuple[int, ...], list[tuple[Node, Bytes]]] = {}
    for i, (node, out) in enumerate(zip(nodes, outs, strict=True)):
        packed = isinstance(node, PackedMember) and not node.tall
        key = (id(node.source), id(node.packer), node.spec.rows) if isinstance(node, PackedMember) and packed else (i,)
        groups.setdefault(key, []).append((node, out))
    for group in groups.values():
        parts = [node for node, _ in group if isinstance(node, PackedMember)]
        if len(group) == 1 or len(parts) < len(group):
            fill(*group[0])
        else:
            rows = parts[0].spec.rows
            step = max(1, SLAB // max(parts[0].source.spec.row_bytes, 1))
            for lo in range(0, rows, step):
                hi = min(lo + step, rows)
                make(parts, lo, hi, [out[lo * node.spec.row_bytes : hi * node.spec.row_bytes] for node, out in group])


def same_bytes(a: LogicalTensor, b: LogicalTensor) -> bool:
    """Returns whether two tensors have the same type and bytes, NaN payloads included; packed tensors are compared
    member by member. Reads both, up to the first difference."""
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
