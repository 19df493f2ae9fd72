"""HQQ and BitNet as tensors (`schema/bitplanes.py` has their forms in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32, U8, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.bitplanes import BITNET, FIELDS, SHIFTS, HqqLayout
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import LogicalTensor, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node

# Why such a tensor is always decoded, for the plan.
_REASON: Final = "no other format stores codes in planes"


@dataclass(frozen=True)
class Plane(NoBlockForm):
    """One plane: (code - zero) * scale. `shared`: scale and zero are one row for all rows (HQQ's axis 0), or a single
    number."""

    name: str
    code_bits: int
    shift: int
    word: DType
    scale_dtype: DType
    shared: bool

    @property
    def row_map(self) -> Mapping[str, int]:
        each = 0 if self.shared else 1
        return MappingProxyType({"codes": 1, "scale": each, "zero": each})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        words: NDArray[Any] = parts["codes"].view("u1" if self.word is U8 else "<u4")
        rows = out.reshape(hi - lo, -1)
        rows[:] = ((words >> self.shift) & ((1 << self.code_bits) - 1)).reshape(rows.shape)
        scale, zero = (kernels.widened(self.scale_dtype, parts[m]) for m in ("scale", "zero"))
        across = (1, -1) if self.shared else (-1, 1)
        rows -= zero.reshape(across)
        rows *= scale.reshape(across)


def build(match: Match[Any], stored: Mapping[str, Node]) -> LogicalTensor:
    """See `packings.schema.base.PackingSchema`."""
    if match.schema is BITNET:
        return _bitnet(match, stored)
    _, word, rows, columns = match.layout
    shifts = SHIFTS[match.bits or 0]
    height = -(-rows // len(shifts))
    codes = nodes.reshape(nodes.bitcast(nodes.as_bytes(stored["codes"]), U8, 1), (height, columns * word.size))
    codes = nodes.bitcast(codes, word, columns)
    planes = [
        _plane(match, stored, codes, shift, i * height, min((i + 1) * height, rows))
        for i, shift in enumerate(shifts) if i * height < rows
    ]  # fmt: skip
    return nodes.reshape(nodes.concat(planes), match.shape)


def _plane(match: Match[HqqLayout], stored: Mapping[str, Node], codes: Node, shift: int, lo: int, hi: int) -> Node:
    axis, _, _, columns = match.layout
    members: dict[str, Node] = {"codes": nodes.slice_rows(codes, 0, (hi - lo, columns))}
    for m in ("scale", "zero"):
        if axis == 0:
            members[m] = nodes.reshape(stored[m], (1, columns))
        else:
            members[m] = nodes.slice_rows(nodes.reshape(stored[m], (stored[m].spec.elements, 1)), lo, (hi - lo, 1))
    packing = Plane("hqq", match.bits or 0, shift, codes.spec.dtype, stored["scale"].spec.dtype, axis == 0)
    return nodes.decode(QuantizedTensor(Spec((hi - lo, columns), F32), packing, members), _REASON)


def _bitnet(match: Match[bool], stored: Mapping[str, Node]) -> QuantizedTensor:
    """`match.layout`: whether values are multiplied by the scale rather than divided."""
    weight, dtype = stored["codes"], stored["scale"].spec.dtype
    value = np.float32(kernels.widened(dtype, np.frombuffer(match.values["scale"], np.uint8))[0])
    if not match.layout:
        with np.errstate(all="ignore"):
            value = np.float32(1) / value
    codes = nodes.concat([nodes.pack(weight, PlaneField(shift))["codes"] for shift in FIELDS])
    scales = nodes.strided(nodes.const(np.array([value]), F32), 0, (match.shape[0], 1), (0, 1))
    packing = IntQuant("bitnet", 8, 2, match.shape[1], F32, 1)
    return QuantizedTensor(match.spec, packing, {"codes": codes, "scales": scales})


@dataclass(frozen=True)
class PlaneField:
    """Two bits of each byte, from `shift` on."""

    shift: int

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"codes": source}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        out = outs["codes"]
        np.right_shift(source, self.shift, out=out)
        np.bitwise_and(out, 3, out=out)
