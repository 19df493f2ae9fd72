"""Numbers that have broken codecs before, and the ways to run a kernel: the reference and every level of this CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.native import native
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import floats

Floats = NDArray[np.float32]
LEVELS: Final = tuple(native.levels()) if native else ()
PATHS: Final = ("reference", *LEVELS)


@contextmanager
def running(path: str) -> Iterator[None]:
    """Everything inside runs on one level, or on the reference."""
    if path != "reference":
        before = native.level()
        native.set_level(path)
        try:
            yield
        finally:
            native.set_level(before)
        return
    saved, kernels.native = kernels.native, None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        kernels.native = saved  # type: ignore[attr-defined]


def random_bits(count: int, seed: int = 0) -> Floats:
    """Every kind of f32, NaN payloads and denormals too, alike likely."""
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)


def _normal(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return rng.normal(size=n)


def _sprinkled(*values: float) -> Callable[[np.random.Generator, int], NDArray[Any]]:
    def make(rng: np.random.Generator, n: int) -> NDArray[Any]:
        x = rng.normal(size=n).astype(np.float32)
        for value in values:
            x[rng.random(n) < 0.02] = value
        return x

    return make


def _anchored(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Halves, in blocks whose scale is exactly one: every rounding rule shows."""
    x = rng.integers(-254, 255, n) / 2
    x[::32] = 127
    return x


def _below_halves(rng: np.random.Generator, n: int) -> NDArray[Any]:
    """The last f32 below each half: adding 0.5 and cutting would round it up."""
    x = np.nextafter((rng.integers(0, 8, n) + 0.5).astype(np.float32), np.float32(0))
    x[::32] = 127
    return x


def _nan_last(rng: np.random.Generator, n: int) -> NDArray[Any]:
    """A NaN with a payload at the end of each block, where ggml's maximum keeps it."""
    x = rng.normal(size=n).astype(np.float32)
    x[31::32] = np.array([0x7FC12345], np.uint32).view(np.float32)
    return x


SETS: Final = MappingProxyType(
    {
        "normal": _normal,
        "wide": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-45, 38, n),
        "nan": _sprinkled(np.nan),
        "inf": _sprinkled(np.inf, -np.inf),
        "nan and inf": _sprinkled(np.nan, np.inf, -np.inf),
        "halves": lambda rng, n: rng.integers(-16, 17, n) / 2,
        "halves of 127ths": _anchored,
        "below halves": _below_halves,
        "nan last": _nan_last,
        "one sign": lambda rng, n: -np.abs(rng.normal(size=n)),
        "denormal": lambda rng, n: rng.integers(0, 1 << 23, n).astype(np.uint32).view(np.float32),
        "tiny": lambda rng, n: rng.normal(size=n) * 1e-7,
        "huge": lambda rng, n: rng.normal(size=n) * 1e38,
        "zero": lambda rng, n: np.zeros(n),
        "signed zero": lambda rng, n: np.where(rng.random(n) < 0.5, -0.0, 0.0),
        "constant": lambda rng, n: np.repeat(rng.normal(size=n // 32 + 1), 32)[:n],
        "all nan": lambda rng, n: np.full(n, np.nan),
        "all inf": lambda rng, n: np.full(n, np.inf),
        "bits": lambda rng, n: rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32),
    }
)


def numbers(kind: str, count: int, seed: int = 7) -> Floats:
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(SETS[kind](np.random.default_rng(seed), count)).astype(np.float32)


def boundaries(name: str) -> Floats:
    """Every value of a narrow type, every midpoint of neighbours, and the f32 on each side of these: all the places
    where rounding can go wrong."""
    codes = np.arange(256 ** floats.SCALAR[name].itemsize).astype(f"u{floats.SCALAR[name].itemsize}")
    with np.errstate(all="ignore"):
        values = np.unique(floats.widen(name, codes.view(np.uint8)))
        values = values[np.isfinite(values)].astype(np.float64)
        beyond = values[-1] + (values[-1] - values[-2]) * np.array(
            [0.5, 1, 1.5, 2, 10]
        )  # 0.5: the last that rounds back
        spots = np.concatenate([values, (values[1:] + values[:-1]) / 2, beyond, -beyond]).astype(np.float32)
        return np.concatenate(
            [spots, np.nextafter(spots, np.float32(np.inf)), np.nextafter(spots, np.float32(-np.inf))]
        )


