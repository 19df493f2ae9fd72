"""Integer codes with zero points (GPTQ, AWQ, compressed-tensors) as MLX affine with the same values: the codes are
copied, and (code - zero) * scale = code * scale + bias with bias = -zero * scale. And the inverse, if all biases
are such products.

A product of an f16 or bf16 scale and at most 8 bits is exact in F32, so the values are; of an F32 scale that must be
checked value by value. Where the scale's own type holds every bias too (zero points that are powers of two: all
symmetric schemes), it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32, U32, DType
from weighbridge.base.spec import Spec
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.schema import affine
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node

_LOOK: Final = 1 << 18  # bytes of scales at a time: most tensors differ in the first of them


@dataclass(frozen=True)
class _Bias(NoBlockForm):
    """-zero * scale for each group: a packing of its own, because it has two members."""

    grid: IntQuant
    name: str = field(default="bias", init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({m: 1 for m in ("scales", "zeros") if m in self.grid.row_map})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        zeros = self.grid.zeros(parts).astype(np.float32)
        np.multiply(kernels.widened(self.grid.scale_dtype, parts["scales"]), -zeros, out=out)


@dataclass(frozen=True)
class _Codes:
    """The codes of a grid as MLX's words of `bits` bits."""

    grid: IntQuant
    bits: int

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        columns = source.row_bytes * 8 // self.grid.bits
        return {"weight": Spec((*source.shape[:-1], columns * self.bits // 32), U32)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        codes = self.grid.codes({"codes": source})
        if self.grid.bits != 8:  # 7 bits: MLX doesn't have them, so one byte each
            codes = kernels.unpack_codes(self.grid.bits, codes)
        outs["weight"][:] = codes if self.bits == 8 else kernels.pack_codes(self.bits, codes)


def as_affine(node: QuantizedTensor) -> tuple[int, int, Mapping[str, Node]] | None:
    """(bits, group, {weight, scales, biases}) as MLX affine; None if MLX doesn't support such groups."""
    grid = node.packing
    if not isinstance(grid, IntQuant) or grid.ordered:
        return None
    group = next((g for g in reversed(affine.GROUPS) if grid.group % g == 0), None)
    if group is None or not short(node.members["scales"], grid.width):
        return None
    bits = grid.width if grid.width in affine.BITS[1:] else 8
    lead = node.spec.shape[:-1]
    scales = nodes.reshape(node.members["scales"], (*lead, node.spec.shape[-1] // grid.group))
    stored = {m: node.members[m] for m in ("scales", "zeros") if m in node.members}
    biases: Node = nodes.decode(QuantizedTensor(scales.spec.with_dtype(F32), _Bias(grid), stored))
    kept = grid.scale_dtype if _holds(biases, grid.scale_dtype) else F32
    parts = {"weight": _words(node.members["codes"], grid, bits)}
    for name, part in (("scales", scales), ("biases", biases)):
        parts[name] = _repeated(nodes.cast(part, kept), grid.group // group)
    return bits, group, parts


def as_grid(node: QuantizedTensor) -> QuantizedTensor | None:
    """MLX affine as codes around a zero point in the middle of their range, as in symmetric quantizers and ggml's
    blocks without a minimum (for 2 bits also around 1, as in Q2_0 and ternary codes); None if a bias differs. Stops
    reading at the first bias that differs."""
    how = node.packing
    if not isinstance(how, Affine) or how.bits < 2:
        return None
    zeros = (1 << (how.bits - 1), *((1,) if how.bits == 2 else ()))
    zero = next((z for z in zeros if _all_biases(how, node, z)), None)
    if zero is None:
        return None
    grid = IntQuant(how.name, how.bits, how.bits, how.group, how.scale_dtype, zero)
    return QuantizedTensor(node.spec, grid, {"codes": node.members["weight"], "scales": node.members["scales"]})


def _all_biases(how: Affine, node: QuantizedTensor, zero: int) -> bool:
    """Whether every bias is -zero * scale."""
    scales, biases = node.members["scales"], node.members["biases"]
    step = max(1, _LOOK // max(scales.spec.row_bytes, 1))
    for lo in range(0, scales.spec.rows, step):
        hi = min(lo + step, scales.spec.rows)
        of_scales, found = (kernels.widened(how.scale_dtype, part.read(lo, hi)) for part in (scales, biases))
        if not np.array_equal(of_scales * np.float32(-zero), found):
            return False
    return True


def short(scales: Node, width: int) -> bool:
    """Whether every product of a scale and a code of `width` bits is exact in F32: always for f16 or bf16 scales,
    for F32 ones if as many low bits are zero."""
    if scales.spec.dtype is not F32:
        return True
    mask = np.uint32((1 << width) - 1)
    return not (scales.read_all().view(np.uint32) & mask).any()


def _words(codes: Node, grid: IntQuant, bits: int) -> Node:
    if grid.bits == bits and not grid.signed:
        return nodes.bitcast(codes, U32, codes.spec.row_bytes // 4)
    return nodes.pack(codes, _Codes(grid, bits))["weight"]


def _holds(node: Node, dtype: DType) -> bool:
    values = node.read_all()
    return values.tobytes() == nodes.cast(nodes.cast(node, dtype), F32).read_all().tobytes()


def _repeated(node: Node, times: int) -> Node:
    """Repeats each element of a row `times` times: one scale for several of MLX's smaller groups."""
    if times == 1:
        return node
    *lead, groups = node.spec.shape
    rows = node.spec.rows
    line = nodes.reshape(node, (node.spec.elements,))
    spread = nodes.strided(line, 0, (rows, groups, times), (groups, 1, 0))
    return nodes.reshape(spread, (*lead, groups * times))
