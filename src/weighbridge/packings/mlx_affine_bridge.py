"""Integer codes with zero points (GPTQ, AWQ, compressed-tensors) as MLX affine with the same values: the codes are
copied, and (code - zero) * scale = code * scale + bias with bias = -zero * scale. And the inverse, if all biases
are such products.

The product of an F16 or BF16 scale and at most 8 bits is exact in F32, so the values are. An F32 scale must be checked
value by value. The scale keeps its type if that type also holds every bias (zero points that are powers of two: all
symmetric schemes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from weighbridge.base.dtypes import F32, U32
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.schema import affine
from weighbridge.tensors import kernels, nodes, np
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Bytes of scales at a time: most tensors differ in the first few of them. A transposed tensor is read whole each time.
_FIRST: Final = 1 << 12
_CHUNK: Final = 1 << 18


@dataclass(frozen=True)
class _Bias(NoBlockForm):
    """-zero * scale per group: a packing, because it has two members."""

    codes: IntQuant
    name: str = field(default="bias", init=False)
    code_bits: int = field(default=32, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({m: 1 for m in ("scales", "zeros") if m in self.codes.row_map})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        zeros = self.codes.zeros(parts).astype(np.float32)
        np.multiply(kernels.widened(self.codes.scale_dtype, parts["scales"]), -zeros, out=out)


@dataclass(frozen=True)
class _Words:
    """Codes of a packing as MLX's words of `bits` bits."""

    packing: IntQuant
    bits: int

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        columns = source.row_bytes * 8 // self.packing.storage_bits
        return {"weight": Spec((*source.shape[:-1], columns * self.bits // 32), U32)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        codes = self.packing.codes({"codes": source})
        if self.packing.storage_bits != 8:  # 7 bits: MLX doesn't have them, so one byte each
            codes = kernels.unpack_codes(self.packing.storage_bits, codes)
        outs["weight"][:] = codes if self.bits == 8 else kernels.pack_codes(self.bits, codes)


def as_affine(node: QuantizedTensor) -> tuple[int, int, Mapping[str, Node]] | None:
    """(bits, group, {weight, scales, biases}) as MLX affine; None if MLX doesn't support such groups."""
    packing = node.packing
    if not isinstance(packing, IntQuant) or packing.ordered:
        return None
    group = next((g for g in reversed(affine.GROUPS) if packing.group % g == 0), None)
    if group is None or not exact_products(node.members["scales"], packing.code_bits):
        return None
    bits = packing.code_bits if packing.code_bits in affine.BITS[1:] else 8
    scales = nodes.reshape(node.members["scales"], (*node.spec.shape[:-1], node.spec.shape[-1] // packing.group))
    stored = {m: node.members[m] for m in ("scales", "zeros") if m in node.members}
    biases: Node = nodes.decode(QuantizedTensor(scales.spec.with_dtype(F32), _Bias(packing), stored))
    dtype = packing.scale_dtype if _holds_biases(packing, scales, biases) else F32
    codes = node.members["codes"]
    if packing.storage_bits == bits and not packing.signed:
        words = nodes.bitcast(codes, U32, codes.spec.row_bytes // 4)
    else:
        words = nodes.pack(codes, _Words(packing, bits))["weight"]
    parts = {"weight": words}
    for name, part in (("scales", scales), ("biases", biases)):
        parts[name] = _repeat(nodes.cast(part, dtype), packing.group // group)
    return bits, group, parts


def _holds_biases(packing: IntQuant, scales: Node, biases: Node) -> bool:
    """Whether the scales' type holds every bias."""
    dtype, zero = packing.scale_dtype, packing.zero
    if dtype is F32:
        return True
    if zero is not None and zero & (zero - 1) == 0:  # a power of two: the product is exact unless it overflows
        stored = scales.source if isinstance(scales, nodes.Transpose) else scales  # in any order
        stats = kernels.stats(dtype, stored.read_all())
        if not stats.nan and not stats.inf:
            with np.errstate(over="ignore"):
                largest = np.array([max(-(stats.minimum or 0.0), stats.maximum or 0.0) * zero], np.float32)
            return kernels.cast(F32, dtype, largest.view(np.uint8), np.empty(dtype.size, np.uint8)).overflow == 0
    rounded = nodes.cast(nodes.cast(biases, dtype), F32)
    return all(biases.read(lo, hi).tobytes() == rounded.read(lo, hi).tobytes() for lo, hi in _first_few(biases))


def _first_few(node: Node) -> Iterator[tuple[int, int]]:
    """A few rows, and then the others."""
    few = min(node.spec.rows, max(1, _FIRST // max(node.spec.row_bytes, 1)))
    yield 0, few
    step = node.spec.rows if any(below.stripes for below in nodes.walk(node)) else _CHUNK // max(node.spec.row_bytes, 1)
    for lo in range(few, node.spec.rows, max(1, step)):
        yield lo, min(lo + max(1, step), node.spec.rows)


def as_int_quant(node: QuantizedTensor) -> QuantizedTensor | None:
    """MLX affine as codes around a zero point in the middle of their range, as in symmetric quantizers and ggml's
    blocks without a minimum (for 2 bits also around 1, as in Q2_0 and ternary codes); None if a bias differs. Stops
    reading at the first bias that differs."""
    packing = node.packing
    if not isinstance(packing, Affine) or packing.code_bits < 2:
        return None
    zeros = (1 << (packing.code_bits - 1), *((1,) if packing.code_bits == 2 else ()))
    zero = next((z for z in zeros if _has_zero_point(packing, node, z)), None)
    if zero is None:
        return None
    int_quant = IntQuant(packing.name, packing.code_bits, packing.code_bits, packing.group, packing.scale_dtype, zero)
    return QuantizedTensor(node.spec, int_quant, {"codes": node.members["weight"], "scales": node.members["scales"]})


def _has_zero_point(packing: Affine, node: QuantizedTensor, zero: int) -> bool:
    """Whether every bias is -zero * scale."""
    members = node.members["scales"], node.members["biases"]
    for lo, hi in _first_few(members[0]):
        scales, biases = (kernels.widened(packing.scale_dtype, member.read(lo, hi)) for member in members)
        if not np.array_equal(scales * np.float32(-zero), biases):
            return False
    return True


def exact_products(scales: Node, width: int) -> bool:
    """Whether every product of a scale and a code of `width` bits is exact in F32: always for F16 or BF16 scales,
    for F32 ones if as many low bits are zero."""
    if scales.spec.dtype is not F32:
        return True
    mask = np.uint32((1 << width) - 1)
    return not (scales.read_all().view(np.uint32) & mask).any()


def _repeat(node: Node, times: int) -> Node:
    """Repeats each element of a row `times` times: one scale for several of MLX's smaller groups."""
    if times == 1:
        return node
    *lead, groups = node.spec.shape
    line = nodes.reshape(node, (node.spec.elements,))
    repeated = nodes.strided(line, 0, (node.spec.rows, groups, times), (groups, 1, 0))
    return nodes.reshape(repeated, (*lead, groups * times))
