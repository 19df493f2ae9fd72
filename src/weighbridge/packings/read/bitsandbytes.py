"""bitsandbytes as tensors (`schema/bitsandbytes.py` has its forms in a file)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.bitsandbytes import BNB_INT8, NAME, Bnb4Layout
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes

# 1 / 127 as bitsandbytes spells it, in F32.
_INVERSE: Final = np.float32(7.874015718698502e-3)


@dataclass(frozen=True)
class Bnb4Bit(NoBlockForm):
    """The parameters of a 4-bit tensor whose rows are whole blocks. `nested`: blocks per nested_absmax (0: none), to
    whose products `offset` is added."""

    block: int
    nested: int = 0
    offset: float = 0.0
    name: str = field(default=NAME, init=False)
    code_bits: int = field(default=4, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        nested = {"nested_absmax": 0, "nested_map": 0} if self.nested else {}
        return MappingProxyType({"codes": 1, "absmax": 1, "map": 0, **nested})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        absmax = parts["absmax"]
        if self.nested:
            first = lo * spec.shape[-1] // self.block
            groups = np.arange(first, first + len(absmax)) // self.nested
            factors = parts["nested_map"].view(np.float32)[absmax]
            scales = factors * parts["nested_absmax"].view(np.float32)[groups] + np.float32(self.offset)
        else:
            scales = absmax.view(np.float32)
        kernels.table_decode(parts["map"].view(np.float32), self.block, parts["codes"], scales, out, high_first=True)


@dataclass(frozen=True)
class Bnb8Bit(NoBlockForm):
    """The parameters of an 8-bit tensor."""

    name: str = field(default=NAME, init=False)
    code_bits: int = field(default=8, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({"codes": 1, "scales": 1})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        rows = out.reshape(hi - lo, -1)
        rows[:] = parts["codes"].view(np.int8).reshape(rows.shape)
        rows *= parts["scales"].view(np.float32)[:, None]
        rows *= _INVERSE


def build(match: Match[Bnb4Layout], stored: Mapping[str, Node]) -> LogicalTensor:
    """See `packings.schema.base.PackingSchema`."""
    if match.schema is BNB_INT8:
        scales = nodes.reshape(stored["scales"], (match.spec.rows, 1))
        return QuantizedTensor(match.spec, Bnb8Bit(), {"codes": stored["codes"], "scales": scales})
    members = {role: node for role, node in stored.items() if role != "state"}
    shape, (block, nested, offset) = match.shape, match.layout
    elements, width = math.prod(shape), shape[-1]
    if width % block and elements % block:
        raise UnsupportedError("a 4-bit weight whose last block is short", hint="load and save it with bitsandbytes")
    # A matrix with blocks across its rows is decoded as rows of one block.
    spec = Spec((elements // block, block), F32) if width % block else match.spec
    *lead, columns = spec.shape
    members["codes"] = nodes.reshape(nodes.as_bytes(members["codes"]), (*lead, columns // 2))
    members["absmax"] = nodes.reshape(members["absmax"], (*lead, columns // block))
    packed = QuantizedTensor(spec, Bnb4Bit(block, nested, offset), members)
    return packed if spec.shape == shape else nodes.reshape(nodes.decode(packed, "its blocks cross its rows"), shape)
