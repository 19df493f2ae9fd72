"""Rounding to nearest: packers (see `tensors.nodes.packed`) that compute codes, scales and zero points of F32 values,
which are numbers of the weights' own type.

    RoundToIntQuant       integer codes with a scale per group of columns, and a zero point unless symmetric
    RoundToScaledFloat    8-bit floats with a scale per rectangle
    RoundToMicroscaled    4-, 6- and 8-bit floats with a scale per group of columns (`base/dtypes.py`)

They follow three libraries. compressed-tensors (0.20, `calculate_qparams` and `_quantize` of a min-max observer)
computes in the type of the weights, so every step is rounded to it. GPTQModel (7.7, `Quantizer.find_params`) computes
in F32; it clips a group without negative weights even if its codes are symmetric, which is not repeated here.
transformers (5.23, `Fp8Quantize`) multiplies by 448 / amax instead of dividing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, E4M3, F16, F32, MXFP4, MXFP8, NVFP4, U8, U32, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.write.packers import as_bytes, finite, peaks, rounded
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes

Floats = NDArray[np.float32]

_LARGEST: Final = np.float32(MXFP8.largest)  # of E4M3
_E2M1_LARGEST: Final = np.float32(NVFP4.largest)
#: The scale that replaces zero: the dtype's epsilon (torch.finfo).
_EPSILON: Final[Mapping[DType, float]] = MappingProxyType({F32: 2.0**-23, F16: 2.0**-10, BF16: 2.0**-7})
# ... and for NVFP4 (`_get_dtype_eps`).
_EPSILON_E4M3: Final = np.float32(0.125)
# Mantissa bits.
_MANTISSA: Final[Mapping[DType, int]] = MappingProxyType({F32: 23, F16: 10, BF16: 7})


def _f32(x: NDArray[Any]) -> Floats:
    return x.astype(np.float32, copy=False)


# ------------------------------------------------------------------------------------------------ integers


class IntParameters(NamedTuple):
    """Scales and zero points (of unsigned codes), F32 [groups], and the offsets that the rounding rule adds to values
    (None if it adds none)."""

    scales: Floats
    zeros: Floats
    offsets: Floats | None


def _compressed(low: Floats, high: Floats, bits: int, symmetric: bool, dtype: DType) -> IntParameters:
    top, half = rounded(dtype, np.array([(1 << bits) - 1], np.float32)), np.float32(1 << (bits - 1))
    if symmetric:
        scales = rounded(dtype, _f32(np.maximum(-low, high) / (top / 2)))
        zeros = np.zeros_like(scales)
    else:
        scales = rounded(dtype, rounded(dtype, high - low) / top)
        at = np.clip(rounded(dtype, -half - rounded(dtype, low / scales)), -half, half - 1)
        zeros = np.nan_to_num(np.rint(at))  # 0 / 0 for a group of zeros
    scales = np.where(scales == 0, np.float32(_EPSILON[dtype]), scales)
    return IntParameters(_f32(scales), _f32(zeros + half), None if symmetric else _f32(zeros))


def _gptq(low: Floats, high: Floats, bits: int, symmetric: bool, dtype: DType) -> IntParameters:
    top = np.float32((1 << bits) - 1)
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    empty = (low == 0) & (high == 0)
    low, high = np.where(empty, np.float32(-1), low), np.where(empty, np.float32(1), high)
    scales = (high - low) / top
    zeros = np.full_like(scales, (1 << bits) // 2) if symmetric else np.rint(-low / scales)
    return IntParameters(_f32(scales), _f32(zeros), _f32(zeros))


class _Rule(NamedTuple):
    """A function from the minima and maxima of groups (including zero) to their parameters, the rounding rule of the
    codes, and whether its steps are rounded to the weights' dtype."""

    parameters: Callable[[Floats, Floats, int, bool, DType], IntParameters]
    codes: str
    narrow: bool


RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {"compressed-tensors": _Rule(_compressed, "int", True), "gptq": _Rule(_gptq, "gptq", False)}
)


