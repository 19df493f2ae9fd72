"""Small floats with a scale for each 16 or 32 neighbours. Of 4 bits (E2M1): MXFP4 (a power of two, E8M0) and NVFP4
(E4M3, and one F32 for the whole tensor); two codes a byte, the first in the low nibble. Of 6 bits (E2M3): MXFP6; four
codes in three bytes, the first in the low bits.

    MLX mxfp4, nvfp4        P.weight U32 [.., out, in / 8], P.scales U8 [.., out, in / 32 or 16]
    gpt-oss                 P_blocks U8 [experts, out, in / 32, 16], P_scales U8 [experts, out, in / 32]
    gpt-oss, original       P.blocks, P.scales
    compressed-tensors      P.weight_packed U8 [out, in / 2] (mxfp6: in * 3 / 4), P.weight_scale U8 or F8_E4M3,
                            P.weight_global_scale F32
    ModelOpt NVFP4          P.weight U8 [out, in / 2], P.weight_scale F8_E4M3, P.weight_scale_2 F32

    value = e2m1(code) * scale            exact: 2 and at most 4 significant bits
    value = e2m1(code) * scale * global   ModelOpt: weight_scale_2; compressed-tensors: 1 / weight_global_scale

ggml's MXFP4 and NVFP4 hold the same codes and scales, in another order; a global scale has no place in a block.
Source: OCP MX 1.0, openai/gpt-oss (weights.py), compressed_tensors (nvfp4), ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, F32, U8, U32, DType
from weighbridge.base.spec import Spec
from weighbridge.packings.base import Config, Found, Nodes, described, members, need, stored
from weighbridge.packings.read.scaled import E8M0
from weighbridge.tensors import kernels
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node
from weighbridge.tensors.reference.rounding import E2M1, E2M3

NAME: Final = "fp4"
BLOCKS, SCALES = "_blocks", "_scales"  # what the names of gpt-oss's codes and scales end in
KEYS: Final = (".scales", SCALES, ".weight_packed", ".weight_scale_2")
E4M3: Final = BY_NAME["F8_E4M3"]
MXFP4: Final = BY_NAME["MXFP4"]
NVFP4: Final = BY_NAME["NVFP4"]
_GROUPS: Final = MappingProxyType({E8M0: 32, E4M3: 16})
_BLOCKS: Final = MappingProxyType({E8M0: MXFP4, E4M3: NVFP4})

#: The sixteen values of E2M1 (OCP MX 1.0, 5.3.3).
VALUES: Final = np.concatenate([E2M1, -E2M1])
_SIX: Final = np.concatenate([E2M3, -E2M3])


@dataclass(frozen=True)
class Microscaled:
    """The parameters of one tensor. `overall`: a global scale is there, to multiply or (`divided`) divide by; of a
    stack of matrices one for `each` so many rows."""

    name: str
    scale_dtype: DType
    overall: bool = False
    divided: bool = False
    bits: int = 4
    each: int = 0

    @property
    def group(self) -> int:
        return _GROUPS[self.scale_dtype]

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({"codes": 1, "scales": 1} | ({"global": self.each} if self.overall else {}))

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
        """What values are multiplied with, of the bytes of global scales."""
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
            return f"its global scale has no place in {dtype}"
        if self.scale_dtype is E4M3:
            seen = _seen(members["scales"])
            if (seen & 0x80).any() or (seen == 0x7F).any():
                return f"{dtype} has no negative or NaN scales"
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


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    return _FORMS[key](module, tensors)


def _gpt_oss(module: str, tensors: Nodes) -> Found | None:
    """Called as its codes are: what transformers calls P lies the other way round, [experts, in, out]."""
    for codes in (BLOCKS, ".blocks"):
        scales = codes.replace("blocks", "scales")
        if module + codes in tensors and module + scales in tensors:
            nodes = {"codes": tensors[module + codes], "scales": tensors[module + scales]}
            shape = nodes["codes"].spec.shape
            fits = len(shape) > 1 and shape[-1] == 16 and nodes["scales"].spec.shape == shape[:-1]
            need(fits and _all(nodes, U8), module,
                 "blocks and scales don't belong together", "U8 [.., groups, 16] and U8 [.., groups]",
                 described(nodes))  # fmt: skip
            nodes["codes"] = n.reshape(nodes["codes"], (*shape[:-2], shape[-2] * shape[-1]))
            return found(module + codes, module, nodes, E8M0, frozenset({module + codes, module + scales}))
    return None


def _all(nodes: Mapping[str, Node], dtype: DType) -> bool:
    return all(node.spec.dtype is dtype for node in nodes.values())


def _mlx(module: str, tensors: Nodes) -> Found | None:
    nodes = members(module, tensors, {"codes": ".weight", "scales": ".scales"})
    if "codes" not in nodes:
        return _gpt_oss(module, tensors)
    if nodes["codes"].spec.dtype is not U32 or nodes["scales"].spec.dtype is not U8:
        return None
    columns, groups = nodes["codes"].spec.shape[-1] * 8, nodes["scales"].spec.shape[-1]
    scale = next((d for d, size in _GROUPS.items() if groups * size == columns), None)
    if scale is None:
        need(groups * 64 == columns, module, "words and scales don't belong together",
             "scales [.., in / 32] or [.., in / 16]", described(nodes))  # fmt: skip
        return None  # mxfp8
    overall = tensors.get(f"{module}.global_scale")
    need(overall is None, module, "a stack of experts with global scales", "no global_scale", "global_scale")
    return found(f"{module}.weight", module, nodes, scale, stored(module, tensors, (".weight", ".scales")))


_PACKED: Final = MappingProxyType(
    {"codes": ".weight_packed", "scales": ".weight_scale", "global": ".weight_global_scale"}
)
_MODELOPT: Final = MappingProxyType({"codes": ".weight", "scales": ".weight_scale", "global": ".weight_scale_2"})
_BESIDE: Final = (".input_scale", ".input_global_scale", ".k_scale", ".v_scale")


def _compressed(module: str, tensors: Nodes) -> Found | None:
    return _with_global(module, tensors, _PACKED, divided=True)


def _modelopt(module: str, tensors: Nodes) -> Found | None:
    return _with_global(module, tensors, _MODELOPT, divided=False)


def _with_global(module: str, tensors: Nodes, parts: Mapping[str, str], *, divided: bool) -> Found | None:
    nodes = members(module, tensors, parts)
    if "codes" not in nodes or nodes["codes"].spec.dtype is not U8:
        return None
    need("scales" in nodes, module, "packed weights without scales", parts["scales"], described(nodes))
    scale = E8M0 if nodes["scales"].spec.dtype is U8 else nodes["scales"].spec.dtype
    need(scale in _GROUPS, module, "scales of a type that FP4 has not", "U8 or F8_E4M3", scale)
    if "global" in nodes:
        spec = nodes["global"].spec
        need(spec.dtype is F32 and spec.elements == 1, module, "the global scale is misshapen", "one F32", spec)
    names = stored(module, tensors, (*parts.values(), *_BESIDE))
    return found(f"{module}.weight", module, nodes, scale, names, divided)


def found(
    name: str, module: str, nodes: dict[str, Node], scale: DType, names: frozenset[str], divided: bool = False
) -> Found:
    """The tensor of codes, scales and, where it is there, a global scale. FormatError where they don't belong
    together."""
    codes, scales = nodes["codes"].spec, nodes["scales"].spec
    six = scale is E8M0 and codes.row_bytes == 24 * scales.shape[-1]
    columns = codes.row_bytes * 8 // (6 if six else 4)
    shape = (*codes.shape[:-1], columns)
    need(len(shape) > 1 and scales.shape == (*shape[:-1], columns // _GROUPS[scale]) and scales.elements > 0, module,
         "codes and scales don't belong together", f"scales [.., in / {_GROUPS[scale]}]", described(nodes))  # fmt: skip
    nodes["scales"] = n.retyped(nodes["scales"], scale, scales.shape[-1])
    kind = "mxfp6" if six else {E8M0: "mxfp4", E4M3: "nvfp4"}[scale]
    packing = Microscaled(kind, scale, "global" in nodes, divided, 6 if six else 4)
    return Found(name, QuantizedTensor(Spec(shape, F32), packing, nodes), names)


_FORMS: Final = MappingProxyType(
    {".scales": _mlx, SCALES: _gpt_oss, ".weight_packed": _compressed, ".weight_scale_2": _modelopt}
)
