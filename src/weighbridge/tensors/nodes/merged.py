"""One tensor made of those of several models (`tensors/merging`)."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.tensors.merging import Band, MergeMethod
from weighbridge.tensors.nodes.base import Bytes, Node, RowRange, UnaryNode, borrow
from weighbridge.tensors.nodes.logical import cast
from weighbridge.tensors.nodes.moves import reshape
from weighbridge.tensors.nodes.quantized import LogicalTensor

#: Elements that are merged at a time. A dozen arrays of them fit in the second-level cache.
_PIECE: Final = 1 << 14
#: Elements that a survey reads at a time: more, since each adds a histogram of 65,536 numbers.
_SURVEYED: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class Merged(Node):
    """F32 tensors of one shape, merged in F32. Bytes don't depend on slabs and threads: rows are computed one by one,
    and sums over tensors in bands from their first row on."""

    parts: tuple[Node, ...]
    method: MergeMethod

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lock", threading.Lock())

    @cached_property
    def _survey(self) -> Any:
        with np.errstate(all="ignore"):
            return self.method.survey(self._bands, self.spec.elements)

    def _bands(self) -> Iterator[Band]:
        rows = self.spec.rows
        for lo in range(0, rows, self._step):
            hi = min(lo + self._step, rows)
            with borrow(*self._needs(lo, hi)) as data:
                yield from self._pieces(lo, hi, data, _SURVEYED)

    @property
    def _step(self) -> int:
        return max(1, _SURVEYED // self.spec.row_atoms)

    def _pieces(self, lo: int, hi: int, data: Sequence[Bytes], size: int = _PIECE) -> Iterator[Band]:
        width = self.spec.row_atoms
        inputs = [array.view(np.float32).reshape(hi - lo, width) for array in data]
        step = max(1, size // width)
        for at in range(0, hi - lo, step):
            yield Band((lo + at) * width, tuple(array[at : at + step] for array in inputs))

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with self._lock:  # type: ignore[attr-defined]
            survey = self._survey
        results, at = out.view(np.float32).reshape(hi - lo, -1), 0
        with borrow(*self._needs(lo, hi)) as data, np.errstate(all="ignore"):
            for band in self._pieces(lo, hi, data):
                rows = len(band.inputs[0])
                results[at : at + rows] = self.method.rows(band, survey)
                at += rows

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(part, lo, hi) for part in self.parts]

    def _scratch(self, lo: int, hi: int) -> int:
        """The larger of a slab's, with pieces of it, and a survey's."""
        inputs = len(self.parts)
        step = min(self._step, self.spec.rows)
        piece, surveyed = (min(max(n, self.spec.row_atoms), self.spec.elements) * 4 for n in (_PIECE, _SURVEYED))
        return max(
            super()._scratch(lo, hi) + piece * (self.method.scratch + inputs),
            super()._scratch(0, step) + surveyed * 2 * inputs,
        )

    @property
    def sources(self) -> tuple[Node, ...]:
        return self.parts


@dataclass(frozen=True)
class RowMean(UnaryNode):
    """The mean of all rows of an F32 matrix, F32 [1, columns], summed in F64 in the order of the rows."""

    @cached_property
    def _mean(self) -> NDArray[np.float32]:
        rows, width = self.source.spec.rows, self.source.spec.row_atoms
        whole = np.zeros(width, np.float64)
        for lo in range(0, rows, self._step):
            hi = min(lo + self._step, rows)
            with borrow(RowRange(self.source, lo, hi)) as (data,):
                for row in data.view(np.float32).reshape(hi - lo, width):
                    whole += row
        return (whole / rows).astype(np.float32)

    @property
    def _step(self) -> int:
        return max(1, _SURVEYED // self.source.spec.row_atoms)

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        out[:] = self._mean.view(np.uint8)

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self.source, 0, min(self._step, self.source.spec.rows))]


def row_mean(node: Node) -> Node:
    """The mean of a matrix's rows, F32 [1, columns]."""
    return RowMean(Spec((1, *node.spec.shape[1:]), F32), cast(node, F32))


def merged(parts: Sequence[LogicalTensor], method: MergeMethod) -> Node:
    """Tensors of one shape, merged in F32; a vector is one row. UsageError if the shapes differ."""
    shape = parts[0].spec.shape
    if other := next((part.spec for part in parts if part.spec.shape != shape), None):
        raise UsageError(f"{parts[0].spec} can't be merged with {other}")
    inputs = tuple(cast(part, F32) for part in parts)
    if len(shape) > 1:
        return Merged(inputs[0].spec, inputs, method)
    row = (1, math.prod(shape))
    flat = Merged(inputs[0].spec.with_shape(*row), tuple(reshape(part, row) for part in inputs), method.for_vector)
    return reshape(flat, shape)
