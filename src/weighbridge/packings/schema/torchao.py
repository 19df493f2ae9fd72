"""torchao's tensor subclasses, flattened into safetensors. A module P:

    P._weight_qdata             codes; P._weight_scale, P._weight_zero_point
    __metadata__["P.weight"]    JSON: {"_type": the subclass, "_data": its attributes, "_tensor_data_names": [...]}

    Int8Tensor, IntxUnpackedToInt8Tensor    I8 [out, in]; floats and I8 [out, groups]     (code - zero) * scale
    Float8Tensor                            F8_E4M3 [out, in]; F32 [out, 1] or blocks     code * scale
    MXTensor                                F8_E4M3 [out, in] or U8 [out, in / 2] (E2M1, the first in the low nibble);
                                            F8_E8M0 [out, in / 32]
    NVFP4Tensor                             U8 [out, in / 2]; F8_E4M3 [out, in / 16]; P._weight_per_tensor_scale F32

Codes of fewer than 8 bits take a byte each; only the metadata has their number of bits. Int4Tensor,
Int4PlainInt32Tensor, Int4TilePackedTo4dTensor and swizzled scales are in the order of a GPU kernel: they are refused
by name.
Source: torchao 0.18, prototype/safetensors, quantization/quantize_/workflows, prototype/mx_formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import BY_NAME, FOUR_BITS, U8, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import PROBE_ZEROS
from weighbridge.packings.schema import microscaled, scaled_float
from weighbridge.packings.schema.base import FLOATS, METADATA, Group, Member, PackingSchema, Solution, json_object

NAME: Final = "torchao"
_READ: Final = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor", "MXTensor", "NVFP4Tensor")
_I8: Final = BY_NAME["I8"]
_BITS: Final[Mapping[str, int]] = MappingProxyType({f"int{bits}": bits for bits in range(1, 9)})


def _check_metadata(solve: Callable[[Group, Mapping[str, Any]], Solution]) -> Callable[[Group], Solution]:
    """The solver, preceded by a check that the module's metadata declares a supported layout."""

    def solve_checked(group: Group) -> Solution:
        metadata = group.config.get(METADATA)
        text = metadata.get(f"{group.module}.weight") if isinstance(metadata, Mapping) else None
        described = json_object(text, "its metadata", f"{group.module}.weight") if isinstance(text, str) else {}
        data = described.get("_data")
        data = data if isinstance(data, Mapping) else {}
        if described.get("_type", _READ[0]) not in _READ or data.get("is_swizzled_scales") or "pre" in group.specs:
            raise UnsupportedError(
                f"{group.module} is a {described.get('_type')} in the order of a GPU kernel",
                hint="load it with torchao, dequantize it and save that",
            )
        return solve(group, data)

    return solve_checked


def _solve_int(group: Group, data: Mapping[str, Any]) -> Solution:
    codes, scales, zeros = group.specs["codes"], group.specs["scales"], group.specs.get("zeros")
    fits = len(codes.shape) == len(scales.shape) == 2 and codes.elements and scales.elements
    fits = fits and scales.shape[0] in (1, codes.shape[0]) and not codes.shape[1] % scales.shape[1]
    fits = fits and scales.dtype in FLOATS
    group.need(fits and (zeros is None or (zeros.dtype, zeros.shape) == (_I8, scales.shape)),
               "qdata, scale and zero_point don't belong together",
               "I8 [out, in], floats and I8 [out, groups]")  # fmt: skip
    target = data.get("target_dtype")
    bits = _BITS.get(str(target.get("_data")) if isinstance(target, Mapping) else "int8", 8)
    return Solution(codes.shape, bits, codes.shape[1] // scales.shape[1])


def _solve_fp4(group: Group, data: Mapping[str, Any]) -> Solution:
    scale, codes = group.specs["scales"].dtype, group.specs["codes"]
    group.need(scale in FOUR_BITS, "scales of a type that FP4 doesn't have", "F8_E8M0 or F8_E4M3")
    return microscaled.solve(group, scale, codes.shape, codes.row_bytes)


def _solve_fp8(group: Group, data: Mapping[str, Any]) -> Solution:
    group.need(
        group.specs["codes"].dtype in scaled_float.FLOATS_8, "codes of an unknown type", "I8, U8 or floats of 8 bits"
    )
    return scaled_float.solve(group, group.specs["codes"])._replace(axes={})


def _schema(
    name: str, codes: tuple[DType, ...], solve: Callable[[Group, Mapping[str, Any]], Solution], bits: int
) -> PackingSchema:
    return PackingSchema(
        name, NAME, NAME,
        {
            "codes": Member("._weight_qdata", codes, selects=bool(codes)),
            "scales": Member("._weight_scale"),
            "zeros": Member("._weight_zero_point", required=False, probe=PROBE_ZEROS),
            "global": Member("._weight_per_tensor_scale", required=False),
            "pre": Member("._weight_act_pre_scale", required=False),
        },
        key="codes", solve=_check_metadata(solve), reader="weighbridge.packings.read.torchao", bits=bits,
    )  # fmt: skip


TORCHAO: Final = (
    _schema("torchao-int", (_I8,), _solve_int, 8),
    _schema("torchao-fp4", (U8,), _solve_fp4, 4),
    _schema("torchao-fp8", (), _solve_fp8, 8),
)
