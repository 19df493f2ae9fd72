"""Nodes with fewer elements than their source: a grid of rows at fewer places (`ResizedGrid`), the sum of the parts of
each row (`SummedParts`), and the length of each row (`RowLengths`). None has an inverse."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

from weighbridge.base.dtypes import F16, F32
from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.tensors import functions, np
from weighbridge.tensors.nodes.base import Bytes, Node, RowRange, UnaryNode, borrow
from weighbridge.tensors.nodes.compute import CastReport
from weighbridge.tensors.nodes.logical import cast, is_floating
from weighbridge.tensors.nodes.quantized import LogicalTensor


class _Neighbours(NamedTuple):
    """The two places around each new place along one side of a grid, and the second one's share."""

    first: list[int]
    second: list[int]
    share: functions.F32s


@dataclass(frozen=True, eq=False)
class ResizedGrid(UnaryNode):
    """A square grid of F32 rows at `side` x `side` places, interpolated bilinearly between the corners.

    As `torch.nn.functional.interpolate(mode="bilinear", align_corners=True)` computes it, whose vector code multiplies
    and adds in one step: the same bits if a row has a multiple of 16 elements.
    """

    side: int

    @cached_property
    def _before(self) -> int:
        return math.isqrt(self.source.spec.rows)

    @cached_property
    def _places(self) -> _Neighbours:
        last = self._before - 1
        step = np.float32(last) / np.float32(self.side - 1) if self.side > 1 else np.float32(0)
        exact = step * np.arange(self.side, dtype=np.float32)
        first = np.minimum(exact.astype(np.int64), last)
        return _Neighbours(
            first.tolist(), np.minimum(first + 1, last).tolist(), np.clip(exact - first.astype(np.float32), 0, 1)
        )

    def _lines(self, line: int) -> RowRange:
        """The source's rows of the two lines around a line."""
        first, second = (places[line] * self._before for places in self._places[:2])
        return RowRange(self.source, first, second + self._before)

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        results, width = out.view(np.float32).reshape(hi - lo, -1), self.spec.row_atoms
        for line in range(lo // self.side, -(-hi // self.side)):
            with borrow(self._lines(line)) as (data,):
                corners = data.view(np.float32).reshape(-1, self._before, width)[[0, -1]]
                for row in range(max(lo, line * self.side), min(hi, (line + 1) * self.side)):
                    results[row - lo] = self._blend(corners, line, row % self.side)

    def _blend(self, lines: functions.F32s, down: int, across: int) -> functions.F32s:
        left, right, share = self._places
        one = np.float32(1)
        above, below = one - share[down], share[down]
        before, after = one - share[across], share[across]
        total = lines[1, left[across]] * (below * before)
        total = functions.multiply_add(lines[1, right[across]], below * after, total)
        total = functions.multiply_add(lines[0, right[across]], above * after, total)
        return functions.multiply_add(lines[0, left[across]], above * before, total)

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [self._lines(line) for line in range(lo // self.side, -(-hi // self.side))]

    def _scratch(self, lo: int, hi: int) -> int:
        """The lines around one line, a copy of two of them, and the steps of a row."""
        runs = self._needs(lo, hi)
        below = max((run.hi - run.lo) * self.source.spec.row_bytes + run.node.scratch(run.lo, run.hi) for run in runs)
        return below + self.spec.row_bytes * 2 * self._before + self.spec.row_atoms * functions.SCRATCH


@dataclass(frozen=True, eq=False)
class SummedParts(UnaryNode):
    """The sum of the `parts` equal parts of each row of an F32 or F16 matrix, in order: computed in F32 and rounded to
    the tensor's type, like torch."""

    parts: int

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        kind = np.dtype(np.float16 if self.spec.dtype is F16 else np.float32)
        width = self.spec.row_atoms
        with borrow(RowRange(self.source, lo, hi)) as (data,), np.errstate(all="ignore"):
            for row, result in zip(data.view(kind).reshape(hi - lo, -1, width), out.view(kind).reshape(-1, width)):  # noqa: B905
                total = row[0].astype(np.float32)
                for part in row[1:]:
                    total += part
                result[:] = total

    def _scratch(self, lo: int, hi: int) -> int:
        # numpy casts the F16 parts that it adds to F32 in a buffer
        return super()._scratch(lo, hi) + 8 * self.spec.row_atoms


@dataclass(frozen=True, eq=False)
class RowLengths(UnaryNode):
    """The Euclidean length of each row of an F32 matrix, F32 [rows, 1]: the root of the sum of squares, in F64."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        width = max(self.source.spec.shape[-1], 1)
        step, lengths = max(functions.PIECE // width, 1), out.view(np.float32)
        with borrow(RowRange(self.source, lo, hi)) as (data,), np.errstate(over="ignore", invalid="ignore"):
            rows = data.view(np.float32).reshape(hi - lo, -1)
            for at in range(0, hi - lo, step):
                squares = np.square(rows[at : at + step], dtype=np.float64)
                lengths[at : at + step] = np.sqrt(squares.sum(axis=1))

    def _scratch(self, lo: int, hi: int) -> int:
        width = self.source.spec.shape[-1]
        piece = min(hi - lo, max(functions.PIECE // max(width, 1), 1))
        return (hi - lo) * self.source.spec.row_bytes + 16 * piece * (width + 1) + self.source.scratch(lo, hi)


def row_lengths(node: LogicalTensor) -> Node:
    """The Euclidean length of each row of a matrix, F32 [rows, 1]."""
    source = cast(node, F32, CastReport())
    return RowLengths(Spec((source.spec.rows, 1), F32), source)


def resized_grid(node: LogicalTensor, side: int) -> Node:
    """A square grid of rows [n * n, width] at `side` x `side` places, in F32; a grid of this size is unchanged.
    FormatError for another number of rows."""
    before = math.isqrt(node.spec.rows)
    if before**2 != node.spec.rows or len(node.spec.shape) != 2 or side < 1:
        raise FormatError("is not a square grid of rows", expected="[n * n, width]", found=str(node.spec))
    node = cast(node, node.spec.dtype if before == side else F32, CastReport())
    return node if before == side else ResizedGrid(node.spec.with_shape(side * side, node.spec.shape[1]), node, side)


def summed_parts(node: LogicalTensor, parts: int) -> Node:
    """The sum of the `parts` equal parts of each row, in F16 for an F16 tensor, else in F32. FormatError if they don't
    divide the rows."""
    rows, width = node.spec.rows, node.spec.shape[-1]
    if parts < 1 or width % parts:
        raise FormatError("parts don't divide the row", expected=f"a multiple of {parts}", found=width)
    if not is_floating(node):
        node = cast(node, F32, CastReport())
    return SummedParts(Spec((rows, width // parts), node.spec.dtype), node, parts)
