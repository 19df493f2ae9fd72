"""Named layout changes: how a tensor's rows are arranged in one dialect and in another.

A layout is two-way (`undo(apply(t))` is `t`), says whether it is `exact`, and is named by architecture tables as
`name(arguments)`, the arguments being sizes of the model (`rope(H)`). A row move never looks inside a row, so it serves
plain and block-quantized tensors alike. The arithmetic is in pure functions that give an order of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError
from weighbridge.tensors.nodes import (
    LogicalTensor,
    QuantizedTensor,
    RowOrder,
    T,
    apply_function,
    cast,
    concat,
    decode,
    gather,
    is_plain,
    normalize_rows,
    product,
    reshape,
    scaled,
    shift,
    slice_rows,
    transpose,
    zeros,
)


class TensorLayout(Protocol):
    """A two-way layout change. `exact`: `undo(apply(t))` restores every bit; if not, the plan lists it as a loss."""

    @property
    def exact(self) -> bool: ...

    def apply(self, node: T) -> T: ...

    def undo(self, node: T) -> T: ...


@lru_cache(maxsize=64)
def rope_order(rows: int, heads: int) -> NDArray[np.int64]:
    """The order of ggml's rows: row i of the interleaved tensor is row `order[i]` of the one with halves.

    Hugging Face rotates the pairs (j, j + d/2) of a head of d rows, ggml's NORM rope the pairs (2j, 2j + 1).
    llama.cpp `LlamaModel.permute`: reshape(heads, 2, d/2, ...), swap axes 1 and 2.
    """
    if heads <= 0 or rows % (2 * heads):
        raise FormatError("rotary heads don't divide the rows", expected=f"a multiple of {2 * heads}", found=rows)
    order = np.arange(rows, dtype=np.int64).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).ravel()
    order.setflags(write=False)
    return order


@lru_cache(maxsize=64)
def ordered(order_of: Callable[..., NDArray[np.int64]], *arguments: int) -> RowOrder:
    """The order `order_of(*arguments)`, checked once for all tensors that have it."""
    return RowOrder(order_of(*arguments))


@lru_cache(maxsize=64)
def inverse(order_of: Callable[..., NDArray[np.int64]], *arguments: int) -> RowOrder:
    """The inverse of the order `order_of(*arguments)`."""
    order = order_of(*arguments)
    back = np.empty_like(order)
    back[order] = np.arange(order.size, dtype=np.int64)
    back.setflags(write=False)
    return RowOrder(back)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary halves of each head (Hugging Face) <-> adjacent pairs (ggml)."""

    heads: int
    exact: bool = True

    def apply(self, node: T) -> T:
        return gather(node, ordered(rope_order, node.spec.rows, self.heads))

    def undo(self, node: T) -> T:
        return gather(node, inverse(rope_order, node.spec.rows, self.heads))


