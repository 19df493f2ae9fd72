"""Small floats with a scale per 16 or 32 columns as tensors (`schema/microscaled.py` has their forms in a file).

    value = e2m1(code) * scale            exact: 2 and at most 4 significant bits
    value = e2m1(code) * scale * global   ModelOpt: weight_scale_2; compressed-tensors: 1 / weight_global_scale

ggml's MXFP4 and NVFP4 hold the same codes and scales in a different order. A block has no room for a global scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from weighbridge.base.dtypes import E2M1, E2M3, NVFP4, DType, MicroscaledType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.base import row_ranges
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.microscaled import MicroscaledLayout
from weighbridge.tensors import kernels, nodes, np
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The sixteen values of E2M1 (OCP MX 1.0, 5.3.3).
VALUES: Final = (*E2M1, *(-value for value in E2M1))
_SIX: Final = (*E2M3, *(-value for value in E2M3))


@dataclass(frozen=True)
class Microscaled:
    """The parameters of one tensor. `overall`: it has a global scale to multiply or (`divided`) divide by; a stack of
    matrices has one per `each` rows."""

    type: MicroscaledType
    overall: bool = False
    divided: bool = False
    each: int = 0

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def code_bits(self) -> int:
        return self.type.bits

    @property
    def group(self) -> int:
        return self.type.group

    @property
    def scale_dtype(self) -> DType:
        return self.type.scale

    @cached_property
    def row_map(self) -> Mapping[str, int]:
        return {"codes": 1, "scales": 1} | ({"global": self.each} if self.overall else {})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        scales = kernels.widened(self.scale_dtype, parts["scales"])
        if self.code_bits == 6:
            np.take(np.array(_SIX, np.float32), kernels.unpack_codes(6, parts["codes"]), out=out)
            groups = out.reshape(-1, self.group)
            groups *= scales[:, None]
        else:
            kernels.table_decode(
                np.array(VALUES, np.float32), self.group, parts["codes"], scales, out, high_first=False
            )
        if self.overall:
            factors, rows = self.factor(parts["global"]), out.reshape(hi - lo, -1)
            rows *= factors[np.arange(lo, hi) // self.each - lo // self.each, None] if self.each else factors

    def factor(self, part: Bytes) -> NDArray[np.float32]:
        """The factors of values, F32 [scales], from the bytes of global scales."""
        values = part.view(np.float32)
        with np.errstate(all="ignore"):
            return np.float32(1) / values if self.divided else values

    def spread(self, rows: int) -> Microscaled:
        """See `tensors.nodes.quantized.Spreading`."""
        return replace(self, each=rows) if self.overall and not self.each else self

    @property
    def parameters(self) -> tuple[str, ...]:
        return ()

    @property
    def blocks(self) -> tuple[DType, ...]:
        return (self.type.block,) if self.type.block else ()

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        if self.overall and (self.factor(members["global"].read_all()) != 1).any():
            return f"its global scale can't be stored in {dtype}"
        if self.type == NVFP4:
            scales = members["scales"]
            distinct = np.unique(np.concatenate([np.unique(scales.read(*rows)) for rows in row_ranges(scales)]))
            if (distinct & 0x80).any() or (distinct == 0x7F).any():
                return f"{dtype} can't store negative or NaN scales"
        return ""

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        """The same bytes with the nibbles of a group in ggml's order."""
        kernels.join_blocks(dtype, 4, self.group, parts["codes"], parts["scales"], np.empty(0, np.uint8), out)


def build(match: Match[MicroscaledLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    layout, codes, scales = match.layout, stored["codes"], stored["scales"]
    if len(codes.spec.shape) > len(match.shape):  # gpt-oss: an axis of blocks
        codes = nodes.reshape(codes, (*match.shape[:-1], codes.spec.shape[-2] * codes.spec.shape[-1]))
    members = {"codes": codes, "scales": nodes.bitcast(scales, layout.type.scale, scales.spec.shape[-1])}
    if "global" in stored:
        members["global"] = stored["global"]
    return QuantizedTensor(match.spec, Microscaled(layout.type, "global" in stored, layout.divided), members)
