"""Nodes for the stored tensors that a packing produces from a logical one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Protocol

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.tensors.nodes.base import Bytes, Node, RowRange, UnaryNode, borrow
from weighbridge.tensors.scratch import scratch_buffers


class Packer(Protocol):
    """A writer of logical tensors as several stored ones. See `packings/write`."""

    quantizes: ClassVar[bool]  # whether values are rounded to codes

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        """Specs of the stored tensors for a logical tensor `source`, keyed by name suffix."""

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        """Fills rows of the requested stored tensors from the same rows of the logical one (F32 or a block type)."""


@dataclass(frozen=True, eq=False)
class PackedMember(UnaryNode):
    """One of the stored tensors that `packer` computes from a logical one. `block`: rows of the logical tensor that
    share a parameter; a part has one row per row, or one per block."""

    packer: Packer
    part: str
    block: int = 1

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        make([self], lo, hi, [out])

    def fill(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        """Fills the parts from the bytes of the same rows of the source."""
        self.packer.make(source, outs)

    @property
    def tall(self) -> bool:
        """Whether it has one row for several rows of the source."""
        return self.spec.rows != self.source.spec.rows

    def span(self, lo: int, hi: int) -> RowRange:
        """The source rows that rows lo..hi depend on, in whole blocks."""
        k = self.block
        a, b = (lo * k, hi * k) if self.tall else (lo // k * k, -(-hi // k) * k)
        return RowRange(self.source, a, min(b, self.source.spec.rows))

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [self.span(lo, hi)]

    def _scratch(self, lo: int, hi: int) -> int:
        run = self.span(lo, hi)
        return super()._scratch(lo, hi) + 2 * (run.hi - run.lo) * self.source.spec.row_bytes


def make(parts: Sequence[PackedMember], lo: int, hi: int, outs: Sequence[Bytes]) -> None:
    """Fills rows lo..hi of several parts of one tensor, which is read once. The parts have equally many rows."""
    first, run = parts[0], parts[0].span(lo, hi)
    with borrow(run) as (source,):
        if first.tall or (run.lo, run.hi) == (lo, hi):
            first.fill(source, {p.part: out for p, out in zip(parts, outs, strict=True)})
            return
        with scratch_buffers(*((run.hi - run.lo) * p.spec.row_bytes for p in parts)) as wholes:
            first.fill(source, {p.part: whole for p, whole in zip(parts, wholes, strict=True)})
            for part, whole, out in zip(parts, wholes, outs, strict=True):
                out[:] = whole[(lo - run.lo) * part.spec.row_bytes :][: out.nbytes]


class GlobalScalePacker(Packer, Protocol):
    """A packer that also needs a value of the whole tensor (a global scale)."""

    def make_with(self, source: Bytes, global_scale: Bytes, outs: Mapping[str, Bytes]) -> None:
        """As `make`, with that value's bytes."""


@dataclass(frozen=True, eq=False)
class PackedMemberWithGlobal(PackedMember):
    """As `PackedMember`, for a packer that also needs a whole-tensor value, `global_scale`."""

    packer: GlobalScalePacker
    global_scale: Node = field(kw_only=True)

    def fill(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        self.packer.make_with(source, self.global_scale.read_all(), outs)

    def _scratch(self, lo: int, hi: int) -> int:
        scale = self.global_scale
        return super()._scratch(lo, hi) + scale.spec.nbytes + scale.scratch(0, scale.spec.rows)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.global_scale)
