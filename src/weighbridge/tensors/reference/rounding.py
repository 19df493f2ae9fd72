"""Rounds floats to low-bit codes under a scale per run of a row, in plain numpy: the same as
`native/kernels/rounding.cpp`, which describes the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base import dtypes
from weighbridge.tensors.reference.affine import pack_codes
from weighbridge.tensors.reference.floats import Bytes, Floats, ignore_fp_warnings, narrow, widen

E2M1: Final = np.array(dtypes.E2M1, np.float32)
E2M3: Final = np.array(dtypes.E2M3, np.float32)
_LARGEST: Final = np.float32(448)  # of E4M3
_NAN: Final = 0x7F
_FAR: Final = np.float32(1024)  # beyond every integer code: values are clamped to it before rounding


class Step(NamedTuple):
    """The parameters of a rule: the type that steps are rounded to, zero points [rows, columns], and the bits of
    integer codes."""

    dtype: str
    zeros: Floats | np.float32
    bits: int

    def rounded(self, x: Floats) -> Floats:
        if self.dtype == "F32":
            return x
        return widen(self.dtype, narrow(self.dtype, x.reshape(-1)).view(np.uint8)).reshape(x.shape)


class RoundingRule(NamedTuple):
    """A rule: `bits` of a stored code, the types that steps may be rounded to, whether scales may multiply, and the
    codes of values [rows, columns]."""

    bits: int
    steps: tuple[str, ...]
    multiplied: bool
    codes: Callable[[Floats, Step], NDArray[np.uint8]]


def _nearest(size: Floats, values: Floats) -> Bytes:
    """Indices of the nearest of ascending values, of two that are as near the even one."""
    middles = (values[:-1] + values[1:]) / 2
    index = np.searchsorted(middles, size, side="left")
    tie = middles[np.minimum(index, len(middles) - 1)] == size
    nearest: Bytes = (index + (tie & (index % 2 == 1))).astype(np.uint8)
    return nearest


def _down(x: Floats, step: Step) -> Bytes:
    codes = np.searchsorted((E2M1[:-1] + E2M1[1:]) / 2, np.abs(x), side="left").astype(np.uint8)
    signed: Bytes = codes | np.where((x < 0) & (codes > 0), np.uint8(8), np.uint8(0))
    return signed


def _e2m1(x: Floats, step: Step) -> Bytes:
    signed: Bytes = _nearest(np.abs(x), E2M1) | np.where(x < 0, np.uint8(8), np.uint8(0))
    return signed


def _e2m3(x: Floats, step: Step) -> Bytes:
    signed: Bytes = _nearest(np.abs(x), E2M3) | np.where(np.signbit(x), np.uint8(32), np.uint8(0))
    return signed


def _e4m3(x: Floats, step: Step) -> Bytes:
    codes = narrow("F8_E4M3", np.clip(x, -_LARGEST, _LARGEST).reshape(-1)).view(np.uint8).reshape(x.shape)
    return np.where(np.isnan(x), np.uint8(_NAN), codes)  # which sign a NaN has is up to the processor


def _int(x: Floats, step: Step) -> Bytes:
    half = np.float32(1 << (step.bits - 1))
    values = np.fmin(np.fmax(step.rounded(x + step.zeros), -half), half - 1)
    return (np.rint(values) + half).astype(np.uint8)


def _gptq(x: Floats, step: Step) -> Bytes:
    values = np.rint(np.fmin(np.fmax(x, -_FAR), _FAR)) + step.zeros
    return np.clip(values, 0, (1 << step.bits) - 1).astype(np.uint8)


_ALL: Final = ("F32", "F16", "BF16")
RULES: Final[Mapping[str, RoundingRule]] = MappingProxyType(
    {
        "e2m1-down": RoundingRule(4, ("F32",), False, _down),
        "e2m1": RoundingRule(4, _ALL, False, _e2m1),
        "e2m3": RoundingRule(6, _ALL, False, _e2m3),
        "e4m3": RoundingRule(8, _ALL, True, _e4m3),
        "int": RoundingRule(8, _ALL, False, _int),
        "gptq": RoundingRule(8, ("F32",), False, _gptq),
    }
)


def spread(parameters: Floats, columns: int, width: int) -> Floats:
    """A number for each run of a row, as one for each element [rows, columns]."""
    rows = parameters.reshape(-1, -(-columns // width))
    return np.repeat(rows, width, axis=1)[:, :columns]


def round_codes(
    rule: str, x: Floats, scales: Floats, zeros: Floats | None, columns: int, width: int, dtype: str, bits: int,
    multiplied: bool,
) -> Bytes:  # fmt: skip
    """See `kernels.round_codes`."""
    rows, rounding = x.reshape(-1, columns), RULES[rule]
    step = Step(dtype, np.float32(0) if zeros is None else spread(zeros, columns, width), bits)
    each = spread(scales, columns, width)
    with ignore_fp_warnings():
        values = rows * each if multiplied else step.rounded(rows / each)
        codes = rounding.codes(np.where(each == 0, np.float32(0), values), step).reshape(-1)
    return codes if rounding.bits == 8 else pack_codes(rounding.bits, codes)


def extremes(x: Floats, columns: int, width: int) -> tuple[Floats, Floats]:
    """See `kernels.extremes`."""
    rows, starts, zero = x.reshape(-1, columns), np.arange(0, columns, width), np.float32(0)
    with ignore_fp_warnings():
        low, high = np.minimum.reduceat(rows, starts, axis=1), np.maximum.reduceat(rows, starts, axis=1)
        # No -0: which of two zeros is found depends on the processor.
        return low.reshape(-1) + zero, high.reshape(-1) + zero


def scaled_decode(dtype: str, src: Bytes, scales: Floats, columns: int, width: int) -> Floats:
    """See `kernels.scaled_decode`."""
    with ignore_fp_warnings():
        values: Floats = widen(dtype, src).reshape(-1, columns) * spread(scales, columns, width)
    return values.reshape(-1)
