"""The matrices of `packings.canonical` as the stored tensors of a scheme, by name suffix.

    IntQuantTensor -> GPTQ, AWQ, compressed-tensors packed or int8
    MXTensor       -> compressed-tensors nvfp4, mxfp4, mxfp6, mxfp8
    Fp8Tensor      -> compressed-tensors float-quantized, DeepSeek's fp8

`packings/schema` describes the layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from weighbridge.base.dtypes import BY_NAME, F16, F32, I32, U8, DType
from weighbridge.base.spec import Spec
from weighbridge.packings.canonical import Fp8Tensor, IntQuantTensor, MXTensor, SubtractModulo
from weighbridge.tensors import bits as layouts
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes.base import Bytes, Node

Stored = dict[str, Node]
_I8: Final = BY_NAME["I8"]
_I64: Final = BY_NAME["I64"]


# ------------------------------------------------------------------------------------------------ integers


@dataclass(frozen=True)
class PackWords:
    """Rows of `columns` codes, a byte each, as the words of a layout of `tensors.bits`."""

    layout: str
    bits: int
    columns: int

    @property
    def quantizes(self) -> bool:
        return False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"words": Spec((*source.shape[:-1], -(-self.columns * self.bits // 32)), I32)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        outs["words"][:] = layouts.pack(self.layout, self.bits, source.reshape(-1, self.columns)).reshape(-1)


def _words(node: Node, layout: str, bits: int) -> Node:
    return n.pack(node, PackWords(layout, bits, node.spec.shape[-1]))["words"]


def _less(node: Node, by: int, bits: int, dtype: DType = U8) -> Node:
    return n.pack(node, SubtractModulo(by, bits, dtype))["bytes"] if by else node


def _zeros(form: IntQuantTensor) -> Node:
    """Zero points [out, groups], also where all are the middle."""
    if form.zeros is not None:
        return form.zeros
    return n.const(np.full(form.scales.spec.shape, 1 << (form.bits - 1), np.uint8), U8)


def gptq(form: IntQuantTensor, symmetric: bool) -> Stored:
    """In format 1 where all of the model are symmetric, as all readers know it; else in format 2 (`gptq_v2`): a zero
    point of 0 in format 1 is read in two ways."""
    inner = form.codes.spec.shape[-1]
    zeros = n.transpose(_less(_zeros(form), int(symmetric), form.bits))
    return {
        "qweight": n.transpose(_words(form.codes, "stream", form.bits)),
        "qzeros": _words(zeros, "stream", form.bits),
        "scales": n.transpose(n.cast(form.scales, F16)),
        "g_idx": n.const((np.arange(inner) // form.group).astype(np.int32), I32),
    }


def awq(form: IntQuantTensor, symmetric: bool) -> Stored:
    """GEMM."""
    return {
        "qweight": _words(n.transpose(form.codes), "awq", form.bits),
        "qzeros": _words(n.transpose(_zeros(form)), "awq", form.bits),
        "scales": n.transpose(n.cast(form.scales, F16)),
    }


def packed(form: IntQuantTensor, symmetric: bool) -> Stored:
    """pack-quantized, dense (0.18 and later)."""
    found = {
        "weight_packed": _words(form.codes, "stream", form.bits),
        "weight_scale": form.scales,
        "weight_shape": n.const(np.array(form.codes.spec.shape, np.int64), _I64),
    }
    if form.zeros is not None:
        found["weight_zero_point"] = n.transpose(_words(n.transpose(form.zeros), "stream", form.bits))
    return found


def int8(form: IntQuantTensor, symmetric: bool) -> Stored:
    """int-quantized: 8 bits in two's complement."""
    found = {"weight": _less(form.codes, 128, 8, _I8), "weight_scale": form.scales}
    if form.zeros is not None:
        found["weight_zero_point"] = _less(form.zeros, 128, 8, _I8)
    return found


# ------------------------------------------------------------------------------------------------ floats


def micro(form: MXTensor, symmetric: bool) -> Stored:
    """nvfp4-, mxfp4-, mxfp6-pack-quantized, mxfp8-quantized."""
    found = {"weight" if form.bits == 8 else "weight_packed": form.codes, "weight_scale": form.scales}
    return found if form.overall is None else found | {"weight_global_scale": form.overall}


def small(form: Fp8Tensor, symmetric: bool) -> Stored:
    """float-quantized."""
    return {"weight": form.weight, "weight_scale": form.scales}


def deepseek(form: Fp8Tensor, symmetric: bool) -> Stored:
    return {"weight": form.weight, "weight_scale_inv": n.cast(form.scales, F32)}