def around_powers_of_two() -> Floats:
    """Blocks of 32 whose largest element is a power of two or one of the floats around it, up to where log2f no longer
    rounds to the power's exponent, and beyond."""
    powers = (np.arange(1, 255, dtype=np.int64) << 23)[:, None]
    denormal = (np.int64(1) << np.arange(3, 23, dtype=np.int64))[:, None]
    near = np.arange(-95, 3, dtype=np.int64)
    bits = np.concatenate([powers + near, denormal + near]).reshape(-1)
    x = np.zeros((bits.size, 32), np.float32)
    x[:, 3] = np.abs(bits).astype(np.uint32).view(np.float32)
    x[:, 7] = x[:, 3] * np.float32(0.3)
    return x.reshape(-1)


def around_e4m3_scales() -> Floats:
    """Parts of 16 whose largest element is six times an E4M3 value, a midpoint of two, or a float beside these."""
    scales = np.arange(0, 600, 2.0**-4)
    scales = np.concatenate([scales, scales * 2.0**-7, np.arange(40) * 2.0**-10]).astype(np.float32)
    scales = np.concatenate([np.nextafter(scales, np.float32(0)), scales, np.nextafter(scales, np.float32(1e9))])
    x = np.zeros((scales.size // 8 * 8, 16), np.float32)
    x[:, 0] = scales[: len(x)] * np.float32(6)
    x[:, 5] = -scales[: len(x)]
    return x.reshape(-1)


def around_fp4_borders() -> Floats:
    """Parts of 16 with elements halfway between neighbours of FP4 and the floats beside these, of both signs, for every
    E4M3 scale and some powers of two; and largest elements up to a hundred times the scale."""
    codes = np.arange(1, 127, dtype=np.uint8)
    scales = np.concatenate([floats.widen("F8_E4M3", codes) / 2, 2.0 ** np.arange(-130, 126, 5)]).astype(np.float32)
    borders = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)
    with np.errstate(over="ignore"):
        at = scales[:, None] * borders
        near = np.stack([np.nextafter(at, np.float32(0)), at, np.nextafter(at, np.float32(np.inf))], -1)
        near = near.reshape(scales.size, -1)
        most = scales * np.float32(12)
        x = np.concatenate(
            [
                np.column_stack([most, *(near * sign).T[part : part + 15]])
                for sign in np.array([1, -1], np.float32)
                for part in (0, 6)
            ]
        )
        beyond = np.resize(np.array([9, 15, 23, 24, 25, 31, 40, 100], np.float32), scales.size) * scales
        x = np.concatenate([x, np.column_stack([beyond, *near.T[:15]])])
    return np.repeat(x, 2, axis=0).astype(np.float32).reshape(-1)  # twice: two parts are a block of MXFP4


def of_two_signs() -> Floats:
    """Blocks of 32 whose ends are equally far from zero, either one first; and blocks without negatives, with zeros of
    both signs, either one first."""
    rng = np.random.default_rng(8)
    ends = rng.integers(-3, 4, (600, 32)).astype(np.float32)
    zeros = np.where(rng.random((600, 32)) < 0.5, np.float32(0), np.float32(-0.0))
    positive = np.where(rng.random((600, 32)) < 0.3, np.abs(ends), zeros)
    return np.concatenate([ends, zeros, positive]).reshape(-1).astype(np.float32)


def slow_to_settle() -> Floats:
    """One block of sixteen equal parts whose codes, gone through one by one, still change in the sixth round (which
    isn't made)."""
    part = [
        0.8700728416442871, 0.17556053400039673, -0.1651870310306549, 0.46594756841659546,
        -0.7504681944847107, -0.2688605785369873, 0.5136715769767761, 0.4415784180164337,
        0.8827098608016968, -0.9742445945739746, -0.03865892067551613, 0.09280712157487869,
        -0.05662728473544121, -0.6563798785209656, -0.6326620578765869, -0.6388403177261353,
    ]  # fmt: skip
    return np.tile(np.array(part, np.float32), 16)
