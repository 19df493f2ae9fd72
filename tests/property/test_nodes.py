"""The laws of nodes, over random trees of moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.examples import examples
from tests.property.trees import MOVED, Tree, stored, trees

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UsageError
from weighbridge.conversion.plan.contents import SlabCosts
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes.base import Node, Stored


@given(trees())
@examples(400)
def test_a_tree_equals_the_array_it_stands_for(tree: Tree) -> None:
    assert tree.node.read_all().tobytes() == tree.data


@given(trees(), st.data())
@examples(300)
def test_read_is_additive(tree: Tree, data: st.DataObject) -> None:
    """read(a, c) = read(a, b) ++ read(b, c), and into a buffer of any alignment."""
    rows, width = tree.node.spec.rows, tree.node.spec.row_bytes
    a = data.draw(st.integers(0, rows))
    b = data.draw(st.integers(a, rows))
    c = data.draw(st.integers(b, rows))
    whole = tree.node.read(a, c)
    assert whole.tobytes() == tree.data[a * width : c * width]
    odd = np.zeros((c - a) * width + 1, np.uint8)[1:]
    tree.node.read(a, b, odd[: (b - a) * width])
    tree.node.read(b, c, odd[(b - a) * width :])
    assert odd.tobytes() == whole.tobytes()


@given(trees(), st.data())
@examples(300)
def test_the_spec_equals_what_is_read(tree: Tree, data: st.DataObject) -> None:
    spec = tree.node.spec
    assert spec.rows * spec.row_bytes == spec.nbytes == len(tree.node.read_all())
    lo = data.draw(st.integers(0, spec.rows))
    assert len(tree.node.read(lo, spec.rows)) == (spec.rows - lo) * spec.row_bytes


@given(st.lists(trees(), min_size=2, max_size=4))
@examples(100)
def test_what_is_known_of_the_slabs_of_a_node_holds_for_those_that_are_alike(several: list[Tree]) -> None:
    costs = SlabCosts(1 << 20)
    for tree in several:
        assert costs.of([tree.node], "x") == SlabCosts(1 << 20).of([tree.node], "x")


class _Watched(Node):
    """A stored tensor that remembers which of its rows were read."""

    def __init__(self, inner: Node) -> None:
        object.__setattr__(self, "spec", inner.spec)
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "seen", set())

    def _read(self, lo, hi, out):
        self.seen.update(range(lo, hi))  # type: ignore[attr-defined]
        self.inner.read(lo, hi, out)  # type: ignore[attr-defined]

    def needs(self, lo, hi):
        return []


@given(trees(), st.data())
@examples(300)
def test_needs_names_all_rows_that_are_read(tree: Tree, data: st.DataObject) -> None:
    """What a node says it needs is enough: rows outside of it are never touched."""
    rows = tree.node.spec.rows
    lo = data.draw(st.integers(0, rows))
    hi = data.draw(st.integers(lo, rows))
    top = _watch(tree.node)
    if isinstance(top, _Watched) or lo == hi or not tree.node.spec.row_bytes:
        return
    named = {(id(r.node), row) for r in top.needs(lo, hi) for row in range(r.lo, r.hi)}
    top.read(lo, hi)
    read = {(id(w), row) for w in top.sources if isinstance(w, _Watched) for row in w.seen}  # type: ignore[attr-defined]
    assert read <= named


def _watch(node: Node) -> Node:
    """The node with its direct sources watched."""
    from dataclasses import replace

    if isinstance(node, nodes.Concat):
        return replace(node, parts=tuple(_Watched(p) for p in node.parts))
    return replace(node, source=_Watched(node.source)) if node.sources else _Watched(node)  # type: ignore[call-arg,attr-defined]


@given(trees(), st.data())
@examples(200)
def test_scratch_bounds_what_is_allocated(tree: Tree, data: st.DataObject) -> None:
    """No read allocates more than `scratch` says (and a little for index arithmetic)."""
    rows = tree.node.spec.rows
    lo = data.draw(st.integers(0, rows))
    hi = data.draw(st.integers(lo, rows))
    out = np.empty((hi - lo) * tree.node.spec.row_bytes, np.uint8)
    bound = tree.node.scratch(lo, hi)
    with traced_memory() as memory:
        tree.node.read(lo, hi, out)
    assert memory.peak <= 2 * bound + 64_000


@pytest.mark.parametrize("name", MOVED)
def test_a_round_trip_of_gathers_is_the_tensor_itself(name: str) -> None:
    tree = stored((6, 2 * BY_NAME[name].block), BY_NAME[name], 1)
    order = np.array([3, 1, 4, 0, 5, 2], np.int64)
    back = nodes.gather(nodes.gather(tree.node, order), np.argsort(order))
    assert back is tree.node


def test_a_join_of_neighbouring_cuts_is_a_copy_again() -> None:
    """Split and joined, an unchanged tensor is still one stored run, so it is copied and not computed."""
    tree = stored((6, 4), BY_NAME["F32"], 1)
    parts = [nodes.slice_rows(tree.node, at, (2, 4)) for at in (0, 2, 4)]
    assert all(isinstance(p, Stored) for p in parts)
    joined = nodes.concat(parts)
    assert isinstance(joined, Stored)
    assert joined.spec == tree.node.spec


def test_a_join_in_another_order_is_not_mistaken_for_the_tensor() -> None:
    tree = stored((4, 4), BY_NAME["F32"], 1)
    a, b = (nodes.slice_rows(tree.node, at, (2, 4)) for at in (0, 2))
    assert nodes.concat([b, a]).read_all().tobytes() == tree.data[32:] + tree.data[:32]


def test_two_transposes_are_none() -> None:
    tree = stored((3, 5), BY_NAME["F16"], 1)
    assert nodes.transpose(nodes.transpose(tree.node)) is tree.node


@pytest.mark.parametrize(
    "build",
    [
        lambda t: nodes.slice_rows(t, 3, (4, 4)),
        lambda t: nodes.slice_rows(t, 0, (2, 8)),
        lambda t: nodes.reshape(t, (5, 5)),
        lambda t: nodes.gather(t, np.array([0, 1])),
        lambda t: nodes.gather(t, np.array([0, 1, 2, 9])),
        lambda t: nodes.concat([t, nodes.reshape(t, (2, 8))], 0),
        lambda t: nodes.strided(nodes.reshape(t, (16,)), 0, (4, 5), (4, 1)),
        lambda t: nodes.strided(nodes.reshape(t, (16,)), 0, (2, 2), (-1, 1)),
        lambda t: nodes.flat_range(t, 8, (3, 3)),
        lambda t: nodes.transpose(nodes.reshape(t, (16,))),
        lambda t: t.read(2, 5),
        lambda t: t.read(0, 1, np.empty(3, np.uint8)),
    ],
)
def test_what_makes_no_sense_is_refused(build) -> None:
    with pytest.raises(UsageError):
        build(stored((4, 4), BY_NAME["F32"], 1).node)
