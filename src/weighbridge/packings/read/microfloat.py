"""Small floats with a scale for each 16 or 32 neighbours as tensors (`schema/microfloat.py` has their form in a file).

    value = e2m1(code) * scale            exact: 2 and at most 4 significant bits
    value = e2m1(code) * scale * global   ModelOpt: weight_scale_2; compressed-tensors: 1 / weight_global_scale

ggml's MXFP4 and NVFP4 hold the same codes and scales, in another order; a global scale has no place in a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.spec import Spec
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.microfloat import E4M3, E8M0, GROUPS, MicroLayout
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node
from weighbridge.tensors.reference.rounding import E2M1, E2M3

MXFP4: Final = BY_NAME["MXFP4"]
NVFP4: Final = BY_NAME["NVFP4"]
_BLOCKS: Final = MappingProxyType({E8M0: MXFP4, E4M3: NVFP4})

#: The sixteen values of E2M1 (OCP MX 1.0, 5.3.3).
VALUES: Final = np.concatenate([E2M1, -E2M1])
_SIX: Final = np.concatenate([E2M3, -E2M3])


@dataclass(frozen=True)
class Microscaled:
    """The parameters of one tensor. `overall`: a global scale exists, to multiply or (`divided`) divide by; in a
    stack of matrices, one per `each` rows."""

    name: str
    scale_dtype: DType
    overall: bool = False
    divided: bool = False
    bits: int = 4
    each: int = 0

    @property
    def group(self) -> int:
        return GROUPS[self.scale_dtype]

    @cached_property
    def row_map(self) -> Mapping[str, int]:
        return {"codes": 1, "scales": 1} | ({"global": self.each} if self.overall else {})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        scales = kernels.widened(self.scale_dtype, parts["scales"])
        if self.bits == 6:
            np.take(_SIX, kernels.unpack_codes(6, parts["codes"]), out=out)
            groups = out.reshape(-1, self.group)
            groups *= scales[:, None]
        else:
            kernels.table_decode(VALUES, self.group, parts["codes"], scales, out, high_first=False)
        if self.overall:
            factors, rows = self.factor(parts["global"]), out.reshape(hi - lo, -1)
            rows *= factors[np.arange(lo, hi) // self.each - lo // self.each, None] if self.each else factors

    def factor(self, part: Bytes) -> NDArray[np.float32]:
        """The factors for values, from the bytes of global scales."""
        values = part.view(np.float32)
        with np.errstate(all="ignore"):
            return np.float32(1) / values if self.divided else values

    def spread(self, rows: int) -> Microscaled:
        """See `tensors.compute.Spreading`."""
        return replace(self, each=rows) if self.overall and not self.each else self

    @property
    def parameters(self) -> tuple[str, ...]:
        return ()

    @property
    def blocks(self) -> tuple[DType, ...]:
        return (_BLOCKS[self.scale_dtype],) if self.bits == 4 else ()

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        if self.overall and (self.factor(members["global"].read_all()) != 1).any():
            return f"its global scale can't be stored in {dtype}"
        if self.scale_dtype is E4M3:
            seen = _seen(members["scales"])
            if (seen & 0x80).any() or (seen == 0x7F).any():
                return f"{dtype} can't store negative or NaN scales"
        return ""

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        """The same bytes with the nibbles of a group in ggml's order."""
        none = np.empty(0, np.uint8)
        kernels.join_blocks(dtype, 4, self.group, parts["codes"], parts["scales"], none, out)


def _seen(node: Node) -> Bytes:
    """The distinct bytes of a tensor, read in runs of rows."""
    step = max(1, (8 << 20) // node.spec.row_bytes)
    runs = (node.read(lo, min(lo + step, node.spec.rows)) for lo in range(0, node.spec.rows, step))
    return np.unique(np.concatenate([np.unique(run) for run in runs]))


def build(match: Match[MicroLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    scale, codes, scales = match.layout.scale, stored["codes"], stored["scales"]
    if len(codes.spec.shape) > len(match.shape):  # gpt-oss: an axis of blocks
        codes = nodes.reshape(codes, (*match.shape[:-1], codes.spec.shape[-2] * codes.spec.shape[-1]))
    members = {"codes": codes, "scales": nodes.bitcast(scales, scale, scales.spec.shape[-1])}
    if "global" in stored:
        members["global"] = stored["global"]
    bits = match.bits or 4
    kind = "mxfp6" if bits == 6 else {E8M0: "mxfp4", E4M3: "nvfp4"}[scale]
    return QuantizedTensor(
        match.spec, Microscaled(kind, scale, "global" in stored, match.layout.divided, bits), members
    )
