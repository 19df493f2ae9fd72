"""MLX affine quantization as a tensor (`schema/affine.py` has its form in a file).

MLX computes values in the type of the scales. Here they are computed in F32, which rounds less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.base.dtypes import F16, F32, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings import ggml_blocks
from weighbridge.packings.base import row_ranges
from weighbridge.packings.schema.affine import NAME
from weighbridge.packings.schema.base import Match
from weighbridge.tensors import kernels, np
from weighbridge.tensors.nodes import Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS: Final = MappingProxyType({"weight": 1, "scales": 1, "biases": 1})


@dataclass(frozen=True)
class Affine:
    """The parameters of one tensor's affine quantization. Only tensors with equal parameters can be joined."""

    code_bits: int
    group: int
    scale_dtype: DType
    name: str = field(default=NAME, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return _ROWS

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        kernels.affine_decode(
            self.code_bits, self.group, self.scale_dtype, parts["weight"], parts["scales"], parts["biases"], False, out
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("scales", "biases")

    @property
    def blocks(self) -> tuple[DType, ...]:
        signs = (ggml_blocks.Q1_0,) if self.code_bits == 1 and not self.group % ggml_blocks.Q1_0.block else ()
        return signs + ggml_blocks.types_that_fit(0, (1 << self.code_bits) - 1, True, self.group)

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        if dtype is ggml_blocks.Q1_0:
            # 1-bit codes mean d and -d if these tests pass
            scales, biases = members["scales"], members["biases"]
            for lo, hi in row_ranges(scales):
                d = _half(self.scale_dtype, scales.read(lo, hi))
                if not np.array_equal(-d, kernels.widened(self.scale_dtype, biases.read(lo, hi))):
                    return "its two values are not d and -d"
                if not np.array_equal(d, kernels.widened(F16, ggml_blocks.to_f16_bytes(F32, d.view(np.uint8)))):
                    return f"half its {self.scale_dtype} scales are not f16 numbers"
            return ""
        inexact = [m for m in ("scales", "biases") if not ggml_blocks.fits_f16(members[m])]
        return f"its {self.scale_dtype} {' and '.join(inexact)} are not f16 numbers" if inexact else ""

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        """The same codes in ggml's order, scale and bias once a block of 32."""
        if dtype is ggml_blocks.Q1_0:
            d = ggml_blocks.to_f16_bytes(F32, _half(self.scale_dtype, parts["scales"]).view(np.uint8))
            ggml_blocks.of_stream(dtype, d, self.group, parts["weight"], out)
            return
        d, m = (ggml_blocks.to_f16_bytes(self.scale_dtype, parts[p]) for p in ("scales", "biases"))
        kernels.join_blocks(dtype, self.code_bits, self.group, parts["weight"], d, m, out)


def _half(dtype: DType, scales: Bytes) -> NDArray[np.float32]:
    """d for blocks whose codes are signs: value = 2 * d * code - d."""
    half: NDArray[np.float32] = kernels.widened(dtype, scales) / np.float32(2)
    return half


def build(match: Match[None], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    packing = Affine(match.bits or 0, match.group or 0, stored["scales"].spec.dtype)
    return QuantizedTensor(match.spec, packing, stored)
