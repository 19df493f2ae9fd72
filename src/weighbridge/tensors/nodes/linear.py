"""Rows through a layer of a network, for tensors that a GGUF has computed. None has an inverse."""

from __future__ import annotations

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.tensors import functions, np
from weighbridge.tensors.nodes.base import Bytes, Node, RowRange, UnaryNode, borrow
from weighbridge.tensors.nodes.compute import CastReport
from weighbridge.tensors.nodes.logical import cast
from weighbridge.tensors.nodes.quantized import LogicalTensor

#: Rows that are multiplied together: products of the same size have the same bits.
_BLOCK = 64


@dataclass(frozen=True, eq=False)
class Linear(UnaryNode):
    """F32 rows times the transpose of `weight` [outputs, inputs], plus `bias` and through an activation: computed in
    F64 and rounded once. The weight is read whole for each run of rows. These are multiplied in whole blocks, so that
    a row's bits don't depend on the rows that are read with it."""

    weight: Node
    bias: Node | None
    activation: str

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        rows, weight, *bias = self._needs(lo, hi)
        result = out.view(np.float32).reshape(hi - lo, -1)
        with borrow(rows, weight, *bias) as (data, matrix, *added):
            values = data.view(np.float32).reshape(rows.hi - rows.lo, -1)
            factor = matrix.view(np.float32).reshape(self.weight.spec.shape).astype(np.float64).T
            constant = added[0].view(np.float32).astype(np.float64) if added else 0
            for start in range(rows.lo, hi, _BLOCK):
                end = min(start + _BLOCK, rows.hi)
                product = values[start - rows.lo : end - rows.lo].astype(np.float64) @ factor + constant
                first, last = max(start, lo), min(end, hi)
                with np.errstate(over="ignore"):
                    block = functions.ACTIVATIONS[self.activation](product)
                result[first - lo : last - lo] = block[first - start : last - start]

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        first, last = lo // _BLOCK * _BLOCK, min(-(-hi // _BLOCK) * _BLOCK, self.source.spec.rows)
        parts = [self.weight] if self.bias is None else [self.weight, self.bias]
        return [RowRange(self.source, first, last), *(RowRange(part, 0, part.spec.rows) for part in parts)]

    def _scratch(self, lo: int, hi: int) -> int:
        """The weight in F64, and a block's inputs and outputs with three steps of an activation."""
        columns, outputs = self.source.spec.row_atoms, self.spec.row_atoms
        return super()._scratch(lo, hi) + 8 * (columns * outputs + outputs + _BLOCK * (columns + 5 * outputs))

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.weight, *(() if self.bias is None else (self.bias,)))


def linear(
    rows: LogicalTensor, weight: LogicalTensor, bias: LogicalTensor | None = None, *, activation: str = ""
) -> Node:
    """Each row [.., inputs] times the transpose of `weight` [outputs, inputs], plus `bias` [outputs], through an
    activation of `functions.ACTIVATIONS`; in F32. FormatError unless they fit."""
    (outputs, inputs), added = weight.spec.shape, (weight.spec.shape[0],) if bias is None else bias.spec.shape
    if rows.spec.shape[-1] != inputs or added != (outputs,):
        raise FormatError("doesn't fit the rows", expected=f"[.., {rows.spec.shape[-1]}]", found=str(weight.spec))
    parts = [None if part is None else cast(part, F32, CastReport()) for part in (weight, bias)]
    source = cast(rows, F32, CastReport())
    assert parts[0] is not None
    return Linear(Spec((*rows.spec.shape[:-1], outputs), F32), source, parts[0], parts[1], activation)