class GroupRule(Protocol):
    """How groups of a matrix's columns are rounded to unsigned codes of a byte each, with a scale and a zero point (or
    the like) per group."""

    @property
    def bits(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def scale_dtype(self) -> DType: ...

    @property
    def zero_dtype(self) -> DType | None:
        """The type of zero points; None without."""

    def parameters(self, values: Floats) -> IntParameters:
        """The parameters of values whose groups follow each other."""

    def codes(self, values: Floats, parameters: IntParameters, width: int) -> Bytes:
        """Rounds values; each `width` in turn share a scale."""

    def values(self, codes: Bytes, scales: Floats, zeros: Floats) -> Floats:
        """The values that a reader decodes."""

    def members(self, packed: Node, scales: Node, zeros: Node | None, columns: int) -> dict[str, Node]:
        """What is stored, by role: `packed` is a stream of codes, I32 [rows, words]."""

    def logical(self, spec: Spec, members: Mapping[str, Node]) -> QuantizedTensor:
        """The members as one tensor."""


@dataclass(frozen=True)
class RoundToIntQuant:
    """Codes from 0 to 2**bits - 1, one byte each. `group`: columns per scale; `dtype`: the type of the weights;
    `scale_dtype`: the type of the scales."""

    rule: str
    bits: int
    group: int
    symmetric: bool
    dtype: DType
    scale_dtype: DType
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        groups = (*source.shape[:-1], source.shape[-1] // self.group)
        zeros = {} if self.symmetric else {"zeros": Spec(groups, U8)}
        return {"codes": Spec(source.shape, U8), "scales": Spec(groups, self.scale_dtype), **zeros}

    def parameters(self, values: Floats) -> IntParameters:
        """The parameters of values whose groups follow each other."""
        with np.errstate(all="ignore"):
            low, high = kernels.extremes(values, self.group, self.group)
            low, high = np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0))
            return RULES[self.rule].parameters(low, high, self.bits, self.symmetric, self.dtype)

    def codes(self, values: Floats, parameters: IntParameters, width: int) -> Bytes:
        """Rounds values; each `width` in turn share a scale."""
        rule = RULES[self.rule]
        return kernels.round_codes(
            rule.codes, values, parameters.scales, width, width, zeros=parameters.offsets, bits=self.bits,
            dtype=self.dtype if rule.narrow else F32,
        )  # fmt: skip

    @property
    def zero_dtype(self) -> DType | None:
        return None if self.symmetric else U8

    def values(self, codes: Bytes, scales: Floats, zeros: Floats) -> Floats:
        """The values that a reader decodes."""
        return (codes - zeros) * rounded(self.scale_dtype, scales)

    def members(self, packed: Node, scales: Node, zeros: Node | None, columns: int) -> dict[str, Node]:
        """Those of `canonical.IntQuantMatrix`."""
        codes = nodes.codes(packed, "stream", self.bits, columns)
        return {"codes": codes, "scales": scales, **({} if zeros is None else {"zeros": zeros})}

    def logical(self, spec: Spec, members: Mapping[str, Node]) -> QuantizedTensor:
        """The members as one tensor."""
        zero = 1 << (self.bits - 1) if self.symmetric else None
        packing = IntQuant("rounded", 8, self.bits, self.group, self.scale_dtype, zero)
        return QuantizedTensor(spec, packing, members)

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        values = finite(self.name, source)
        parameters = self.parameters(values)
        if "scales" in outs:
            outs["scales"][:] = as_bytes(self.scale_dtype, parameters.scales)
        if "zeros" in outs:
            outs["zeros"][:] = parameters.zeros.astype(np.uint8)
        if "codes" in outs:
            outs["codes"][:] = self.codes(values, parameters, self.group)


