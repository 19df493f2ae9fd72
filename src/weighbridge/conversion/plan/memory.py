"""The rows of a tensor that are processed at a time, and the memory for that: computed before anything runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import RefusedError
from weighbridge.base.limits import MIB, SLAB
from weighbridge.base.spec import Spec
from weighbridge.tensors.nodes import CastReport, Const, Node, QuantizedTensor, Stored, walk

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


class SlabCost(NamedTuple):
    """Rows of a slab of a unit, the bytes it takes at most, and whether each slab costs a whole pass over a source."""

    rows: int
    memory: int
    striped: bool


class SlabCosts:
    """Slabs within a budget. Layers and experts are alike, so a model of 100,000 tensors has a few dozen costs."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._numbers: dict[Hashable, int] = {}  # of nodes; equal where all that bears on their cost is equal
        self._others: dict[int, int] = {}  # numbers of what isn't a node, by its identity
        self._known: dict[Hashable, SlabCost] = {}  # by the numbers of a unit's nodes

    def of(self, nodes: Sequence[Node], name: str) -> SlabCost:
        """The slabs of a unit. RefusedError where one row needs more than the budget."""
        key = tuple(map(self._number, nodes))
        if key not in self._known:
            rows = slab_rows(nodes, self._budget, name)
            striped = any(below.stripes for node in nodes for below in walk(node))
            self._known[key] = SlabCost(rows, slab_cost(nodes, rows), striped)
        return self._known[key]

    def _number(self, value: Any) -> Hashable:
        """Something that equals that of another value where these cost the same; where the bytes lie doesn't matter."""
        kind: object = type(value)
        if kind in _PLAIN:
            return value  # type: ignore[no-any-return]
        if isinstance(value, Stored):
            return value.spec
        if isinstance(value, Const):
            return kind, value.spec
        if kind is tuple:
            return tuple([self._number(each) for each in value])
        if isinstance(value, Node | QuantizedTensor):
            key = kind, *[self._number(getattr(value, name)) for name in _names(kind)]
            return self._numbers.setdefault(key, len(self._numbers))
        if isinstance(value, Mapping):
            return tuple(value), self._number(tuple(value.values()))
        return None if kind is CastReport else self._by_value(value)

    def _by_value(self, value: Any) -> Hashable:
        """A packing that equals another has its number; arrays go by identity."""
        if id(value) not in self._others:
            try:
                self._others[id(value)] = self._numbers.setdefault((type(value), value), len(self._numbers))
            except (TypeError, ValueError):  # it can't be hashed; a memoryview raises ValueError
                self._others[id(value)] = -id(value)
        return self._others[id(value)]


_PLAIN = frozenset((int, bool, str, type(None), Spec, DType))  # of fields that are compared by value


@cache
def _names(kind: object) -> tuple[str, ...]:
    """The fields of a class."""
    return tuple(field.name for field in fields(kind))  # type: ignore[arg-type]
