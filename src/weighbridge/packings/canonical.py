"""Scheme-neutral quantized matrices [out, in]. Readers produce them losslessly, quantizers produce them
(`packings.write.rounding`), and writers turn them into any scheme (`packings.write.schemes`), so moves cost a sum and
not a product of schemes.

    IntQuantTensor  GPTQ, AWQ, compressed-tensors and int8 (`packings.int_quant`); MLX affine and ggml's simple blocks
                    where every bias is a whole number of scales
    MXTensor        MXFP4, NVFP4 and MXFP8 of whatever origin
    Fp8Tensor       FP8 with a scale for each row or rectangle

A tensor that a form can't represent gives the reason in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, F32, U8, DType
from weighbridge.base.spec import Spec
from weighbridge.packings import mlx_affine_bridge
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read import ggml
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.read.microfloat import MXFP4, NVFP4, Microscaled
from weighbridge.packings.read.scaled import ScaledFloats
from weighbridge.packings.schema.microfloat import E4M3, E8M0
from weighbridge.packings.write import packers
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node


class IntQuantTensor(NamedTuple):
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


class MXTensor(NamedTuple):
    """codes U8 [out, in * bits / 8] (8 bits: E4M3); scales U8 (powers of two) or E4M3; overall F32 [1], a divisor."""

    bits: int
    codes: Node
    scales: Node
    overall: Node | None


class Fp8Tensor(NamedTuple):
    """weight E4M3 [out, in]; scales, floats [rows, columns of blocks] to multiply with."""

    block: tuple[int, int]
    weight: Node
    scales: Node


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


# ------------------------------------------------------------------------------------------------ integers

_NO_INTEGERS: Final = "it doesn't have integer codes"


def integers(node: LogicalTensor) -> IntQuantTensor | str:
    """A quantized matrix in this form with exactly the same values, or the reason why there is none. Reads its
    scales and biases."""
    if isinstance(node, QuantizedTensor):
        return _packed_integers(node)
    if node.spec.dtype in packers.EXACT and packers.BlocksOf(node.spec.dtype).mode == "affine":
        packer = packers.BlocksOf(node.spec.dtype)
        return _of_affine(packer.bits, packer.group, node.spec, nodes.pack(node, packer))
    return _NO_INTEGERS


def _packed_integers(tensor: QuantizedTensor) -> IntQuantTensor | str:
    packing = tensor.packing
    if isinstance(packing, IntQuant):
        return _of_grid(tensor, packing)
    if isinstance(packing, Affine):
        return _of_affine(packing.bits, packing.group, tensor.spec, _matrices(tensor))
    return _NO_INTEGERS


def _of_grid(node: QuantizedTensor, grid: IntQuant) -> IntQuantTensor | str:
    if grid.ordered:
        return "its columns are in the order of activations"
    outer, inner = node.spec.rows, node.spec.shape[-1]
    shape = (outer, inner // grid.group)
    zeros = None if grid.zero is not None else nodes.reshape(_zeros(node, grid), shape)
    if zeros is not None and all((run == 1 << (grid.width - 1)).all() for run in _runs(zeros)):
        zeros = None
    codes = node.members["codes"]
    codes = nodes.reshape(codes, (outer, codes.spec.elements // outer))
    if grid.bits != 8:
        codes = nodes.codes(codes, "stream", grid.bits, inner)
    elif grid.signed:
        codes = nodes.pack(codes, SubtractModulo(128, 8, U8))["bytes"]
    else:
        codes = nodes.bitcast(codes, U8, inner)
    return IntQuantTensor(grid.width, grid.group, codes, nodes.reshape(node.members["scales"], shape), zeros)


def _zeros(node: QuantizedTensor, grid: IntQuant) -> Node:
    stored = node.members["zeros"]
    return nodes.pack(stored, SubtractModulo(-grid.shift % 256, grid.width, U8))["bytes"]


def _of_affine(bits: int, group: int, spec: Spec, parts: Mapping[str, Node]) -> IntQuantTensor | str:
    if not mlx_affine_bridge.short(parts["scales"], bits):
        return "products of its F32 scales are rounded"
    seen: set[int] = set()
    for scales, biases in _pairs(parts["scales"], parts["biases"]):
        zeros = _whole(scales, biases)
        same = biases.astype(np.float64) == -zeros.astype(np.float64) * scales
        if not (same & (zeros >= 0) & (zeros < 1 << bits)).all():
            return "its biases aren't multiples of its scales"
        seen |= {int(z) for z in np.unique(zeros)}
    outer, inner = spec.rows, spec.shape[-1]
    shape = (outer, inner // group)
    words = nodes.reshape(parts["weight"], (outer, parts["weight"].spec.elements // outer))
    zeros_node = None if seen <= {1 << (bits - 1)} else nodes.reshape(_zero_points(parts), shape)
    return IntQuantTensor(
        bits, group, nodes.codes(words, "stream", bits, inner), nodes.reshape(parts["scales"], shape), zeros_node
    )


def _whole(scales: NDArray[np.float32], biases: NDArray[np.float32]) -> NDArray[np.float32]:
    """Zero points that biases are; of a scale of zero 0."""
    with np.errstate(all="ignore"):
        found = np.rint(-biases / scales)
    return np.where(scales == 0, np.float32(0), found)


@dataclass(frozen=True)
class _Zero(NoBlockForm):
    """-bias / scale for MLX's groups: a packing of its own, because it has two members."""

    name: str = field(default="zero", init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({"scales": 1, "biases": 1})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        out[:] = _whole(parts["scales"].view(np.float32), parts["biases"].view(np.float32))


@dataclass(frozen=True)
class _AsBytes:
    """Small integers in F32 as U8."""

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"bytes": source.with_dtype(U8)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        outs["bytes"][:] = source.view(np.float32).astype(np.uint8)


def _zero_points(parts: Mapping[str, Node]) -> Node:
    kept = {m: nodes.cast(parts[m], F32) for m in ("scales", "biases")}
    return nodes.pack(nodes.decode(QuantizedTensor(kept["scales"].spec, _Zero(), kept)), _AsBytes())["bytes"]


def _pairs(a: Node, b: Node) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """The values of two parameter tensors of one shape, in runs of rows."""
    for scales, biases in zip(_runs(nodes.cast(a, F32)), _runs(nodes.cast(b, F32)), strict=True):
        yield scales.view(np.float32), biases.view(np.float32)


def _runs(node: Node) -> Iterator[Bytes]:
    step = max(1, (4 << 20) // max(node.spec.row_bytes, 1))
    for lo in range(0, node.spec.rows, step):
        yield node.read(lo, min(lo + step, node.spec.rows))


def _matrices(node: QuantizedTensor) -> dict[str, Node]:
    """Members as matrices: moves may have flattened them."""
    rows = node.spec.rows
    return {m: nodes.reshape(x, (rows, x.spec.elements // rows)) for m, x in node.members.items()}


# ------------------------------------------------------------------------------------------------ floats


_NO_MICRO: Final = "it doesn't have 4-bit floats with shared scales"


def micro(node: LogicalTensor) -> MXTensor | str:
    """As `integers`."""
    if isinstance(node, QuantizedTensor):
        return _packed_micro(node)
    if node.spec.dtype in (MXFP4, NVFP4):
        codes, scales = ggml.parts_of(node)
        return MXTensor(
            4, codes, scales, nodes.const(np.ones(1, np.float32), F32) if node.spec.dtype is NVFP4 else None
        )
    return _NO_MICRO


def _packed_micro(tensor: QuantizedTensor) -> MXTensor | str:
    if isinstance(tensor.packing, Microscaled):
        return _of_micro(tensor, tensor.packing)
    if isinstance(tensor.packing, ScaledFloats) and _mx(tensor.packing):
        members = _matrices(tensor)
        return MXTensor(8, members["weight"], _bytes(members["scales"]), None)
    return _NO_MICRO


def _mx(how: ScaledFloats) -> bool:
    return (how.dtype, how.scale_dtype, how.block) == (E4M3, E8M0, (1, 32))


def _of_micro(node: QuantizedTensor, how: Microscaled) -> MXTensor | str:
    parts = _matrices(node) if not how.overall else _matrices_but(node, "global")
    codes, scales = parts["codes"], parts["scales"]
    codes = nodes.bitcast(codes, U8, codes.spec.row_bytes)
    if how.scale_dtype is E8M0:
        return "powers of two and a global scale" if how.overall else MXTensor(how.bits, codes, _bytes(scales), None)
    if not how.overall:
        return MXTensor(4, codes, scales, nodes.const(np.ones(1, np.float32), F32))
    wanted = node.members["global"].read_all()
    divisor = wanted.view(np.float32) if how.divided else _inverse(how.factor(wanted))
    if divisor is None or divisor.size != 1:
        return f"its global scale {how.factor(wanted)[0]:g} isn't the inverse of an F32"
    return MXTensor(4, codes, scales, nodes.const(divisor, F32))


def _inverse(factor: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The F32 [1] whose inverse in F32 is this number; None if there is none."""
    with np.errstate(all="ignore"):
        near = np.float32(1) / factor
        for found in (near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(0))):
            if (np.float32(1) / found == factor).all():
                return found
    return None


def _bytes(scales: Node) -> Node:
    return nodes.bitcast(scales, U8, scales.spec.shape[-1])


def _matrices_but(node: QuantizedTensor, whole: str) -> dict[str, Node]:
    kept = {m: x for m, x in node.members.items() if m != whole}
    return _matrices(QuantizedTensor(node.spec, node.packing, kept))


def small(node: LogicalTensor) -> Fp8Tensor | str:
    """As `integers`."""
    if not (isinstance(node, QuantizedTensor) and isinstance(node.packing, ScaledFloats)):
        return "it doesn't have 8-bit floats"
    how = node.packing
    if how.dtype is not E4M3 or how.scale_dtype not in _SCALES:
        return f"its values are {how.dtype} with {how.scale_dtype} scales"
    return Fp8Tensor(how.block, node.members["weight"], node.members["scales"])


_SCALES: Final = tuple(BY_NAME[name] for name in ("F32", "BF16", "F16"))
