"""Rounding to nearest: codes, scales and zero points of F32 values that are numbers of the weights' own type. Packers
(see `tensors.nodes.packed`), row for row.

    IntegersOf    integer codes with a scale, and where asymmetric a zero point, for a group of columns
    SmallOf       8-bit floats with a scale for a rectangle
    MicroOf       4-, 6- and 8-bit floats with a power of two for 32 columns; 4-bit ones with an E4M3 for 16 and one F32
                  for the tensor

Two rules. compressed-tensors (0.20, `calculate_qparams` and `_quantize` of a min-max observer) computes in the type of
the weights, so every step is rounded to it. GPTQModel (7.7, `Quantizer.find_params`) computes in F32;
where it takes a group without negative weights for one-sided though its codes are symmetric, and so clips it, here it
isn't. transformers (5.23, `Fp8Quantize`) divides by nothing: it multiplies by 448 / amax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, F16, F32, U8, DType
from weighbridge.base.spec import Spec
from weighbridge.packings.schema.microfloat import E4M3
from weighbridge.packings.write.packers import finite
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes.base import Bytes

Floats = NDArray[np.float32]

_LARGEST: Final = np.float32(448)  # of E4M3
_E2M1_LARGEST: Final = np.float32(6)
#: The scale used in place of zero: the dtype's epsilon (torch.finfo).
_EPSILON: Final[Mapping[DType, float]] = MappingProxyType({F32: 2.0**-23, F16: 2.0**-10, BF16: 2.0**-7})
# ... and for NVFP4 (`_get_dtype_eps`).
_EPSILON_E4M3: Final = np.float32(0.125)
# Mantissa bits, and the unsigned type of the same size.
_MANTISSA: Final[Mapping[DType, int]] = MappingProxyType({F32: 23, F16: 10, BF16: 7})


def as_bytes(dtype: DType, x: Floats) -> Bytes:
    """Values as `dtype`, rounded to nearest even."""
    out = np.empty(x.size * dtype.size, np.uint8)
    kernels.cast(F32, dtype, np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint8), out)
    return out


def rounded(dtype: DType, x: Floats) -> Floats:
    """Values rounded to `dtype`."""
    return x if dtype is F32 else kernels.widened(dtype, as_bytes(dtype, x)).reshape(x.shape)


def _f32(x: NDArray[Any]) -> Floats:
    return x.astype(np.float32, copy=False)


# ------------------------------------------------------------------------------------------------ integers


class _Found(NamedTuple):
    """Scales and zero points (of unsigned codes) of groups, and the offsets that the rounding rule adds to values
    (empty if it needs none)."""

    scales: Floats
    zeros: Floats
    added: Floats | None


def _compressed(low: Floats, high: Floats, bits: int, symmetric: bool, dtype: DType) -> _Found:
    top, half = rounded(dtype, np.array([(1 << bits) - 1], np.float32)), np.float32(1 << (bits - 1))
    if symmetric:
        scales = rounded(dtype, _f32(np.maximum(-low, high) / (top / 2)))
        zeros = np.zeros_like(scales)
    else:
        scales = rounded(dtype, rounded(dtype, high - low) / top)
        at = np.clip(rounded(dtype, -half - rounded(dtype, low / scales)), -half, half - 1)
        zeros = np.nan_to_num(np.rint(at))  # 0 / 0 for a group of zeros
    scales = np.where(scales == 0, np.float32(_EPSILON[dtype]), scales)
    return _Found(_f32(scales), _f32(zeros + half), None if symmetric else _f32(zeros))


def _gptq(low: Floats, high: Floats, bits: int, symmetric: bool, dtype: DType) -> _Found:
    top = np.float32((1 << bits) - 1)
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    empty = (low == 0) & (high == 0)
    low, high = np.where(empty, np.float32(-1), low), np.where(empty, np.float32(1), high)
    scales = (high - low) / top
    zeros = np.full_like(scales, (1 << bits) // 2) if symmetric else np.rint(-low / scales)
    return _Found(_f32(scales), _f32(zeros), _f32(zeros))


class _Rule(NamedTuple):
    """The parameters of groups with these minima and maxima (of values including zero), their rounding rule, and
    whether its steps are rounded to the weights' dtype."""

    parameters: Callable[[Floats, Floats, int, bool, DType], _Found]
    codes: str
    narrow: bool


RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {"compressed-tensors": _Rule(_compressed, "int", True), "gptq": _Rule(_gptq, "gptq", False)}
)


@dataclass(frozen=True)
class IntegersOf:
    """Codes from 0 to 2**bits - 1, one byte each. `dtype`: of the weights; `scale_dtype`: of the scales; `group`:
    columns per scale."""

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
        own = {"codes": Spec(source.shape, U8), "scales": Spec(groups, self.scale_dtype)}
        return own if self.symmetric else own | {"zeros": Spec(groups, U8)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        values, rule = finite(self.name, source), RULES[self.rule]
        with np.errstate(all="ignore"):
            low, high = kernels.extremes(values, self.group, self.group)
            low, high = np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0))
            found = rule.parameters(low, high, self.bits, self.symmetric, self.dtype)
            if "scales" in outs:
                outs["scales"][:] = as_bytes(self.scale_dtype, found.scales)
            if "zeros" in outs:
                outs["zeros"][:] = found.zeros.astype(np.uint8)
        if "codes" in outs:
            outs["codes"][:] = kernels.round_codes(
                rule.codes, values, found.scales, self.group, self.group, zeros=found.added, bits=self.bits,
                dtype=self.dtype if rule.narrow else F32,
            )  # fmt: skip


# ------------------------------------------------------------------------------------------------ 8-bit floats


