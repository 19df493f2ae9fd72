"""Converts the matrices of `packings.canonical` to the stored tensors of a scheme, keyed by name suffix.

    IntQuantMatrix       -> GPTQ, AWQ, compressed-tensors packed or int8
    MicroscaledMatrix    -> compressed-tensors nvfp4, mxfp4, mxfp6, mxfp8
    ScaledFloatMatrix    -> compressed-tensors float-quantized, DeepSeek's fp8

`packings/schema` describes the layouts and names the suffixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np

from weighbridge.base.dtypes import BY_NAME, F16, F32, I32, U8, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.canonical import IntQuantMatrix, MicroscaledMatrix, ScaledFloatMatrix, SubtractModulo
from weighbridge.packings.schema.awq import AWQ
from weighbridge.packings.schema.base import PackingSchema
from weighbridge.packings.schema.compressed import INPUT_SCALE, INT8, PACKED
from weighbridge.packings.schema.gptq import GPTQ
from weighbridge.packings.schema.microscaled import COMPRESSED_FP4
from weighbridge.packings.schema.scaled_float import COMPRESSED_FP8, DEEPSEEK_FP8
from weighbridge.tensors import bits as layouts
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes.base import Bytes, Node

Stored = dict[str, Node]
_I8: Final = BY_NAME["I8"]
_I64: Final = BY_NAME["I64"]


def _by_suffix(schema: PackingSchema, **members: Node | None) -> Stored:
    """The members, by role, under the schema's suffixes; absent ones are skipped."""
    return {schema.members[role].suffix: node for role, node in members.items() if node is not None}


# ------------------------------------------------------------------------------------------------ integers


@dataclass(frozen=True)
class PackWords:
    """Rows of `columns` codes, one byte each, packed into words in a layout of `tensors.bits`."""

    layout: str
    bits: int
    columns: int

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"words": Spec((*source.shape[:-1], -(-self.columns * self.bits // 32)), I32)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        outs["words"][:] = layouts.pack(self.layout, self.bits, source.reshape(-1, self.columns)).reshape(-1)


def _packed_words(node: Node, layout: str, bits: int) -> Node:
    return nodes.pack(node, PackWords(layout, bits, node.spec.shape[-1]))["words"]


def _subtract(node: Node, by: int, bits: int, dtype: DType = U8) -> Node:
    """Codes minus `by`, modulo 2**bits."""
    return nodes.pack(node, SubtractModulo(by, bits, dtype))["bytes"] if by else node


def _zeros(form: IntQuantMatrix) -> Node:
    """Zero points U8 [out, groups], even if all are the middle of the range."""
    if form.zeros is not None:
        return form.zeros
    return nodes.const(np.full(form.scales.spec.shape, 1 << (form.bits - 1), np.uint8), U8)


def gptq(form: IntQuantMatrix, symmetric: bool) -> Stored:
    """Format 1, which every reader supports, if the whole model is symmetric. Otherwise format 2 (`gptq_v2`), because
    readers disagree about a zero point of 0 in format 1."""
    inner = form.codes.spec.shape[-1]
    zeros = nodes.transpose(_subtract(_zeros(form), int(symmetric), form.bits))
    return _by_suffix(
        GPTQ,
        codes=nodes.transpose(_packed_words(form.codes, "stream", form.bits)),
        zeros=_packed_words(zeros, "stream", form.bits),
        scales=nodes.transpose(nodes.cast(form.scales, F16)),
        g_idx=nodes.const((np.arange(inner) // form.group).astype(np.int32), I32),
    )


def awq(form: IntQuantMatrix, symmetric: bool) -> Stored:
    """The GEMM layout."""
    return _by_suffix(
        AWQ,
        codes=_packed_words(nodes.transpose(form.codes), "awq", form.bits),
        zeros=_packed_words(nodes.transpose(_zeros(form)), "awq", form.bits),
        scales=nodes.transpose(nodes.cast(form.scales, F16)),
    )


def packed(form: IntQuantMatrix, symmetric: bool) -> Stored:
    """pack-quantized, dense (0.18 and later)."""
    zeros = form.zeros and nodes.transpose(_packed_words(nodes.transpose(form.zeros), "stream", form.bits))
    return _by_suffix(
        PACKED,
        codes=_packed_words(form.codes, "stream", form.bits),
        scales=form.scales,
        shape=nodes.const(np.array(form.codes.spec.shape, np.int64), _I64),
        zeros=zeros,
    )


def int8(form: IntQuantMatrix, symmetric: bool) -> Stored:
    """int-quantized: 8 bits in two's complement."""
    zeros = form.zeros and _subtract(form.zeros, 128, 8, _I8)
    return _by_suffix(INT8, codes=_subtract(form.codes, 128, 8, _I8), scales=form.scales, zeros=zeros)


# ------------------------------------------------------------------------------------------------ floats


def microscaled(form: MicroscaledMatrix, symmetric: bool) -> Stored:
    """nvfp4-, mxfp4-, mxfp6-pack-quantized, mxfp8-quantized."""
    if form.bits == 8:
        return _by_suffix(COMPRESSED_FP8, weight=form.codes, scales=form.scales)
    return _by_suffix(COMPRESSED_FP4, codes=form.codes, scales=form.scales, **{"global": form.overall})


def scaled_float(form: ScaledFloatMatrix, symmetric: bool) -> Stored:
    """float-quantized."""
    inputs = {} if form.inputs is None else {INPUT_SCALE: form.inputs}
    return _by_suffix(COMPRESSED_FP8, weight=form.weight, scales=form.scales) | inputs


def scaled_float_blocks(form: ScaledFloatMatrix, symmetric: bool) -> Stored:
    """DeepSeek's block-wise fp8."""
    return _by_suffix(DEEPSEEK_FP8, weight=form.weight, scales=nodes.cast(form.scales, F32))