@dataclass(frozen=True)
class RoundToAffine:
    """MLX's affine codes: value = code * scale + bias. Scales and biases are those of its own rule (`AffineOf`); the
    biases take the place of zero points."""

    bits: int
    group: int
    scale_dtype: DType

    @property
    def zero_dtype(self) -> DType | None:
        return self.scale_dtype

    def parameters(self, values: Floats) -> IntParameters:
        """See `GroupRule`."""
        _, *stored = kernels.affine_encode(self.bits, self.group, self.scale_dtype, values, False)
        scales, biases = (kernels.widened(self.scale_dtype, part) for part in stored)
        return IntParameters(scales, biases, None)

    def codes(self, values: Floats, parameters: IntParameters, width: int) -> Bytes:
        """See `GroupRule`."""
        scales, biases = (np.repeat(x, width) if width > 1 else x for x in (parameters.scales, parameters.zeros))
        with np.errstate(all="ignore"):
            found = np.clip(np.rint((values - biases) / scales), 0, (1 << self.bits) - 1)
        codes: Bytes = np.nan_to_num(found).astype(np.uint8)
        return codes

    def values(self, codes: Bytes, scales: Floats, zeros: Floats) -> Floats:
        """See `GroupRule`."""
        return codes * rounded(self.scale_dtype, scales) + rounded(self.scale_dtype, zeros)

    def members(self, packed: Node, scales: Node, zeros: Node | None, columns: int) -> dict[str, Node]:
        """MLX's, by suffix."""
        assert zeros is not None
        return {"weight": nodes.bitcast(packed, U32, packed.spec.shape[-1]), "scales": scales, "biases": zeros}

    def logical(self, spec: Spec, members: Mapping[str, Node]) -> QuantizedTensor:
        """See `GroupRule`."""
        return QuantizedTensor(spec, Affine(self.bits, self.group, self.scale_dtype), members)


# ------------------------------------------------------------------------------------------------ 8-bit floats


def e4m3_scales(largest: Floats, dtype: DType) -> Floats:
    """Scales of E4M3 for these largest magnitudes, numbers of a type; none is 0 (`calculate_qparams`)."""
    quotients = rounded(dtype, _f32(largest / _LARGEST))
    return _f32(np.where(quotients == 0, np.float32(_EPSILON[dtype]), quotients))


