"""Plain floats in numpy: the casts that the native kernels must equal bit for bit, and the arithmetic of scales.

Bytes are U8 arrays of any alignment. The losses of a cast are (overflow, underflow): finite values that became Inf or
NaN, and non-zero values that became zero; for a block type, of its F16 scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Array = NDArray[Any]
# (overflow, underflow), and the first refused block, if any.
Lost = tuple[int, ...]
Decoder = Callable[[Bytes], Floats]
Encoder = Callable[[Floats], tuple[Bytes, Lost]]
# Rows [rows, columns] and a weight for each column (an importance matrix).
WeightedEncoder = Callable[[Floats, Floats], tuple[Bytes, Lost]]


@contextmanager
def ignore_fp_warnings() -> Iterator[None]:
    """Inf and NaN are data here, not accidents."""
    with np.errstate(all="ignore"):
        yield


def _bits(x: Array) -> Array:
    return x.view({2: np.uint16, 4: np.uint32, 8: np.uint64, 1: np.uint8}[x.dtype.itemsize])


# numpy's and ml_dtypes' scalar types; ml_dtypes rounds to nearest even and goes to NaN or Inf beyond the largest.
SCALAR: Final = MappingProxyType(
    {
        "F32": np.dtype(np.float32),
        "F16": np.dtype(np.float16),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "F64": np.dtype(np.float64),
        "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
        "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
        "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
        "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
        "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    }
)


def aligned(src: Bytes, dtype: np.dtype[Any]) -> Array:
    """The numbers in `src`, copied if they aren't aligned for numpy."""
    address = src.__array_interface__["data"][0]
    return (src if address % dtype.itemsize == 0 else src.copy()).view(dtype)


def round_to_odd(x: NDArray[np.float64]) -> Floats:
    """f64 -> f32 with round-to-odd: inexact results become the neighbour with an odd last bit. Rounding that to any
    type at least two bits narrower gives the correctly rounded result, unlike rounding to nearest twice (Boldo and
    Melquiond 2005)."""
    with ignore_fp_warnings():
        near = x.astype(np.float32)
        back = near.astype(np.float64)
    bits = near.view(np.uint32)
    wrong = (back != x) & ~np.isnan(x) & (bits & 1 == 0)
    step = np.where(np.abs(back) > np.abs(x), np.uint32(0xFFFFFFFF), np.uint32(1))  # one towards zero, or away
    return (bits + np.where(wrong, step, np.uint32(0))).view(np.float32)


def widen(name: str, src: Bytes) -> Floats:
    """Stored floats as f32: exact, except for f64, which is rounded once. A signalling f16 NaN becomes quiet."""
    values = aligned(src, SCALAR[name])
    with ignore_fp_warnings():
        out: Floats = values.astype(np.float32)
    if name == "F16":
        out.view(np.uint32)[np.isnan(out)] |= np.uint32(0x00400000)
    return out


def narrow(name: str, x: Floats) -> Array:
    """f32 as the stored type, nearest even. NaN in f16 and bf16: sign and top of the payload kept, made quiet (IEEE
    754 6.2.3, as the hardware's conversions and ggml do); in the 8-bit ones as ml_dtypes writes it."""
    with ignore_fp_warnings():
        out: Array = x.astype(SCALAR[name])
    nan, bits = np.isnan(x), x.view(np.uint32)
    if name == "F16":
        payload = (bits >> 13) & np.uint32(0x03FF)
        _bits(out)[nan] = ((bits >> 16 & np.uint32(0x8000)) | np.uint32(0x7E00) | payload)[nan]
    elif name == "BF16":
        _bits(out)[nan] = ((bits >> 16) | np.uint32(0x0040))[nan]
    return out


def narrowing_loss(source: Array, out: Array) -> Lost:
    """The losses of a cast from `source` to `out`."""
    with ignore_fp_warnings():
        wide = out if out.dtype == np.float64 else out.astype(np.float32)
        return int(np.sum(np.isfinite(source) & ~np.isfinite(wide))), int(np.sum((source != 0) & (wide == 0)))


def cast(source: str, target: str, src: Bytes) -> tuple[Bytes, Lost]:
    """Casts bytes of one float type to another, rounding each value once; the same type is copied bit for bit."""
    if source == target:
        return src.copy(), (0, 0)
    values = aligned(src, SCALAR[source])
    if target == "F64":
        with ignore_fp_warnings():
            return widen(source, src).astype(np.float64).view(np.uint8), (0, 0)
    middle = round_to_odd(values) if source == "F64" and target != "F32" else widen(source, src)
    out = middle if target == "F32" else narrow(target, middle)
    original = values if source == "F64" else middle
    return out.view(np.uint8), narrowing_loss(original, out)


def plain_decoder(name: str) -> Decoder:
    return lambda src: widen(name, src)


def plain_encoder(name: str) -> Encoder:
    return lambda x: cast("F32", name, x.view(np.uint8))


# ------------------------------------------------------------------ scales and codes, as C computes them


def half(scales: Array) -> Floats:
    """f16 scales, one a block, as f32 [blocks, 1]."""
    return widen("F16", np.ascontiguousarray(scales).view(np.uint8).reshape(-1)).reshape(-1, 1)


def to_half(x: Floats) -> Array:
    """f32 as f16 scales; every NaN is 0x7E00 and the sign (ggml_compute_fp32_to_fp16)."""
    h = narrow("F16", x).view(np.uint16)
    h = np.where(np.isnan(x), h & np.uint16(0x8000) | np.uint16(0x7E00), h)
    out: Array = h.astype(np.uint16).view(np.float16)
    return out


def scale_loss(scales: Floats) -> Lost:
    return narrowing_loss(scales, narrow("F16", scales))


def truncate(x: Floats) -> NDArray[np.int32]:
    """float -> int32 as on x86: towards zero; NaN and out-of-range values become INT_MIN (undefined in C)."""
    with ignore_fp_warnings():
        return np.where(np.abs(x) < np.float32(2**31), x, np.float32(-(2**31))).astype(np.int32)


def round_away(x: Floats) -> NDArray[np.int32]:
    """roundf: halves away from zero. The largest float below 0.5 is added, so that 0.49999997 stays below 1."""
    with ignore_fp_warnings():
        return truncate(x + np.copysign(np.nextafter(np.float32(0.5), np.float32(0)), x))


def inverse(d: Floats) -> Floats:
    """1 / d, or 0 for d = 0."""
    with ignore_fp_warnings():
        return np.where(d != 0, np.float32(1) / d, np.float32(0)).astype(np.float32)


def int8(x: NDArray[np.int32]) -> NDArray[np.int32]:
    """The C cast (int8_t): the low byte, sign extended."""
    return x.astype(np.int8).astype(np.int32)