@lru_cache(maxsize=64)
def halves_order(rows: int, heads: int, rotated: int) -> NDArray[np.int64]:
    """The row order that turns the adjacent pairs (2j, 2j + 1) in the first `rotated` rows of each head into halves
    (j, j + rotated/2): GPT-J's rotation as GPT-NeoX's, which ggml calls NEOX."""
    if heads <= 0 or rows % heads or rotated % 2 or not 0 < rotated <= rows // heads:
        raise FormatError(
            "the rotated rows aren't pairs within a head", expected=f"an even part of {rows}", found=rotated
        )
    table = np.arange(rows, dtype=np.int64).reshape(heads, rows // heads)
    order = np.concatenate([table[:, :rotated:2], table[:, 1:rotated:2], table[:, rotated:]], axis=1).ravel()
    order.setflags(write=False)
    return order


@dataclass(frozen=True, slots=True)
class NeoxPairs:
    """Adjacent pairs in the rotated part of each head (Hugging Face's GPT-J) <-> halves (ggml's NEOX)."""

    heads: int
    rotated: int
    exact: bool = True

    def apply(self, node: T) -> T:
        return gather(node, ordered(halves_order, node.spec.rows, self.heads, self.rotated))

    def undo(self, node: T) -> T:
        return gather(node, inverse(halves_order, node.spec.rows, self.heads, self.rotated))


@lru_cache(maxsize=64)
def parted_order(rows: int, heads: int, groups: int) -> NDArray[np.int64]:
    """The row order that gathers all queries, then all keys, then all values, from groups that each store their
    queries, key and value together (GPT-NeoX, BLOOM: one group per head; Falcon: several heads per group)."""
    if groups <= 0 or heads <= 0 or heads % groups or rows % (heads + 2 * groups):
        raise FormatError("heads don't divide the rows", expected=f"a multiple of {heads + 2 * groups}", found=rows)
    each, width = heads // groups, rows // (heads + 2 * groups)
    table = np.arange(rows, dtype=np.int64).reshape(groups, each + 2, width)
    order = np.concatenate([table[:, :each].ravel(), table[:, each].ravel(), table[:, each + 1].ravel()])
    order.setflags(write=False)
    return order


@dataclass(frozen=True, slots=True)
class SplitQkv:
    """Queries, key and value group by group (Hugging Face) <-> all queries, all keys, all values (ggml)."""

    heads: int
    groups: int
    exact: bool = True

    def apply(self, node: T) -> T:
        return gather(node, ordered(parted_order, node.spec.rows, self.heads, self.groups))

    def undo(self, node: T) -> T:
        return gather(node, inverse(parted_order, node.spec.rows, self.heads, self.groups))


@dataclass(frozen=True, slots=True)
class Transposed:
    """The last two axes swapped: the weight of a Conv1D, a key projection absorbed into the query."""

    exact: bool = True

    def apply(self, node: T) -> T:
        return transpose(node)

    def undo(self, node: T) -> T:
        return transpose(node)


@dataclass(frozen=True, slots=True)
class Shifted:
    """A number added to each element: a norm that multiplies by 1 + w (Gemma) or 1/5 + w (PLaMo 2) <-> by w (ggml). It
    is rounded to F32, and so is the sum, as torch does; in a round trip an element keeps the bits that the sum has.
    That is exact of 1 and weights from BF16, else within half a step of the larger of sum and element."""

    by: float
    exact: bool = False

    def apply(self, node: T) -> T:
        return shift(node, self.by)

    def undo(self, node: T) -> T:
        return shift(node, -self.by)


@dataclass(frozen=True, slots=True)
class NegExp:
    """A_log (Hugging Face) <-> A = -exp(A_log) (ggml), in F32. A round trip restores all bits of numbers that were
    BF16 or F16 or are at least 1 in magnitude, and others within 2^-22 (`log_neg` of tensors/functions.py)."""

    exact: bool = False

    def apply(self, node: T) -> T:
        return apply_function(node, "neg_exp")

    def undo(self, node: T) -> T:
        return apply_function(node, "log_neg")


@dataclass(frozen=True, slots=True)
class Times:
    """Each element times several numbers in turn: multipliers in a config (Hugging Face) <-> folded into the weights
    (ggml). Each product is rounded, so a round trip is exact within about 2^-23 per factor."""

    factors: tuple[float, ...]
    exact: bool = False

    def apply(self, node: T) -> T:
        for by in self.factors:
            node = scaled(node, by)
        return node

    def undo(self, node: T) -> T:
        for by in reversed(self.factors):
            node = scaled(node, by, over=True)
        return node


@dataclass(frozen=True, slots=True)
class UnitRows:
    """Rows that the model normalizes to length 1 at run time (Hugging Face's NormHead) <-> rows of that length
    (ggml). `undo` leaves them normalized: the model computes the same."""

    exact: bool = False

    def apply(self, node: T) -> T:
        return normalize_rows(node)

    def undo(self, node: T) -> T:
        return node


@dataclass(frozen=True, slots=True)
class Multiplied:
    """Two vectors, one behind the other (Hugging Face: a norm, and a matrix of one row) <-> their product, with which
    alone the model computes (ggml). Which factor had which share is lost: `undo` gives ones and the product, which
    multiply to the same bits again."""

    exact: bool = False

    def apply(self, node: T) -> T:
        half = node.spec.rows // 2
        return product(slice_rows(node, 0, (half,)), slice_rows(node, half, (half,)))

    def undo(self, node: T) -> T:
        ones = shift(zeros(node.spec.shape, F32), 1.0)
        return concat([ones, cast(node, F32)])


def times(*factors: float) -> Times:
    return Times(factors)


@dataclass(frozen=True, slots=True)
class Halved:
    """A matrix (Hugging Face) <-> halved once more in every so many layers, as llama.cpp halves what flows between them
    (RWKV 6). Exact, but for the smallest numbers."""

    layer: int
    every: int
    exact: bool = False

    def apply(self, node: T) -> T:
        return scaled(node, self._by, over=True)

    def undo(self, node: T) -> T:
        return scaled(node, self._by)

    @property
    def _by(self) -> float:
        return 2.0 ** (self.layer // self.every)


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows for the first `rows` tokens (Hugging Face) <-> padded with zeros to the number of all tokens (ggml)."""

    rows: int
    all: int
    exact: bool = True

    def apply(self, node: T) -> T:
        if self.rows > self.all:
            raise FormatError("more rows than tokens", expected=f"at most {self.all}", found=self.rows)
        if self.rows == self.all:
            return node
        if not is_plain(node):
            node = decode(node, "rows of zeros are appended")
        return concat([node, zeros((self.all - self.rows, *node.spec.shape[1:]), node.spec.dtype)])

    def undo(self, node: T) -> T:
        return slice_rows(node, 0, (self.rows, *node.spec.shape[1:]))


@lru_cache(maxsize=64)
def interleaved_order(groups: int, *heights: int) -> NDArray[np.int64]:
    """The row order that interleaves stacked parts of these heights: each group gets its share of every part."""
    if groups <= 0 or any(h % groups for h in heights):
        raise FormatError("groups don't divide the rows", expected=f"multiples of {groups}", found=heights)
    starts = np.concatenate([[0], np.cumsum(heights)[:-1]])
    parts = [start + np.arange(h, dtype=np.int64).reshape(groups, -1) for start, h in zip(starts, heights, strict=True)]
    order = np.concatenate(parts, axis=1).ravel()
    order.setflags(write=False)
    return order


def unstacked_order(count: int, groups: int, *heights: int) -> NDArray[np.int64]:
    """The row order that takes `count` interleaved tensors apart: the first part of each, then the second of each."""
    inside = inverse(interleaved_order, groups, *heights).rows
    starts = len(inside) * np.arange(count, dtype=np.int64)[:, None]
    parts = np.split(inside, np.cumsum(heights)[:-1])
    return np.concatenate([(starts + part).ravel() for part in parts])


@dataclass(frozen=True, slots=True)
class InterleaveGroups:
    """Stacked parts <-> group by group (Qwen3-Next: each key head has its query, key, values and gates)."""

    groups: int
    heights: tuple[int, ...]
    exact: bool = True

    def apply(self, node: T) -> T:
        return gather(node, ordered(interleaved_order, self.groups, *self.heights))

    def undo(self, node: T) -> T:
        return gather(node, inverse(interleaved_order, self.groups, *self.heights))

    def undo_stack(self, node: T, count: int) -> T:
        """The rows of `count` such tensors that follow each other: the first part of each, then the second of each."""
        return gather(node, ordered(unstacked_order, count, self.groups, *self.heights))


@lru_cache(maxsize=64)
def tiled_order(groups: int, heads: int, width: int, times: int = 1) -> NDArray[np.int64]:
    """The row order in which the heads (`width` rows each) of all groups take turns: the first of each group, then the
    second of each. `times`: repeat for that many stacked parts.

    llama.cpp b11549, conversion/qwen.py `_reorder_v_heads`: reshape(groups, heads/groups, width), swap axes 0 and 1.
    """
    if groups <= 0 or heads <= 0 or heads % groups:
        raise FormatError("groups don't divide the heads", expected=f"a multiple of {groups}", found=heads)
    order = np.arange(times * heads * width, dtype=np.int64)
    order = order.reshape(times, groups, heads // groups, width).swapaxes(1, 2).ravel()
    order.setflags(write=False)
    return order


@dataclass(frozen=True, slots=True)
class Tiled:
    """Rows of value heads, grouped by key head (Hugging Face) <-> one of each key head, then the next of each (ggml,
    which repeats key heads as a whole: Qwen 3.5)."""

    groups: int
    heads: int
    exact: bool = True

    def apply(self, node: T) -> T:
        return gather(node, self._order(self.groups, node))

    def undo(self, node: T) -> T:
        return gather(node, self._order(self.heads // self.groups if self.groups else 0, node))

    def _order(self, groups: int, node: LogicalTensor) -> RowOrder:
        """The inverse of tiling is tiling with as many groups as a group has heads."""
        if self.heads <= 0 or node.spec.rows % self.heads:
            raise FormatError(
                "heads don't divide the rows", expected=f"a multiple of {self.heads}", found=node.spec.rows
            )
        return ordered(tiled_order, groups, self.heads, node.spec.rows // self.heads)


@dataclass(frozen=True, slots=True)
class TiledColumns:
    """As `tiled_heads`, for the columns of a matrix, whose inputs are the heads. Each row is split into its heads; a
    quantized matrix with blocks across heads is decoded first."""

    groups: int
    heads: int
    exact: bool = True

    def apply(self, node: T) -> T:
        return self._moved(self.groups, node)

    def undo(self, node: T) -> T:
        return self._moved(self.heads // self.groups if self.groups else 0, node)

    def _moved(self, groups: int, node: T) -> T:
        *lead, columns = node.spec.shape
        if self.heads <= 0 or columns % self.heads:
            raise FormatError("heads don't divide the columns", expected=f"a multiple of {self.heads}", found=columns)
        if groups == 1 or groups == self.heads:
            return node
        times, width = math.prod(lead), columns // self.heads
        if _cuts_blocks(node, width):
            node = decode(node, "its columns are moved")
        heads = gather(reshape(node, (times * self.heads, width)), ordered(tiled_order, groups, self.heads, 1, times))
        return reshape(heads, (*lead, columns))


def _cuts_blocks(node: LogicalTensor, width: int) -> bool:
    return isinstance(node, QuantizedTensor) or width % node.spec.dtype.block != 0


# name -> its constructor, which takes the sizes (or numbers, or the config's at these keys) named in brackets
LAYOUTS: Final[Mapping[str, Callable[..., TensorLayout]]] = MappingProxyType(
    {
        "rope": Rope,
        "halves": NeoxPairs,
        "parted": SplitQkv,
        "transpose": Transposed,
        "shift": Shifted,
        "neg_exp": NegExp,
        "tiled": Tiled,
        "tiled_columns": TiledColumns,
        "times": times,
        "padded": Padded,
        "halved": Halved,
        "unit": UnitRows,
        "multiplied": Multiplied,
    }
)


def layout(name: str, *arguments: float) -> TensorLayout:
    """The layout that a table calls `name(arguments)`."""
    return LAYOUTS[name](*arguments)
