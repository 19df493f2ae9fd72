"""Names and numeric codes of weight types, for engines that switch on a number.

Codes below 64 are ggml's (`enum ggml_type`). MLX affine has 96 to 102; 99 to 102 (3, 4, 8 and 6 bits) equal those of
the Akunu engine. 200 and up are plain types without a ggml number, 300 and up other packings. Codes never change
their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.tensors.nodes import LogicalTensor, QuantizedTensor

#: Plain types without a ggml number.
PLAIN: Final[Mapping[str, int]] = MappingProxyType({
    "BOOL": 200, "U8": 201, "U16": 202, "U32": 203, "U64": 204, "F8_E4M3": 205, "F8_E5M2": 206, "F8_E8M0": 207,
    "F8_E4M3FNUZ": 208, "F8_E5M2FNUZ": 209, "F4": 210, "F6_E2M3": 211, "F6_E3M2": 212, "C64": 213, "C128": 214,
})  # fmt: skip
#: MLX affine by bits.
AFFINE: Final[Mapping[int, int]] = MappingProxyType({1: 96, 2: 97, 5: 98, 3: 99, 4: 100, 8: 101, 6: 102})
#: Other packings by name and bits of a code.
PACKED: Final[Mapping[str, int]] = MappingProxyType({
    "gptq": 300, "awq": 320, "compressed-tensors": 340, "torchao": 360, "bitsandbytes": 380, "hqq": 400, "bitnet": 420,
    "mxfp": 440, "nvfp4": 460, "fp4": 470, "fp8": 480,
})  # fmt: skip


class WeightType(NamedTuple):
    """How a weight is stored: its name (`Q4_K`, `mlx-affine-4`, `BF16`) and its code; None for a packing of a plug-in
    or a block type without one."""

    name: str
    code: int | None


def type_of(tensor: LogicalTensor) -> WeightType:
    """Returns the stored type of a weight."""
    if isinstance(tensor, QuantizedTensor):
        return packed_type(tensor.packing.name, tensor.packing.code_bits)
    return WeightType(tensor.spec.dtype.name, code_of(tensor.spec.dtype))


def packed_type(name: str, bits: int) -> WeightType:
    """The type of a packing's weights by the bits of a code."""
    if name == "mlx-affine":
        code = AFFINE.get(bits)
    else:
        code = next((base + bits for known, base in PACKED.items() if name.startswith(known)), None)
    return WeightType(f"{name}-{bits}", code)


def code_of(dtype: DType) -> int | None:
    """The code of a row of the type table."""
    return dtype.ggml if dtype.ggml is not None else PLAIN.get(dtype.name)
