"""Scheme-neutral quantized matrices [out, in]. Readers produce them without loss, quantizers produce them
(`packings.write.rounding`), and writers turn them into any scheme (`packings.write.schemes`), so conversions cost a sum
and not a product of schemes.

    IntQuantMatrix      GPTQ, AWQ, compressed-tensors and int8 (`packings.int_quant`); MLX affine and ggml's simple
                        blocks if every bias is a whole number of scales
    MicroscaledMatrix   MXFP4, NVFP4 and MXFP8 from any scheme
    ScaledFloatMatrix   FP8 with a scale per row or rectangle

A function that can't represent a tensor returns the reason as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, BY_BLOCK, E4M3, E8M0, F16, F32, MXFP8, NVFP4, U8, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings import mlx_affine_bridge
from weighbridge.packings.base import NoBlockForm, row_ranges
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read import ggml
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.read.microscaled import Microscaled
from weighbridge.packings.read.scaled_float import ScaledFloat
from weighbridge.packings.write import packers
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node


class IntQuantMatrix(NamedTuple):
    """codes U8 [out, in] from 0 to 2**bits - 1; scales, floats [out, groups]; zeros U8 [out, groups], or None for
    2**(bits - 1). value = (code - zero) * scale."""

    bits: int
    group: int
    codes: Node
    scales: Node
    zeros: Node | None

    @property
    def symmetric(self) -> bool:
        return self.zeros is None


class MicroscaledMatrix(NamedTuple):
    """codes U8 [out, in * bits / 8] (8 bits: E4M3); scales U8 (powers of two) or E4M3 [out, in / group]; overall F32
    [1], a divisor."""

    bits: int
    codes: Node
    scales: Node
    overall: Node | None


class ScaledFloatMatrix(NamedTuple):
    """weight E4M3 [out, in]; scales, floats [rows, columns of blocks] to multiply by; `inputs`: the scale of the
    matrix's inputs, a float [1], if they are rounded to E4M3, too, with one scale for every text."""

    block: tuple[int, int]
    weight: Node
    scales: Node
    inputs: Node | None = None


@dataclass(frozen=True)
class SubtractModulo:
    """(byte - by) mod 2**bits, as `dtype` of one byte."""

    by: int
    bits: int
    dtype: DType

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"bytes": source.with_dtype(self.dtype)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        outs["bytes"][:] = (source - np.uint8(self.by)) & np.uint8((1 << self.bits) - 1)


