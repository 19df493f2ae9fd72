"""Small floats with a scale for each rectangle of the matrix: value = weight * scale, in f32.

    DeepSeek V3, Qwen3, Kimi     P.weight F8_E4M3, P.weight_scale_inv F32 or BF16 [out / 128, in / 128]; multiplied, for
                                 all its name; the last blocks may be partial
    with ue8m0                   the same, the scale a power of two in one byte (F8_E8M0, or called U8)
    DeepSeek V4                  P.weight, P.scale
    compressed-tensors, ModelOpt P.weight_scale: one, [out], [out, 1] or blocks
    mxfp8 (compressed-tensors)   P.weight_scale U8 [out, in / 32], powers of two
    mxfp8 (MLX)                  P.weight U32 words of F8_E4M3, P.scales U8 [out, in / 32]
    Mistral, ComfyUI             P.qscale_weight, P.scale_weight: one
    transformers 5 experts       P (no .weight) [experts, out, in], P_scale_inv

A product of an 8-bit float and a power of two is exact. Source: DeepSeek-V3 inference/kernel.py, compressed_tensors
(float-quantized), OCP MX 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, U8, U32, DType
from weighbridge.base.spec import Spec
from weighbridge.packings.base import Config, Found, NoBlockForm, Nodes, need, stored
from weighbridge.tensors import kernels
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node

NAME: Final = "fp8"
E8M0: Final = BY_NAME["F8_E8M0"]
_E4M3: Final = BY_NAME["F8_E4M3"]
_SMALL: Final = (_E4M3, BY_NAME["F8_E5M2"], BY_NAME["F8_E4M3FNUZ"], BY_NAME["F8_E5M2FNUZ"])
_SCALES: Final = (F32, BF16, F16, E8M0, U8)
# The scale's ending: what the weight's name ends in then. `None`: in nothing, the scale's name is the weight's and
# more.
KEYS: Final = (
    ".weight_scale_inv", ".weight_scale", ".scale_weight", ".qscale_weight", ".scale", ".scales", "_scale_inv",
)  # fmt: skip
BESIDE: Final = (".input_scale", ".activation_scale", ".qscale_act", ".scale_input", ".k_scale", ".v_scale")


@dataclass(frozen=True)
class Scaled(NoBlockForm):
    """The parameters of one tensor: `block` rows and columns share a scale."""

    dtype: DType
    scale_dtype: DType
    block: tuple[int, int]
    name: str = field(default=NAME, init=False)

    @property
    def bits(self) -> int:
        return 8

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({"weight": 1, "scales": self.block[0]})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        columns, (height, width) = spec.shape[-1], self.block
        scales = kernels.widened(self.scale_dtype, parts["scales"]).reshape(-1, -(-columns // width))
        each = scales[np.arange(lo, hi) // height - lo // height].reshape(-1)
        kernels.scaled_decode(self.dtype, parts["weight"], each, columns, width, out)


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    name = module if key == "_scale_inv" else f"{module}.weight"
    weight, scales = tensors.get(name), tensors[module + key]
    if weight is None or scales.spec.dtype not in _SCALES:
        return None
    if weight.spec.dtype is U32 and key == ".scales" and scales.spec.dtype is U8:
        weight = _mlx(weight, scales)
    if weight is None or weight.spec.dtype not in _SMALL:
        return None
    return Found(name, packed(module, weight, scales), stored(module, tensors, (*BESIDE, key)) | {name})


def _mlx(words: Node, scales: Node) -> Node | None:
    """MLX's words as the floats they are; None where it is one of its 4-bit modes, which have twice the columns."""
    columns, groups = words.spec.shape[-1] * 4, scales.spec.shape[-1]
    return n.retyped(words, _E4M3, columns) if groups and columns == groups * 32 else None


def packed(module: str, weight: Node, scales: Node) -> QuantizedTensor:
    """8-bit floats and the scales of their rectangles. FormatError where they don't belong together."""
    need(len(weight.spec.shape) in (2, 3) and weight.spec.elements > 0, module, "the weight is no matrix",
         "[out, in] or [experts, out, in]", weight.spec)  # fmt: skip
    if scales.spec.dtype is U8:
        scales = n.retyped(scales, E8M0, scales.spec.shape[-1])
    *lead, outer, _ = weight.spec.shape
    block, grid = _blocks(module, weight.spec, scales, bool(lead))
    need(not lead or outer % block[0] == 0, module, "experts don't end with a block of scales",
         f"a multiple of {block[0]} rows", outer)  # fmt: skip
    packing = Scaled(weight.spec.dtype, scales.spec.dtype, block)
    return QuantizedTensor(weight.spec.with_dtype(F32), packing, {"weight": weight, "scales": grid})


# Heights and widths of blocks that files have, the usual first.
_SIDES: Final = ((128, 128), (32, 32), (64, 64), (1, 128), (1, 64), (1, 32))


def _blocks(module: str, weight: Spec, scales: Node, stack: bool) -> tuple[tuple[int, int], Node]:
    """(rows, columns) of a block, and the scales as [rows of blocks, columns of blocks]."""
    *lead, outer, inner = weight.shape
    count = scales.spec.elements
    rows = weight.rows
    if count == 1:
        return (rows, inner), n.reshape(scales, (1, 1))
    if lead and count == lead[0]:
        return (outer, inner), n.reshape(scales, (count, 1))
    if count == rows:
        return (1, inner), n.reshape(scales, (rows, 1))
    down, across = scales.spec.shape[-2:] if len(scales.spec.shape) > 1 else (0, 0)
    for height, width in _SIDES:
        if (down, across) == (-(-outer // height), -(-inner // width)) and scales.spec.shape[:-2] == tuple(lead):
            return (height, width), n.reshape(scales, (scales.spec.rows, across))
    need(False, module, "the scales don't belong to the weight", f"blocks of {list(weight.shape)}", scales.spec)
    raise AssertionError
