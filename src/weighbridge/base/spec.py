"""A tensor's shape and type without its data, and the numbers derived from them: rows, atoms, bytes.

A *row* is the last axis. A tensor of rank 0 or 1 has one atom a row. A tensor whose rows aren't whole atoms is *flat*:
it is read by ranges of atoms (one a row, like rank 1) and can't take part in row moves. So rows * row_bytes == nbytes.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import msgspec

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError

Shape = tuple[int, ...]


def c_strides(shape: Shape) -> tuple[int, ...]:
    """Strides of C order in elements. As in torch, an empty axis steps like one of length 1."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def in_c_order(shape: Shape, strides: tuple[int, ...]) -> bool:
    """Whether elements are in C order without gaps. The stride of an axis of length 1 doesn't matter."""
    contiguous = zip(shape, strides, c_strides(shape), strict=True)
    return 0 in shape or all(n == 1 or stride == c for n, stride, c in contiguous)


def without_leading_ones(shape: Shape) -> Shape:
    """A shape as ggml compares it: leading dimensions of 1 don't count, the last one always does."""
    first = next((i for i, n in enumerate(shape[:-1]) if n != 1), max(len(shape) - 1, 0))
    return shape[first:]


class Spec(msgspec.Struct, frozen=True, dict=True):
    """Logical `shape` (C order, as in safetensors and numpy; a GGUF's dims reversed) and `dtype`.

    A Struct whose dict caches derived numbers: a large model has hundreds of thousands of specs.
    """

    shape: Shape
    dtype: DType

    def __post_init__(self) -> None:
        if self.shape and min(self.shape) < 0:
            raise FormatError("a dimension is negative", found=list(self.shape))
        if self.dtype.block > 1 and self.elements % self.dtype.block:
            raise FormatError(
                f"{self.elements} elements aren't a multiple of {self.dtype.block}, the block of {self.dtype}"
            )

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def atoms(self) -> int:
        return self.elements // self.dtype.block

    @property
    def nbytes(self) -> int:
        return self.atoms * self.dtype.size

    @cached_property
    def flat(self) -> bool:
        """Whether the rows (the last axis) of a matrix aren't whole atoms."""
        return len(self.shape) > 1 and bool(self.shape[-1] % self.dtype.block)

    @cached_property
    def row_atoms(self) -> int:
        return self.shape[-1] // self.dtype.block if len(self.shape) > 1 and not self.flat else 1

    @cached_property
    def rows(self) -> int:
        return math.prod(self.shape[:-1]) if len(self.shape) > 1 and not self.flat else self.atoms

    @cached_property
    def row_bytes(self) -> int:
        return self.row_atoms * self.dtype.size

    def with_shape(self, *shape: int) -> Spec:
        return spec_of(shape, self.dtype)

    def with_dtype(self, dtype: DType) -> Spec:
        return spec_of(self.shape, dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@lru_cache(maxsize=1024)
def spec_of(shape: Shape, dtype: DType) -> Spec:
    """A spec that all tensors of one shape and type share: a model of 100,000 tensors has a few dozen."""
    return Spec(shape, dtype)