def _matrices(node: QuantizedTensor) -> dict[str, Node]:
    """The members as matrices (moves may have flattened them); a member that all rows share is unchanged."""
    rows = node.spec.rows
    return {
        m: nodes.reshape(x, (rows, x.spec.elements // rows)) if node.packing.row_map[m] == 1 else x
        for m, x in node.members.items()
    }


# ------------------------------------------------------------------------------------------------ integers


def int_quant(node: LogicalTensor) -> IntQuantMatrix | str:
    """A quantized matrix in this form with exactly the same values, or the reason why there is none. Reads its
    scales and biases."""
    if isinstance(node, QuantizedTensor):
        if isinstance(node.packing, IntQuant):
            return _from_int_quant(node, node.packing)
        if isinstance(node.packing, Affine):
            return _from_affine(node.packing.code_bits, node.packing.group, node.spec, _matrices(node))
    elif node.spec.dtype in packers.EXACT and (packer := packers.BlocksOf(node.spec.dtype)).mode == "affine":
        return _from_affine(packer.bits, packer.group, node.spec, nodes.pack(node, packer))
    return "it doesn't have integer codes"


def _from_int_quant(node: QuantizedTensor, packing: IntQuant) -> IntQuantMatrix | str:
    if packing.ordered:
        return "its columns are in the order of activations"
    outer, inner = node.spec.rows, node.spec.shape[-1]
    shape = (outer, inner // packing.group)
    zeros = None
    if packing.zero is None:
        shift = SubtractModulo(-packing.shift % 256, packing.code_bits, U8)
        zeros = nodes.reshape(nodes.pack(node.members["zeros"], shift)["bytes"], shape)
        if all((zeros.read(*rows) == 1 << (packing.code_bits - 1)).all() for rows in row_ranges(zeros)):
            zeros = None
    codes = node.members["codes"]
    codes = nodes.reshape(codes, (outer, codes.spec.elements // outer))
    if packing.storage_bits != 8:
        codes = nodes.codes(codes, "stream", packing.storage_bits, inner)
    elif packing.signed:
        codes = nodes.pack(codes, SubtractModulo(128, 8, U8))["bytes"]
    else:
        codes = nodes.bitcast(codes, U8, inner)
    return IntQuantMatrix(packing.code_bits, packing.group, codes, nodes.reshape(node.members["scales"], shape), zeros)


def _from_affine(bits: int, group: int, spec: Spec, parts: Mapping[str, Node]) -> IntQuantMatrix | str:
    if not mlx_affine_bridge.exact_products(parts["scales"], bits):
        return "products of its F32 scales are rounded"
    distinct: set[int] = set()
    wide = {m: nodes.cast(parts[m], F32) for m in ("scales", "biases")}
    for lo, hi in row_ranges(wide["scales"]):
        scales, biases = (x.read(lo, hi).view(np.float32) for x in wide.values())
        zeros = _zero_points(scales, biases)
        whole = biases.astype(np.float64) == -zeros.astype(np.float64) * scales
        if not (whole & (zeros >= 0) & (zeros < 1 << bits)).all():
            return "its biases aren't multiples of its scales"
        distinct |= {int(z) for z in np.unique(zeros)}
    outer, inner = spec.rows, spec.shape[-1]
    shape = (outer, inner // group)
    words = nodes.reshape(parts["weight"], (outer, parts["weight"].spec.elements // outer))
    zero_points = None
    if not distinct <= {1 << (bits - 1)}:
        quotients = nodes.decode(QuantizedTensor(wide["scales"].spec, _ZeroPoints(), wide))
        zero_points = nodes.reshape(nodes.pack(quotients, _AsBytes())["bytes"], shape)
    return IntQuantMatrix(
        bits, group, nodes.codes(words, "stream", bits, inner), nodes.reshape(parts["scales"], shape), zero_points
    )


def _zero_points(scales: NDArray[np.float32], biases: NDArray[np.float32]) -> NDArray[np.float32]:
    """-bias / scale, rounded; 0 if the scale is zero."""
    with np.errstate(all="ignore"):
        return np.where(scales == 0, np.float32(0), np.rint(-biases / scales))


@dataclass(frozen=True)
class _ZeroPoints(NoBlockForm):
    """-bias / scale of MLX's groups: a packing, because it has two members."""

    name: str = field(default="zero", init=False)
    code_bits: int = field(default=32, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({"scales": 1, "biases": 1})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        out[:] = _zero_points(parts["scales"].view(np.float32), parts["biases"].view(np.float32))


@dataclass(frozen=True)
class _AsBytes:
    """Small integers in F32 as U8."""

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"bytes": source.with_dtype(U8)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        outs["bytes"][:] = source.view(np.float32).astype(np.uint8)


# ------------------------------------------------------------------------------------------------ floats


def microscaled(node: LogicalTensor) -> MicroscaledMatrix | str:
    """As `int_quant`."""
    if isinstance(node, QuantizedTensor):
        if isinstance(node.packing, Microscaled):
            return _from_microscaled(node, node.packing)
        packing, mxfp8 = node.packing, (E4M3, MXFP8.scale, (1, MXFP8.group))
        if isinstance(packing, ScaledFloat) and (packing.dtype, packing.scale_dtype, packing.block) == mxfp8:
            members = _matrices(node)
            return MicroscaledMatrix(MXFP8.bits, members["weight"], _as_bytes(members["scales"]), None)
    elif node.spec.dtype in BY_BLOCK:
        codes, scales = ggml.split_blocks(node)
        return MicroscaledMatrix(4, codes, scales, _ONE if node.spec.dtype is NVFP4.block else None)
    return "it doesn't have 4-bit floats with shared scales"


_ONE: Final = nodes.const(np.ones(1, np.float32), F32)


def _from_microscaled(node: QuantizedTensor, packing: Microscaled) -> MicroscaledMatrix | str:
    members = _matrices(node)
    codes, scales = members["codes"], members["scales"]
    codes = nodes.bitcast(codes, U8, codes.spec.row_bytes)
    if packing.scale_dtype is E8M0:
        if packing.overall:
            return "powers of two and a global scale"
        return MicroscaledMatrix(packing.code_bits, codes, _as_bytes(scales), None)
    if not packing.overall:
        return MicroscaledMatrix(4, codes, scales, _ONE)
    stored = members["global"].read_all()
    divisor = stored.view(np.float32) if packing.divided else _divisor(packing.factor(stored))
    if divisor is None or divisor.size != 1:
        return f"its global scale {packing.factor(stored)[0]:g} isn't the inverse of an F32"
    return MicroscaledMatrix(4, codes, scales, nodes.const(divisor, F32))


def _divisor(factor: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The F32 [1] whose inverse in F32 is this number; None if there is none."""
    with np.errstate(all="ignore"):
        near = np.float32(1) / factor
        candidates = (near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(0)))
        return next((divisor for divisor in candidates if (np.float32(1) / divisor == factor).all()), None)


def _as_bytes(scales: Node) -> Node:
    return nodes.bitcast(scales, U8, scales.spec.shape[-1])


def scaled_float(node: LogicalTensor) -> ScaledFloatMatrix | str:
    """As `int_quant`."""
    if not (isinstance(node, QuantizedTensor) and isinstance(node.packing, ScaledFloat)):
        return "it doesn't have 8-bit floats"
    packing = node.packing
    if packing.dtype is not E4M3 or packing.scale_dtype not in (F32, BF16, F16):
        return f"its values are {packing.dtype} with {packing.scale_dtype} scales"
    return ScaledFloatMatrix(packing.block, node.members["weight"], node.members["scales"])