@dataclass(frozen=True)
class SmallOf:
    """E4M3 with one scale per `block` of rows and columns in a matrix of `columns`; the last block may be short.
    `multiplied`: by transformers' rule, whose scales are F32."""

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
        """Row ranges in whole blocks, except for the last."""
        (height, width), values = self.block, finite(self.name, source)
        low, high = kernels.extremes(values, self.columns, width)
        rows = np.maximum(np.abs(low), np.abs(high)).reshape(-1, -(-self.columns // width))
        with np.errstate(all="ignore"):
            peaks = np.maximum.reduceat(rows, np.arange(0, len(rows), height))
            scales, factors = (self._inverse if self.multiplied else self._divisors)(peaks)
        if "scales" in outs:
            outs["scales"][:] = as_bytes(F32 if self.multiplied else self.dtype, scales)
        if "weight" in outs:
            each = np.repeat(factors, height, axis=0)[: len(rows)].reshape(-1)
            dtype = F32 if self.multiplied else self.dtype
            outs["weight"][:] = kernels.round_codes(
                "e4m3", values, each, self.columns, width, dtype=dtype, multiplied=self.multiplied
            )

    def _divisors(self, peaks: Floats) -> tuple[Floats, Floats]:
        scales = rounded(self.dtype, peaks / _LARGEST)
        scales = np.where(scales == 0, np.float32(_EPSILON[self.dtype]), scales)
        return _f32(scales), _f32(scales)

    @staticmethod
    def _inverse(peaks: Floats) -> tuple[Floats, Floats]:
        factors = np.where(peaks > 0, _LARGEST / np.where(peaks > 0, peaks, np.float32(1)), np.float32(1))
        return _f32(1 / factors), _f32(factors)


# ------------------------------------------------------------------------------------------------ shared exponents


class _Micro(NamedTuple):
    """An element type under a shared exponent: its rounding rule, floor(log2) of its largest value, and the mantissa
    bits to which the exponent is rounded (`generate_mx_scales`)."""

    rule: str
    exponent: int
    mantissa: int


_MICRO: Final[Mapping[int, _Micro]] = MappingProxyType(
    {
        4: _Micro("e2m1", 2, 1),
        6: _Micro("e2m3", 2, 3),
        8: _Micro("e4m3", 8, 1),
    }
)


@dataclass(frozen=True)
class MicroOf:
    """Elements of `bits` bits under a shared scale: without `overall` a power of two per 32 columns; with it (4
    bits) an E4M3 per 16 columns, relative to the whole-tensor scale that `make_with` receives."""

    bits: int
    dtype: DType
    overall: bool = False
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    @property
    def group(self) -> int:
        return 16 if self.overall else 32

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        *lead, columns = source.shape
        codes = Spec((*lead, columns), E4M3) if self.bits == 8 else Spec((*lead, columns * self.bits // 8), U8)
        return {"codes": codes, "scales": Spec((*lead, columns // self.group), E4M3 if self.overall else U8)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        values = finite(self.name, source)
        with np.errstate(all="ignore"):
            exponents, scales = self._exponents(self._peaks(values))
        if "scales" in outs:
            outs["scales"][:] = exponents
        if "codes" in outs:
            outs["codes"][:] = self._codes(values, scales, self.dtype)

    def make_with(self, source: Bytes, given: Bytes, outs: Mapping[str, Bytes]) -> None:
        values, factor = finite(self.name, source), given.view(np.float32)[0]
        with np.errstate(all="ignore"):
            scales = factor * rounded(self.dtype, self._peaks(values) / _E2M1_LARGEST)
            scales = rounded(E4M3, _f32(np.clip(scales, -_LARGEST, _LARGEST)))
            scales = _f32(np.where(scales == 0, _EPSILON_E4M3, scales))
            if "scales" in outs:
                outs["scales"][:] = as_bytes(E4M3, scales)
            if "codes" in outs:
                outs["codes"][:] = self._codes(values, scales / factor, F32)

    def _peaks(self, values: Floats) -> Floats:
        low, high = kernels.extremes(values, self.group, self.group)
        found: Floats = np.maximum(np.abs(low), np.abs(high))
        return found

    def _codes(self, values: Floats, scales: Floats, dtype: DType) -> Bytes:
        return kernels.round_codes(_MICRO[self.bits].rule, values, scales, self.group, self.group, dtype=dtype)

    def _exponents(self, peaks: Floats) -> tuple[Bytes, Floats]:
        """The bytes of the scales and their values in the weights' dtype: the peak's exponent with its mantissa
        rounded as in `round_to_power_2`, minus that of the largest element. A power too small for the dtype becomes
        1."""
        how, mantissa = _MICRO[self.bits], _MANTISSA[self.dtype]
        words: NDArray[Any] = as_bytes(self.dtype, peaks).view(f"<u{self.dtype.size}").astype(np.int64)
        words += 1 << (mantissa - how.mantissa - 1)
        words &= -1 << mantissa
        power = kernels.widened(self.dtype, words.astype(f"<u{self.dtype.size}").view(np.uint8))
        exponent = np.where(power == 0, 0, np.clip(126 + np.frexp(power)[1] - how.exponent, 0, 254))
        scales = rounded(self.dtype, np.exp2(exponent - 127).astype(np.float32))
        lost = scales == 0
        return np.where(lost, 127, exponent).astype(np.uint8), np.where(lost, np.float32(1), scales)


def overall_scale(peak: Floats, dtype: DType) -> Floats:
    """The scale of a whole tensor with this largest magnitude (`generate_gparam`): 448 * 6 times the peak's inverse,
    as torch divides a number by a tensor, in the weights' dtype. In F32 if f16 overflows: the library (0.20) uses 1
    there, and most group scales then underflow."""
    top, least = np.float32(448 * 6), np.float32(np.finfo(np.float32).tiny)
    with np.errstate(all="ignore"):
        inverse = _f32(1 / np.maximum(peak, least))
        found = rounded(dtype, rounded(dtype, inverse) * top)
        found = np.where(np.isfinite(found), found, inverse * top)
    return _f32(np.where(np.isfinite(found), found, np.float32(1)))


@dataclass(frozen=True)
class OverallOf:
    """The scale of a whole tensor, from its peak; `dtype`: of the weights."""

    dtype: DType

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"overall": source}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        outs["overall"][:] = overall_scale(source.view(np.float32), self.dtype).view(np.uint8)
