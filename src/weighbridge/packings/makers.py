"""The stored tensors that a packing makes of a logical one: the way out. A maker gives those parts that are asked for:
all of them where they go to one file, and a part alone costs only what it needs.

    AffineOf    F32 values -> MLX affine, quantized by the rule of its CPU kernel
    FloatOf     F32 values -> MLX mxfp4, mxfp8, nvfp4, by the rule of its CPU kernel
    BlocksOf    a ggml block type -> MLX with the same codes and parameters: nothing is quantized again
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, F16, F32, U8, U32, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.packings import blocks
from weighbridge.packings.microfloat import VALUES
from weighbridge.tensors import kernels
from weighbridge.tensors.kinds import Bytes

Floats = NDArray[np.float32]


def _rows(source: Spec, columns: int) -> tuple[int, ...]:
    return (*source.shape[:-1], columns)


# ------------------------------------------------------------------------------------------------ quantizing


@dataclass(frozen=True)
class AffineOf:
    """MLX affine of F32 values; scales and biases of `scale_dtype`, that of the weights."""

    bits: int
    group: int
    scale_dtype: DType

    @property
    def quantizes(self) -> bool:
        return True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        columns = source.shape[-1]
        parameters = Spec(_rows(source, columns // self.group), self.scale_dtype)
        return {
            "weight": Spec(_rows(source, columns * self.bits // 32), U32),
            "scales": parameters,
            "biases": parameters,
        }

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        codes_too = "weight" in outs
        found = kernels.affine_encode(self.bits, self.group, self.scale_dtype, source.view(np.float32), codes_too)
        for part, data in zip(("weight", "scales", "biases"), found, strict=True):
            if part in outs:
                outs[part][:] = data


class _Mode(NamedTuple):
    """A float mode of MLX: the elements that share a scale, the largest value, and what a code is."""

    group: int
    bits: int
    largest: float
    scale: str


MODES: Final[Mapping[str, _Mode]] = MappingProxyType(
    {
        "mxfp4": _Mode(32, 4, 6.0, "F8_E8M0"),
        "mxfp8": _Mode(32, 8, 448.0, "F8_E8M0"),
        "nvfp4": _Mode(16, 4, 6.0, "F8_E4M3"),
    }
)
# Codes of E2M1 in the order of their magnitude, and the middle between neighbours.
_MIDDLES: Final = (VALUES[:7] + VALUES[1:8]) / 2


@dataclass(frozen=True)
class FloatOf:
    """A float mode of MLX of F32 values. `dtype`: the type of the weights, in which MLX computes amax / largest.

    The scale of mxfp4 and mxfp8 is the smallest power of two that is not below it (mlx 0.32.4: pull request 4353), that
    of nvfp4 the nearest E4M3. Ties go to the smaller magnitude in 4 bits, and small negative values become +0."""

    mode: str
    dtype: DType

    @property
    def quantizes(self) -> bool:
        return True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        columns, how = source.shape[-1], MODES[self.mode]
        return {
            "weight": Spec(_rows(source, columns * how.bits // 32), U32),
            "scales": Spec(_rows(source, columns // how.group), U8),
        }

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        how = MODES[self.mode]
        groups = source.view(np.float32).reshape(-1, how.group)
        scales = self._scales(groups, how)
        if "scales" in outs:
            outs["scales"][:] = scales
        if "weight" in outs:
            outs["weight"][:] = self._codes(groups, scales, how)

    def _codes(self, groups: Floats, scales: Bytes, how: _Mode) -> Bytes:
        wide = kernels.widened(BY_NAME[how.scale], scales)[:, None]
        with np.errstate(all="ignore"):
            values = np.where(wide == 0, np.float32(0), groups / wide)  # a scale of zero: codes of zero
        return _fp8(values) if how.bits == 8 else _fp4(values)

    def _scales(self, groups: Floats, how: _Mode) -> Bytes:
        ratio = self._rounded(np.abs(groups).max(axis=1) / np.float32(how.largest))
        if how.scale == "F8_E4M3":
            return _bytes_of("F8_E4M3", ratio)
        fraction, exponent = np.frexp(ratio)  # 0.5 <= fraction < 1: a power of two is 0.5
        up = exponent - (fraction == 0.5)
        return np.where(ratio == 0, 127, up + 127).astype(np.uint8)

    def _rounded(self, x: Floats) -> Floats:
        return x if self.dtype is F32 else kernels.widened(self.dtype, _bytes_of(self.dtype.name, x))


def _bytes_of(name: str, x: Floats) -> Bytes:
    out = np.empty(x.size * BY_NAME[name].size, np.uint8)
    kernels.cast(F32, BY_NAME[name], np.ascontiguousarray(x).view(np.uint8), out)
    return out


def _fp8(values: Floats) -> Bytes:
    top = np.float32(448)
    return _bytes_of("F8_E4M3", np.clip(values, -top, top).reshape(-1))


def _fp4(values: Floats) -> Bytes:
    size = np.abs(values).reshape(-1)
    codes = np.searchsorted(_MIDDLES, size, side="left").astype(np.uint8)
    codes |= np.where((values.reshape(-1) < 0) & (codes > 0), np.uint8(8), np.uint8(0))
    pairs: Bytes = codes[0::2] | codes[1::2] << np.uint8(4)
    return pairs


# ------------------------------------------------------------------------------------------------ repacking


class _Split(NamedTuple):
    """What a run of blocks holds: codes [groups, group], the scale and bias of each group."""

    codes: Bytes
    scales: NDArray[np.floating]
    biases: NDArray[np.floating]


class _Form(NamedTuple):
    """A block type as MLX affine: its bits and group, the type that holds its parameters exactly."""

    bits: int
    group: int
    parameters: DType
    split: Callable[[Bytes], _Split]


def _half(raw: Bytes, at: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).reshape(-1).astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _simple(dtype: DType) -> Callable[[Bytes], _Split]:
    """Q4_0 to Q5_1: code j low, j + half high, fifth bits in a u32; an offset or a minimum (packings/blocks.py)."""
    room = blocks.ROOM[dtype]

    def split(raw: Bytes) -> _Split:
        at = 4 if room.minimum else 2
        d = _half(raw, 0)
        wide = room.high - room.low == 31
        codes = _nibbles(raw[:, at + 4 * wide :])
        if wide:
            codes |= np.unpackbits(raw[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)
        return _Split(codes, d, _half(raw, 2) if room.minimum else d * np.float32(room.low))

    return split


def _q8_0(raw: Bytes) -> _Split:
    d = _half(raw, 0)
    return _Split(raw[:, 2:] ^ np.uint8(128), d, d * np.float32(-128))


def _six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The eight scales and eight minima of 6 bits in the twelve bytes of Q4_K and Q5_K (ggml-quants.c,
    get_scale_min_k4)."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=1)
    return scales, minima


def _k(raw: Bytes, high: bool) -> _Split:
    """Q4_K, Q5_K: eight groups of 32; parameters are products of an f16 and 6 bits, so F32 holds them exactly."""
    d, least = _half(raw, 0)[:, None], _half(raw, 2)[:, None]
    scales, minima = _six_bits(raw[:, 4:16])
    at = 48 if high else 16
    pairs = raw[:, at:].reshape(len(raw), 4, 1, 32)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(len(raw), 8, 32)
    if high:
        fifth = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]
        codes = codes | (fifth & 1) << 4
    return _Split(codes.reshape(-1, 32), (d * scales).reshape(-1), (-least * minima).reshape(-1))


_FORMS: Final[Mapping[DType, _Form]] = MappingProxyType(
    {
        BY_NAME["Q4_0"]: _Form(4, 32, F16, _simple(BY_NAME["Q4_0"])),
        BY_NAME["Q4_1"]: _Form(4, 32, F16, _simple(BY_NAME["Q4_1"])),
        BY_NAME["Q5_0"]: _Form(5, 32, F16, _simple(BY_NAME["Q5_0"])),
        BY_NAME["Q5_1"]: _Form(5, 32, F16, _simple(BY_NAME["Q5_1"])),
        BY_NAME["Q8_0"]: _Form(8, 32, F16, _q8_0),
        BY_NAME["Q4_K"]: _Form(4, 32, F32, lambda raw: _k(raw, high=False)),
        BY_NAME["Q5_K"]: _Form(5, 32, F32, lambda raw: _k(raw, high=True)),
    }
)
#: Block types that MLX holds with the same values.
EXACT: Final = tuple(_FORMS)


@dataclass(frozen=True)
class BlocksOf:
    """A ggml block type as MLX affine with the same codes, scales and biases."""

    dtype: DType

    @property
    def form(self) -> _Form:
        return _FORMS[self.dtype]

    @property
    def bits(self) -> int:
        return self.form.bits

    @property
    def group(self) -> int:
        return self.form.group

    @property
    def quantizes(self) -> bool:
        return False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return AffineOf(self.bits, self.group, self.form.parameters).specs(source)

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        found = self.form.split(source.reshape(-1, self.dtype.size))
        for part, out in outs.items():
            out[:] = self._part(part, found)

    def _part(self, part: str, found: _Split) -> Bytes:
        if part == "weight":
            return kernels.pack_codes(self.bits, found.codes.reshape(-1))
        values = found.scales if part == "scales" else found.biases
        with np.errstate(over="ignore"):
            kept = values.astype(np.float16 if self.form.parameters is F16 else np.float32)
        if not np.isfinite(kept).all():
            raise UnsupportedError(
                f"a scale of {self.dtype} has no {self.form.parameters} for its bias", hint="convert with --dtype f32"
            )
        return kept.view(np.uint8)
