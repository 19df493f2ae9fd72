"""torchao's tensor subclasses as tensors (`schema/torchao.py` has their forms in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from weighbridge.base.dtypes import U8
from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read import microscaled, scaled_float
from weighbridge.packings.read.params import per_row
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.microscaled import MicroscaledLayout
from weighbridge.packings.schema.scaled_float import ScaledFloatLayout
from weighbridge.packings.schema.torchao import NAME
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes


def build(match: Match[Any], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    if isinstance(match.layout, MicroscaledLayout):
        return microscaled.build(match, stored)
    if isinstance(match.layout, ScaledFloatLayout):
        return scaled_float.build(match, {**stored, "weight": stored["codes"]})
    bits, rows = match.bits or 8, match.shape[0]
    unsigned = Unsigned(bits, match.module)
    members: dict[str, Node] = {"codes": nodes.pack(stored["codes"], unsigned)["codes"]}
    members["scales"] = per_row(stored["scales"], rows)
    symmetric = "zeros" not in stored or not any(match.values["zeros"])
    if not symmetric:
        members["zeros"] = per_row(nodes.pack(stored["zeros"], unsigned)["codes"], rows)
    zero = 1 << (bits - 1) if symmetric else None
    packing = IntQuant(NAME, 8, bits, match.group or 0, stored["scales"].spec.dtype, zero)
    return QuantizedTensor(match.spec, packing, members)


@dataclass(frozen=True)
class Unsigned:
    """Codes of `bits` bits in two's complement, one byte each, as U8 from 0 on."""

    bits: int
    module: str

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"codes": source.with_dtype(U8)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        out = outs["codes"]
        np.add(source, np.uint8(1 << (self.bits - 1)), out=out)
        if self.bits < 8 and (out >> self.bits).any():
            raise FormatError("codes are larger than their type", field=self.module, expected=f"int{self.bits}")
