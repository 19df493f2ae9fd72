"""Quantized tensors: several stored tensors that form a logical one, and the nodes that decode them or transcode
them to a block type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

from weighbridge.base.dtypes import F32, DType
from weighbridge.base.plugins import guard
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, Spec
from weighbridge.tensors import np
from weighbridge.tensors.nodes.base import Bytes, Node, RowRange, borrow

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Packing(Protocol):
    """How several stored tensors form a logical one. Implemented in `packings/`; compared by value."""

    @property
    def name(self) -> str: ...

    @property
    def code_bits(self) -> int:
        """Bits of a code, however many it is stored in."""

    @property
    def row_map(self) -> Mapping[str, int]:
        """Logical rows per row of a member; 0: the member is shared by all rows."""

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        """Fills `out` with rows lo..hi of `spec` in F32. `parts[m]`: member m's bytes from row lo // row_map[m] on."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Members that `transcode` rounds if the block type can't store them exactly."""

    @property
    def blocks(self) -> tuple[DType, ...]:
        """Block types that can store its codes, smallest first: the possible targets of `transcode`."""

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        """Why `dtype` can't store exactly the same values; empty if it can. Reads parameters, never codes."""

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        """Fills `out` with the same codes in one of `blocks`; scales are rounded if they aren't exact in its type."""


@runtime_checkable
class Spreading(Packing, Protocol):
    """A packing with row-shared parameters that can also store them per run of rows."""

    def spread(self, rows: int) -> Packing:
        """A copy whose row-shared parameters are repeated once per `rows` rows; the packing itself if nothing is
        shared."""


@final
@dataclass(frozen=True, eq=False, slots=True)
class QuantizedTensor:
    """A logical tensor (`spec`, with the dtype it decodes to) in several stored `members`. It has no bytes of its
    own, so it isn't a node: row moves apply to its members, everything else needs `decode`."""

    spec: Spec
    packing: Packing
    members: Mapping[str, Node]

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """The type that it decodes to."""
        return self.spec.dtype

    @property
    def block_rows(self) -> int:
        """The number of rows at whose multiples the packing can be cut."""
        return math.lcm(*(k for k in self.packing.row_map.values() if k))

    def runs(self, lo: int, hi: int) -> dict[str, RowRange]:
        """The rows of each member that rows lo..hi need."""
        out = {}
        for name, node in self.members.items():
            k = self.packing.row_map[name]
            out[name] = RowRange(node, lo // k, -(-hi // k)) if k else RowRange(node, 0, node.spec.rows)
        return out

    @contextmanager
    def borrow(self, lo: int, hi: int) -> Iterator[dict[str, Bytes]]:
        """The members' bytes of rows lo..hi, valid inside the block."""
        runs = self.runs(lo, hi)
        with borrow(*runs.values()) as parts:
            yield dict(zip(runs, parts, strict=True))

    def decode(self, reason: str = "") -> DecodePacked:
        """Its values in F32. `reason`: why it has to be decoded, for the plan."""
        return DecodePacked(self.spec.with_dtype(F32), self, reason)


#: A tensor of a model: stored directly, or packed in several stored tensors.
LogicalTensor = Node | QuantizedTensor


@dataclass(frozen=True, eq=False, slots=True)
class PackedSource(Node):
    """A node over a quantized tensor."""

    tensor: QuantizedTensor

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return list(self.tensor.runs(lo, hi).values())

    @property
    def sources(self) -> tuple[Node, ...]:
        return tuple(self.tensor.members.values())


@dataclass(frozen=True, eq=False, slots=True)
class DecodePacked(PackedSource):
    """The values of a quantized tensor in F32. `reason`: why it had to be decoded, for the plan."""

    reason: str = ""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with aligned_values(out) as values, self.tensor.borrow(lo, hi) as parts:
            packing = self.tensor.packing
            with guard(packing.name, type(packing).__module__):
                packing.decode(self.spec, parts, lo, hi, values)


@contextmanager
def aligned_values(out: Bytes) -> Iterator[NDArray[np.float32]]:
    """`out` as F32 values; an unaligned `out` is filled by a copy at the end."""
    aligned = out.ctypes.data % 4 == 0
    values = out.view(np.float32) if aligned else np.empty(out.nbytes // 4, np.float32)
    yield values
    if not aligned:
        out[:] = values.view(np.uint8)


@dataclass(frozen=True, eq=False, slots=True)
class Transcode(PackedSource):
    """A quantized tensor in a block type with the same parameters: exact, without requantizing."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with self.tensor.borrow(lo, hi) as parts:
            packing = self.tensor.packing
            with guard(packing.name, type(packing).__module__):
                packing.transcode(self.tensor.spec, self.spec.dtype, parts, out)
