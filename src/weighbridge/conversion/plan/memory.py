"""The rows of a tensor that are processed at a time, and the memory for that: computed before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from weighbridge.base.errors import RefusedError
from weighbridge.base.limits import MIB, SLAB
from weighbridge.tensors.nodes import Node, walk

# Slabs that a node has to compute are smaller than copied ones: source, temporary and result then stay in the cache.
_COMPUTED_SLAB = MIB
_COMPUTED_COST = 4 * MIB
# Slabs that are examined to find a node's peak: its cost repeats along the rows, so a few dozen suffice.
_SAMPLES = 32


def slab_cost(nodes: Sequence[Node], rows: int) -> int:
    """The most bytes that reading any slab of `rows` rows of a unit needs, including its results."""
    total = nodes[0].spec.rows
    count = -(-total // rows) if rows else 0
    picks = range(count) if count <= _SAMPLES else {round(i * (count - 1) / (_SAMPLES - 1)) for i in range(_SAMPLES)}
    width = sum(node.spec.row_bytes for node in nodes)
    costs = (
        (hi - lo) * width + max(node.scratch(lo, hi) for node in nodes)
        for lo, hi in ((i * rows, min((i + 1) * rows, total)) for i in picks)
    )
    return max(costs, default=0)


def slab_rows(nodes: Sequence[Node], budget: int, name: str = "a tensor") -> int:
    """Rows of a unit per read: a slab's worth, or as many as the budget allows if every slab costs a whole pass."""
    total, width = nodes[0].spec.rows, sum(node.spec.row_bytes for node in nodes)
    if total == 0 or width == 0:
        return max(total, 1)
    if any(below.stripes for node in nodes for below in walk(node)):
        rows, bound = total, budget
    elif nodes[0].sources:
        rows, bound = min(total, max(1, _COMPUTED_SLAB // width)), min(budget, _COMPUTED_COST)
    else:
        rows, bound = min(total, max(1, SLAB // width)), budget
    while rows > 1 and slab_cost(nodes, rows) > bound:
        rows = -(-rows // 2)
    cost = slab_cost(nodes, rows)
    if cost > budget:
        raise RefusedError(
            f"{name}: one row needs {cost} bytes of memory at a time, the budget of a worker is {budget}",
            hint="raise --max-memory or lower --jobs",
        )
    return rows
