"""torchao's tensor subclasses, flattened into safetensors. A module P:

    P._weight_qdata             codes; P._weight_scale, P._weight_zero_point
    __metadata__["P.weight"]    JSON: {"_type": the subclass, "_data": its attributes, "_tensor_data_names": [...]}

    Int8Tensor, IntxUnpackedToInt8Tensor    I8 [out, in]; floats and I8 [out, groups]     (code - zero) * scale
    Float8Tensor                            F8_E4M3 [out, in]; F32 [out, 1] or blocks     code * scale
    MXTensor                                F8_E4M3 [out, in] or U8 [out, in / 2] (E2M1, the first in the low nibble);
                                            F8_E8M0 [out, in / 32]
    NVFP4Tensor                             U8 [out, in / 2]; F8_E4M3 [out, in / 16]; P._weight_per_tensor_scale F32

Codes of fewer than 8 bits lie in bytes; only the metadata says how many they are. Int4Tensor, Int4PlainInt32Tensor,
Int4TilePackedTo4dTensor and swizzled scales are made on a GPU, in the order of a kernel: named and refused.
Source: torchao 0.18, prototype/safetensors, quantization/quantize_/workflows, prototype/mx_formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, U8
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.packings.base import METADATA, Config, Found, Nodes, described, members, need, stored
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read import microfloat, scaled
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node

NAME: Final = "torchao"
KEYS: Final = ("._weight_qdata",)
_PARTS: Final = MappingProxyType(
    {"codes": "._weight_qdata", "scales": "._weight_scale", "zeros": "._weight_zero_point",
     "global": "._weight_per_tensor_scale", "pre": "._weight_act_pre_scale"}
)  # fmt: skip
_READ: Final = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor", "MXTensor", "NVFP4Tensor")
_I8: Final = BY_NAME["I8"]
_FLOATS: Final = (F32, F16, BF16)
_BITS: Final[Mapping[str, int]] = MappingProxyType({f"int{bits}": bits for bits in range(1, 9)})


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    told = _told(module, config)
    parts = members(module, tensors, _PARTS)
    need("scales" in parts, module, "codes without scales", f"{module}._weight_scale", described(parts))
    data = told.get("_data")
    data = data if isinstance(data, Mapping) else {}
    if told.get("_type", _READ[0]) not in _READ or data.get("is_swizzled_scales") or "pre" in parts:
        raise UnsupportedError(
            f"{module} is a {told.get('_type')} in the order of a GPU kernel",
            hint="load it with torchao, dequantize it and save that",
        )
    names = stored(module, tensors, _PARTS.values())
    codes, scales = parts["codes"], parts["scales"]
    if codes.spec.dtype is U8:
        kind = scales.spec.dtype
        need(kind in (scaled.E8M0, microfloat.E4M3), module, "scales of a type that FP4 has not", "F8_E8M0 or F8_E4M3",
             described(parts))  # fmt: skip
        return microfloat.found(f"{module}.weight", module, parts, kind, names)
    if codes.spec.dtype is _I8:
        return Found(f"{module}.weight", _integers(module, parts, data), names)
    return Found(f"{module}.weight", scaled.packed(module, codes, scales), names)


def _told(module: str, config: Config) -> Mapping[str, Any]:
    """What the file's metadata says of a module's weight; {} where it says nothing."""
    metadata = config.get(METADATA)
    text = metadata.get(f"{module}.weight") if isinstance(metadata, Mapping) else None
    if not isinstance(text, str):
        return {}
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise FormatError(f"its metadata is no JSON: {error}", field=f"{module}.weight") from None
    return found


def _integers(module: str, parts: Mapping[str, Node], data: Mapping[str, Any]) -> QuantizedTensor:
    codes, scales = parts["codes"].spec, parts["scales"].spec
    fits = len(codes.shape) == len(scales.shape) == 2 and codes.elements and scales.elements
    fits = fits and scales.shape[0] in (1, codes.shape[0]) and not codes.shape[1] % scales.shape[1]
    fits = fits and scales.dtype in _FLOATS
    if "zeros" in parts:
        fits = fits and (parts["zeros"].spec.dtype, parts["zeros"].spec.shape) == (_I8, scales.shape)
    need(bool(fits), module, "qdata, scale and zero_point don't belong together",
         "I8 [out, in], floats and I8 [out, groups]", described(parts))  # fmt: skip
    target = data.get("target_dtype")
    bits = _BITS.get(str(target.get("_data")) if isinstance(target, Mapping) else "int8", 8)
    maker = Unsigned(bits, module)
    held = {"codes": n.made(parts["codes"], maker)["codes"], "scales": _each(parts["scales"], codes.shape[0])}
    zeros = parts.get("zeros")
    middle = zeros is None or not zeros.read_all().any()
    if zeros is not None and not middle:
        held["zeros"] = _each(n.made(zeros, maker)["codes"], codes.shape[0])
    group = codes.shape[1] // scales.shape[1]
    packing = IntQuant(NAME, 8, bits, group, scales.dtype, 1 << (bits - 1) if middle else None)
    return QuantizedTensor(Spec(codes.shape, F32), packing, held)


def _each(node: Node, rows: int) -> Node:
    """One row for all as a row for each."""
    groups = node.spec.shape[1]
    return node if node.spec.shape[0] == rows else n.strided(n.reshape(node, (groups,)), 0, (rows, groups), (0, 1))


@dataclass(frozen=True)
class Unsigned:
    """Codes of `bits` bits in two's complement, a byte each, as U8 from 0 on."""

    bits: int
    module: str

    @property
    def quantizes(self) -> bool:
        return False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"codes": source.with_dtype(U8)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        out = outs["codes"]
        np.add(source, np.uint8(1 << (self.bits - 1)), out=out)
        if self.bits < 8 and (out >> self.bits).any():
            raise FormatError("codes are larger than their type", field=self.module, expected=f"int{self.bits}")
