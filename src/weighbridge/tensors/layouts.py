"""Named layout changes: how a tensor's rows are arranged in one dialect and in another.

A layout is two-way (`undo(apply(t))` is `t`) and declares whether it is `exact`, or it is one-way: a dialect has more
than the role's own layout, so `undo` is all there is. Family tables call it as
`name(arguments)`, the arguments being sizes of the model (`rope(H)`); `layout_table.py` has a row for each name. A row
move never looks inside a row, so it serves plain and block-quantized tensors alike. Its arithmetic is a pure function
that returns an order of rows: `order_of(rows, *arguments)` is I64 [rows], and row i is row `order[i]` of the source.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Protocol

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.tensors.layout_table import LAYOUTS
from weighbridge.tensors.nodes import (
    LogicalTensor,
    Node,
    QuantizedTensor,
    RowOrder,
    T,
    add_position,
    apply_function,
    cast,
    centered,
    concat,
    decode,
    gather,
    is_plain,
    normalize_rows,
    pairwise,
    reshape,
    round_ternary,
    row_orders,
    scaled,
    shift,
    slice_rows,
    spread_ternary,
    transpose,
    zeros,
)
from weighbridge.tensors.nodes.row_orders import (
    halves_apart_order,
    interleaved_order,
    inverse_order,
    tiled_heads_order,
)

#: (rows, *arguments) -> I64 [rows], without numpy: a plan of a small model then doesn't load it
OrderOf = Callable[..., "array[int]"]


class TensorLayout(Protocol):
    """A layout change. `exact`: `undo(apply(t))` restores every bit; if not, the plan lists it as a loss. A one-way
    change can't be applied: UnsupportedError."""

    @property
    def exact(self) -> bool: ...

    def apply(self, node: T) -> T: ...

    def undo(self, node: T) -> T: ...


@lru_cache(maxsize=64)
def ordered(order_of: OrderOf, rows: int, *arguments: int) -> RowOrder:
    """The order `order_of(rows, *arguments)`, checked once for all tensors that have it."""
    return RowOrder(order_of(rows, *arguments))


@lru_cache(maxsize=64)
def inverse(order_of: OrderOf, rows: int, *arguments: int) -> RowOrder:
    """The inverse of the order `order_of(rows, *arguments)`."""
    return RowOrder(inverse_order(order_of(rows, *arguments)))


@dataclass(frozen=True, slots=True)
class RowMove:
    """Rows in the order `order_of(rows, *arguments)`."""

    order_of: OrderOf
    arguments: tuple[int, ...]
    exact: bool = True

    def apply(self, node: T) -> T:
        return gather(node, ordered(self.order_of, node.spec.rows, *self.arguments))

    def undo(self, node: T) -> T:
        return gather(node, inverse(self.order_of, node.spec.rows, *self.arguments))


def interleave(groups: int, heights: tuple[int, ...]) -> RowMove:
    """Stacked parts of these heights <-> group by group."""
    return RowMove(interleaved_order, (groups, *heights))


