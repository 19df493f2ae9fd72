"""Random trees of nodes over random bytes, each with the array it must equal. Shared by the laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.spec import Spec
from weighbridge.io.source import BytesSource
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes.base import Node, Stored

#: dtypes of moves: one-byte to eight-byte atoms, two block types
MOVED = ("U8", "F16", "F32", "F64", "Q8_0", "Q4_0", "F4")


@dataclass
class Tree:
    """A node and its atoms as an array [..., row atoms] of void scalars."""

    node: Node
    want: np.ndarray[Any, Any]

    @property
    def data(self) -> bytes:
        return self.want.tobytes()


def stored(shape: tuple[int, ...], dtype: DType, seed: int, lead: int = 3) -> Tree:
    """A stored tensor at an odd offset in a source that has more bytes before and after."""
    spec = Spec(shape, dtype)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, lead + spec.nbytes + 5, np.uint8).tobytes()
    atoms = (*shape[:-1], shape[-1] // dtype.block) if shape else ()
    want = np.frombuffer(raw, f"V{dtype.size}", spec.atoms, lead).reshape(atoms)
    return Tree(Stored(spec, BytesSource(raw), lead), want)


@st.composite
def leaves(draw: Callable[..., Any], rank: tuple[int, int] = (1, 3)) -> Tree:
    dtype = BY_NAME[draw(st.sampled_from(MOVED))]
    lead = draw(st.lists(st.integers(0, 5), min_size=rank[0] - 1, max_size=rank[1] - 1))
    last = draw(st.integers(0, 4)) * dtype.block
    return stored((*lead, last), dtype, draw(st.integers(0, 2**32)))


@st.composite
def trees(draw: Callable[..., Any], depth: int = 3) -> Tree:
    tree: Tree = draw(leaves())
    for _ in range(draw(st.integers(0, depth))):
        tree = draw(st.sampled_from(MOVES))(draw, tree)
    return tree


def _slice(draw: Callable[..., Any], tree: Tree) -> Tree:
    shape = tree.node.spec.shape
    if len(shape) < 2:
        return tree
    flat = tree.want.reshape(math.prod(shape[:-1]), tree.want.shape[-1])
    lo = draw(st.integers(0, len(flat)))
    hi = draw(st.integers(lo, len(flat)))
    return Tree(nodes.slice_rows(tree.node, lo, (hi - lo, shape[-1])), flat[lo:hi])


def _concat(draw: Callable[..., Any], tree: Tree) -> Tree:
    shape, dtype = tree.node.spec.shape, tree.node.spec.dtype
    axis = draw(st.integers(0, len(shape) - 1))
    block = dtype.block if axis == len(shape) - 1 else 1
    other = (*shape[:axis], draw(st.integers(0, 3)) * block, *shape[axis + 1 :])
    more = stored(other, dtype, draw(st.integers(0, 2**32)))
    pair = [tree, more] if draw(st.booleans()) else [more, tree]
    return Tree(nodes.concat([p.node for p in pair], axis), np.concatenate([p.want for p in pair], axis))


def _split_join(draw: Callable[..., Any], tree: Tree) -> Tree:
    """Cut in two and put together again: the same tensor."""
    shape = tree.node.spec.shape
    if len(shape) != 2:
        return tree
    cut = draw(st.integers(0, shape[0]))
    parts = [
        nodes.slice_rows(tree.node, 0, (cut, shape[1])),
        nodes.slice_rows(tree.node, cut, (shape[0] - cut, shape[1])),
    ]
    return Tree(nodes.concat(parts), tree.want)


def _gather(draw: Callable[..., Any], tree: Tree) -> Tree:
    rows = tree.node.spec.rows
    order = np.array(draw(st.permutations(range(rows))), np.int64)
    width = tree.node.spec.row_atoms
    want = tree.want.reshape(rows, width)[order].reshape(tree.want.shape)
    return Tree(nodes.gather(tree.node, order), want)


def _reshape(draw: Callable[..., Any], tree: Tree) -> Tree:
    spec = tree.node.spec
    shape = draw(st.sampled_from([(1, *spec.shape), (*spec.shape[:-1], 1, spec.shape[-1]), (spec.elements,)]))
    atoms = (*shape[:-1], shape[-1] // spec.dtype.block)
    return Tree(nodes.reshape(tree.node, shape), tree.want.reshape(atoms))


def _stack(draw: Callable[..., Any], tree: Tree) -> Tree:
    twin = stored(tree.node.spec.shape, tree.node.spec.dtype, draw(st.integers(0, 2**32)))
    return Tree(nodes.stack([tree.node, twin.node]), np.stack([tree.want, twin.want]))


def _transpose(draw: Callable[..., Any], tree: Tree) -> Tree:
    if len(tree.node.spec.shape) < 2 or not tree.node.spec.dtype.plain:
        return tree
    return Tree(nodes.transpose(tree.node), np.swapaxes(tree.want, -1, -2))


def _strided(draw: Callable[..., Any], tree: Tree) -> Tree:
    spec = tree.node.spec
    if not spec.dtype.plain or spec.elements < 2:
        return tree
    line = tree.want.reshape(-1)
    rows = draw(st.integers(1, 3))
    step, start = draw(st.integers(0, 2)), draw(st.integers(0, spec.elements - 1))
    width = 1 + (spec.elements - 1 - start) // max(step, 1) // 2 if step else 2
    down = draw(st.sampled_from([0, -1])) if start >= rows else 0
    index = start + down * np.arange(rows)[:, None] + step * np.arange(width)[None, :]
    flat = nodes.reshape(tree.node, (spec.elements,))
    return Tree(nodes.strided(flat, start, (rows, width), (down, step)), line[index])


MOVES = (_slice, _concat, _split_join, _gather, _reshape, _stack, _transpose, _strided)