@dataclass(frozen=True)
class RoundToScaledFloat:
    """E4M3 with one scale per `block` of rows and columns in a matrix of `columns`; the last block may be short.
    `multiplied`: values are multiplied by F32 scales (transformers' rule) instead of divided by the weights' type."""

    block: tuple[int, int]
    columns: int
    dtype: DType
    multiplied: bool = False
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        height, width = self.block
        scales = (-(-source.shape[0] // height), -(-self.columns // width))
        return {"weight": Spec(source.shape, E4M3), "scales": Spec(scales, F32 if self.multiplied else self.dtype)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        """`source` has whole blocks of rows, except for the last ones of the matrix."""
        (height, width), values = self.block, finite(self.name, source)
        low, high = kernels.extremes(values, self.columns, width)
        rows = np.maximum(np.abs(low), np.abs(high)).reshape(-1, -(-self.columns // width))
        with np.errstate(all="ignore"):
            largest = np.maximum.reduceat(rows, np.arange(0, len(rows), height))
            if self.multiplied:
                empty = ~(largest > 0)
                factors = _f32(np.where(empty, np.float32(1), _LARGEST / np.where(empty, np.float32(1), largest)))
                scales = _f32(1 / factors)
            else:
                scales = factors = e4m3_scales(largest, self.dtype)
        if "scales" in outs:
            outs["scales"][:] = as_bytes(F32 if self.multiplied else self.dtype, scales)
        if "weight" in outs:
            row_factors = np.repeat(factors, height, axis=0)[: len(rows)].reshape(-1)
            dtype = F32 if self.multiplied else self.dtype
            outs["weight"][:] = kernels.round_codes(
                "e4m3", values, row_factors, self.columns, width, dtype=dtype, multiplied=self.multiplied
            )

    def make_with(self, source: Bytes, global_scale: Bytes, outs: Mapping[str, Bytes]) -> None:
        """As `make`, with the scale of the only block."""
        values, scale = finite(self.name, source), kernels.widened(self.dtype, global_scale)
        outs["weight"][:] = kernels.round_codes("e4m3", values, scale, values.size, values.size, dtype=self.dtype)


# ------------------------------------------------------------------------------------------------ shared exponents


class _ElementRule(NamedTuple):
    """An element type with a shared exponent: its rounding rule, floor(log2) of its largest value, and the mantissa
    bits to which the exponent is rounded (`generate_mx_scales`)."""

    rule: str
    exponent: int
    mantissa: int


_ELEMENTS: Final[Mapping[int, _ElementRule]] = MappingProxyType(
    {4: _ElementRule("e2m1", 2, 1), 6: _ElementRule("e2m3", 2, 3), 8: _ElementRule("e4m3", 8, 1)}
)


@dataclass(frozen=True)
class RoundToMicroscaled:
    """Elements of `bits` bits with a shared scale: without `overall` a power of two per 32 columns; with it (4
    bits) an E4M3 per 16 columns, relative to the whole-tensor scale that `make_with` receives. `dtype`: the type of the
    weights."""

    bits: int
    dtype: DType
    overall: bool = False
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    @property
    def group(self) -> int:
        return (NVFP4 if self.overall else MXFP4).group

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        *lead, columns = source.shape
        codes = Spec((*lead, columns), E4M3) if self.bits == 8 else Spec((*lead, columns * self.bits // 8), U8)
        return {"codes": codes, "scales": Spec((*lead, columns // self.group), E4M3 if self.overall else U8)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        values = finite(self.name, source)
        with np.errstate(all="ignore"):
            exponents, scales = self._exponents(peaks(values, self.group))
        if "scales" in outs:
            outs["scales"][:] = exponents
        if "codes" in outs:
            outs["codes"][:] = self._codes(values, scales, self.dtype)

    def make_with(self, source: Bytes, global_scale: Bytes, outs: Mapping[str, Bytes]) -> None:
        values, factor = finite(self.name, source), global_scale.view(np.float32)[0]
        with np.errstate(all="ignore"):
            scales = factor * rounded(self.dtype, peaks(values, self.group) / _E2M1_LARGEST)
            scales = rounded(E4M3, _f32(np.clip(scales, -_LARGEST, _LARGEST)))
            scales = _f32(np.where(scales == 0, _EPSILON_E4M3, scales))
            if "scales" in outs:
                outs["scales"][:] = as_bytes(E4M3, scales)
            if "codes" in outs:
                outs["codes"][:] = self._codes(values, scales / factor, F32)

    def _codes(self, values: Floats, scales: Floats, dtype: DType) -> Bytes:
        return kernels.round_codes(_ELEMENTS[self.bits].rule, values, scales, self.group, self.group, dtype=dtype)

    def _exponents(self, largest: Floats) -> tuple[Bytes, Floats]:
        """The scales of groups with these largest magnitudes, as bytes and as values in the weights' dtype. A scale
        has the magnitude's exponent, after rounding its mantissa as `round_to_power_2` does, minus that of the largest
        element. A power too small for the dtype becomes 1."""
        element, mantissa = _ELEMENTS[self.bits], _MANTISSA[self.dtype]
        raised: NDArray[Any] = as_bytes(self.dtype, largest).view(f"<u{self.dtype.size}").astype(np.int64)
        raised += 1 << (mantissa - element.mantissa - 1)
        raised &= -1 << mantissa
        power = kernels.widened(self.dtype, raised.astype(f"<u{self.dtype.size}").view(np.uint8))
        exponent = np.where(power == 0, 0, np.clip(126 + np.frexp(power)[1] - element.exponent, 0, 254))
        scales = rounded(self.dtype, np.exp2(exponent - 127).astype(np.float32))
        vanished = scales == 0
        return np.where(vanished, 127, exponent).astype(np.uint8), np.where(vanished, np.float32(1), scales)


def overall_scale(peak: Floats, dtype: DType) -> Floats:
    """The scale, F32 [1], of a whole tensor with this largest magnitude (`generate_gparam`): 448 * 6 times the
    magnitude's inverse, as torch divides a number by a tensor, in the weights' dtype. In F32 if F16 overflows: the
    library (0.20) uses 1 there, and most group scales then underflow."""
    top, least = np.float32(448 * 6), np.float32(np.finfo(np.float32).tiny)
    with np.errstate(all="ignore"):
        inverse = _f32(1 / np.maximum(peak, least))
        scale = rounded(dtype, rounded(dtype, inverse) * top)
        scale = np.where(np.isfinite(scale), scale, inverse * top)
    return _f32(np.where(np.isfinite(scale), scale, np.float32(1)))


@dataclass(frozen=True)
class E4M3Scale:
    """The scale of E4M3 for a largest magnitude, as `e4m3_scales`."""

    dtype: DType

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"scale": source.with_dtype(self.dtype)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        with np.errstate(all="ignore"):
            outs["scale"][:] = as_bytes(self.dtype, e4m3_scales(source.view(np.float32), self.dtype))


@dataclass(frozen=True)
class GlobalScale:
    """The scale of a whole tensor, from its largest magnitude; `dtype`: the type of the weights."""

    dtype: DType

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"overall": source}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        outs["overall"][:] = overall_scale(source.view(np.float32), self.dtype).view(np.uint8)