def _separated_order(rows: int, count: int, groups: int, *heights: int) -> array[int]:
    """The order that separates the parts of `count` interleaved tensors that follow each other: the first part of
    each tensor, then the second of each."""
    within = inverse(interleaved_order, rows // count, groups, *heights).rows
    order = array("q")
    for start, height in zip(accumulate(heights, initial=0), heights, strict=False):
        part = within[start : start + height]
        steps = range(part[0], part[-1] + 1, part[1] - part[0]) if height > 1 else part
        even = array("q", steps) == part  # a range is ten times as fast to repeat
        for first in range(0, count * len(within), len(within)):
            if even and isinstance(steps, range):
                order.extend(range(first + steps.start, first + steps.stop, steps.step))
            else:
                order.extend(first + row for row in part)
    return order


def separate_stack(node: T, count: int, groups: int, heights: tuple[int, ...]) -> T:
    """The rows of `count` interleaved tensors that follow each other: the first part of each, then the second."""
    return gather(node, ordered(_separated_order, node.spec.rows, count, groups, *heights))


@dataclass(frozen=True, slots=True)
class TiledColumns:
    """As `tiled_order`, for the columns of a matrix whose inputs are the heads. Each row is split into its heads; a
    quantized matrix with blocks across heads is decoded first."""

    groups: int
    heads: int
    exact: bool = True

    def apply(self, node: T) -> T:
        return self._move(node, ordered)

    def undo(self, node: T) -> T:
        return self._move(node, inverse)

    def _move(self, node: T, order: Callable[..., RowOrder]) -> T:
        *lead, columns = node.spec.shape
        if self.heads <= 0 or columns % self.heads:
            raise FormatError("heads don't divide the columns", expected=f"a multiple of {self.heads}", found=columns)
        if self.groups in (1, self.heads):
            return node
        rows, width = math.prod(lead) * self.heads, columns // self.heads
        if _cuts_blocks(node, width):
            node = decode(node, "its columns are moved")
        heads = gather(reshape(node, (rows, width)), order(tiled_heads_order, rows, self.groups, self.heads))
        return reshape(heads, (*lead, columns))


@dataclass(frozen=True, slots=True)
class Transposed:
    """The last two axes swapped: the weight of a Conv1D, a key projection absorbed into the query."""

    exact: bool = True

    def apply(self, node: T) -> T:
        return transpose(node)

    def undo(self, node: T) -> T:
        return transpose(node)


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """The colors of each row's pixels in front of the pixels (ggml's patch kernel, [out, colors, P, P]) <-> behind each
    pixel (Hugging Face's linear layer over a flattened patch, [out, P*P*colors])."""

    channels: int
    exact: bool = True

    def apply(self, node: T) -> T:
        return self._turn(node, self.channels, -1)

    def undo(self, node: T) -> T:
        return self._turn(node, -1, self.channels)

    def _turn(self, node: LogicalTensor, outer: int, inner: int) -> Node:
        """Swaps the last two axes of [out, outer, inner], of which -1 is the number of pixels."""
        columns = math.prod(node.spec.shape[1:])
        if self.channels <= 0 or columns % self.channels:
            raise FormatError("channels don't divide the row", expected=f"a multiple of {self.channels}", found=columns)
        pixels = columns // self.channels
        axes = (pixels if axis == -1 else axis for axis in (outer, inner))
        return reshape(transpose(reshape(node, (node.spec.shape[0], *axes))), node.spec.shape)


@dataclass(frozen=True, slots=True)
class Shifted:
    """A number added to each element: a norm that multiplies by 1 + w (Gemma) or 1/5 + w (PLaMo 2) <-> by w (ggml).
    The number and the sum are rounded to F32, as in torch; in a round trip an element keeps the bits that the sum has.
    That is exact for 1 and weights that were BF16, else within half a step of the larger of sum and element."""

    by: float
    exact: bool = False

    def apply(self, node: T) -> T:
        return shift(node, self.by)

    def undo(self, node: T) -> T:
        return shift(node, -self.by)


@dataclass(frozen=True, slots=True)
class Absolute:
    """A vector of integers, each relative to its position (Hugging Face: the tokens of a draft model's vocabulary) <->
    their sums (ggml), in I64."""

    exact: bool = True

    def apply(self, node: T) -> T:
        return add_position(node)

    def undo(self, node: T) -> T:
        return add_position(node, -1)


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
class Exp:
    """As `NegExp`, without the sign."""

    exact: bool = False

    def apply(self, node: T) -> T:
        return apply_function(node, "exp")

    def undo(self, node: T) -> T:
        return apply_function(node, "log")


@dataclass(frozen=True, slots=True)
class InverseExp:
    """A logarithm (Hugging Face) <-> 1 / (exp(x) + 1e-9) (ggml), in F32. A round trip changes a number by less than
    2^-22, or 2^-22 of itself if it is larger; below -10 by more, since 1e-9 is added."""

    exact: bool = False

    def apply(self, node: T) -> T:
        return apply_function(node, "inverse_exp")

    def undo(self, node: T) -> T:
        return apply_function(node, "log_inverse")


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
class Softplus:
    """A scale (Hugging Face) <-> log(1 + exp(scale)) (ggml), in F32. A round trip changes a scale by less than 2^-22 of
    its softplus or of itself, whichever is larger, unless it is below -15."""

    exact: bool = False

    def apply(self, node: T) -> T:
        return apply_function(node, "softplus")

    def undo(self, node: T) -> T:
        return apply_function(node, "log_expm1")


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
class ZeroMean:
    """A vector of which only differences count (Hugging Face: what is added before experts are chosen) <-> minus its
    mean (ggml). `undo` leaves it so: the model computes the same."""

    exact: bool = False

    def apply(self, node: T) -> T:
        return centered(node)

    def undo(self, node: T) -> T:
        return node


@dataclass(frozen=True, slots=True)
class Ternary:
    """A matrix that the model rounds at run time to three values, minus the mean magnitude, 0 and the mean (Hugging
    Face's BitNet) <-> rounded (ggml). `undo` makes the values larger, so that the model rounds them to those of ggml
    within 2^-22."""

    exact: bool = False

    def apply(self, node: T) -> T:
        return round_ternary(node)

    def undo(self, node: T) -> T:
        return spread_ternary(node)


@dataclass(frozen=True, slots=True)
class Multiplied:
    """Two vectors, one after the other (Hugging Face: a norm, and a matrix of one row) <-> their product, which is all
    that the model needs (ggml). The factors are lost: `undo` returns ones and the product, which multiply to the same
    bits."""

    exact: bool = False

    def apply(self, node: T) -> T:
        half = node.spec.rows // 2
        return pairwise(slice_rows(node, 0, (half,)), slice_rows(node, half, (half,)), "times")

    def undo(self, node: T) -> T:
        ones = shift(zeros(node.spec.shape, F32), 1.0)
        return concat([ones, cast(node, F32)])


@dataclass(frozen=True, slots=True)
class NegatedHalves:
    """The rows of the second half of each head, with the other sign: queries and keys that rotate the other way
    (Hugging Face's Talkie) <-> as llama.cpp rotates."""

    heads: int
    exact: bool = True

    def apply(self, node: T) -> T:
        plain = node if is_plain(node) else decode(node, "half of its rows change their sign")
        rows, *columns = plain.spec.shape
        apart = gather(plain, ordered(halves_apart_order, rows, self.heads))
        upper, lower = (slice_rows(apart, start, (rows // 2, *columns)) for start in (0, rows // 2))
        joined = concat([upper, cast(scaled(lower, -1.0), plain.spec.dtype)])
        return gather(joined, inverse(halves_apart_order, rows, self.heads))

    undo = apply


def times(*factors: float) -> Times:
    return Times(factors)


def rescaled(width: int, rank: int) -> Times:
    """A norm of vectors of `rank` elements (Hugging Face) <-> with the factor by which they are rescaled to `width`."""
    return Times((math.sqrt(width / rank),))


@dataclass(frozen=True, slots=True)
class Slots:
    """Stacked adapters [n, 1, rows, columns] (Granite Switch) <-> [n + 1, rows, columns], the first all zeros, with the
    rows of each one's `heads` as llama.cpp rotates them; 0: unchanged. `surplus`: the rows that `undo` drops."""

    heads: int
    exact: bool = True

    def apply(self, node: T) -> T:
        count, _, rows, columns = node.spec.shape
        if self.heads:
            node = RowMove(row_orders.rope_order, (self.heads * count,)).apply(node)
        return concat([zeros((1, rows, columns), node.spec.dtype), reshape(node, (count, rows, columns))])

    def surplus(self, node: T) -> T:
        return slice_rows(node, 0, node.spec.shape[1:])

    def undo(self, node: T) -> T:
        count, rows, columns = node.spec.shape
        behind = slice_rows(node, rows, (count - 1, 1, rows, columns))
        return RowMove(row_orders.rope_order, (self.heads * (count - 1),)).undo(behind) if self.heads else behind


@dataclass(frozen=True, slots=True)
class Halved:
    """A matrix (Hugging Face) <-> halved once more after each `every` layers, as llama.cpp halves the activations
    between them (RWKV 6). Exact except for the smallest numbers."""

    layer: int
    every: int
    exact: bool = False

    def apply(self, node: T) -> T:
        return scaled(node, 2.0 ** (self.layer // self.every), over=True)

    def undo(self, node: T) -> T:
        return scaled(node, 2.0 ** (self.layer // self.every))


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows of the first `rows` tokens (Hugging Face) <-> padded with zeros to the rows of `all` tokens (ggml).
    `surplus`: the rows that `undo` drops."""

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

    def surplus(self, node: T) -> T:
        return slice_rows(node, self.rows, (self.all - self.rows, *node.spec.shape[1:]))

    def undo(self, node: T) -> T:
        return slice_rows(node, 0, (self.rows, *node.spec.shape[1:]))


@dataclass(frozen=True, slots=True)
class OneWay:
    """A layout change that can't be undone. Its methods are named after the dialect with more: `undo` reads it."""

    exact: ClassVar[bool] = False

    def apply(self, node: T) -> T:
        raise UnsupportedError("a tensor can't get back the elements that it has lost")


@dataclass(frozen=True, slots=True)
class Resized(OneWay):
    """Positions of a square grid (Hugging Face) -> those of `side` x `side` places (ggml)."""

    side: int

    def undo(self, node: LogicalTensor) -> Node:
        from weighbridge.tensors.nodes.reduced import resized_grid  # late: few models need it

        return resized_grid(reshape(node, (node.spec.rows, node.spec.shape[-1])), self.side)


@dataclass(frozen=True, slots=True)
class Summed(OneWay):
    """A matrix over the pixels of `frames` frames, one after the other (Hugging Face) -> the sum of the frames'
    matrices (ggml)."""

    frames: int

    def undo(self, node: LogicalTensor) -> Node:
        from weighbridge.tensors.nodes.reduced import summed_parts  # late, as above

        return summed_parts(node, self.frames)


def _cuts_blocks(node: LogicalTensor, width: int) -> bool:
    return isinstance(node, QuantizedTensor) or width % node.spec.dtype.block != 0


def layout(name: str, *arguments: float) -> TensorLayout:
    """The layout that a table calls `name(arguments)`."""
    row = LAYOUTS[name]
    if row.order:
        return RowMove(getattr(row_orders, row.order), arguments)  # type: ignore[arg-type]
    made: TensorLayout = globals()[row.change](*arguments)
    return made
