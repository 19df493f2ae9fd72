"""Casts: every pattern of the narrow types, every rounding boundary, against numpy, ml_dtypes, torch and ggml."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.kernels import ggml
from tests.kernels.data import LEVELS, boundaries, numbers, random_bits, running

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, F64
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import floats

NARROW = [name for name, scalar in floats.SCALAR.items() if scalar.itemsize <= 2]
EIGHT = [name for name in NARROW if floats.SCALAR[name].itemsize == 1]


def cast(source: str, target: str, data: NDArray[Any]) -> tuple[NDArray[Any], kernels.CastCounts]:
    """The result as unsigned integers of the target's width."""
    src = data.view(np.uint8)
    out = np.full(data.size * BY_NAME[target].size, 0xA5, np.uint8)
    counts = kernels.cast(BY_NAME[source], BY_NAME[target], src, out)
    return out.view(f"u{BY_NAME[target].size}"), counts


def codes(name: str) -> NDArray[Any]:
    """Every pattern of a narrow type."""
    size = BY_NAME[name].size
    return np.arange(256**size).astype(f"u{size}")


def f32(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def hard(name: str) -> NDArray[np.float32]:
    edges = np.array([0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38], np.float32)
    return np.concatenate([edges, boundaries(name), random_bits(200_000), numbers("wide", 20_000)])


@pytest.mark.parametrize("name", NARROW)
def test_every_pattern_widens_as_numpy_and_ml_dtypes_have_it(name: str, path: str) -> None:
    got = cast(name, "F32", codes(name))[0].view(np.float32)
    with np.errstate(all="ignore"):
        want = codes(name).view(floats.SCALAR[name]).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[nan]), np.signbit(want[nan]))
    if name == "F16":  # IEEE 754 5.4.2: a conversion makes a signalling NaN quiet; numpy may leave it
        want.view(np.uint32)[nan] |= 0x00400000
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.oracle
@pytest.mark.parametrize("name", NARROW)
def test_every_pattern_widens_as_torch_has_it(name: str, path: str) -> None:
    torch = pytest.importorskip("torch")
    signed = torch.from_numpy(codes(name).view(f"i{BY_NAME[name].size}").copy())
    want = signed.view(getattr(torch, BY_NAME[name].torch or "")).float().numpy()
    got = cast(name, "F32", codes(name))[0].view(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", NARROW)
def test_narrowing_rounds_as_numpy_and_ml_dtypes_do(name: str, path: str) -> None:
    x = hard(name)
    with np.errstate(all="ignore"):
        want = x.astype(floats.SCALAR[name]).view(f"u{BY_NAME[name].size}")
    got, _ = cast("F32", name, x)
    same = slice(None) if name in EIGHT else ~np.isnan(x)  # NaN of f16 and bf16: see below
    np.testing.assert_array_equal(got[same], want[same])


@pytest.mark.oracle
@pytest.mark.parametrize("name", [n for n in NARROW if n != "F8_E8M0"])
def test_narrowing_rounds_as_torch_does(name: str, path: str) -> None:
    torch = pytest.importorskip("torch")
    x = hard(name)
    x = x[~np.isnan(x)]
    if name == "F8_E4M3":  # torch releases differ beyond the largest value: some saturate
        x = x[np.abs(x) <= 464]
    want = torch.from_numpy(x).to(getattr(torch, BY_NAME[name].torch or "")).view(torch.uint8).numpy()
    got, _ = cast("F32", name, x)
    np.testing.assert_array_equal(got.view(np.uint8), want)


@pytest.mark.oracle
def test_bf16_is_ggmls_nan_payloads_included(path: str) -> None:
    x = hard("BF16")
    np.testing.assert_array_equal(cast("F32", "BF16", x)[0], ggml.from_f32("bf16", x))


@pytest.mark.oracle
def test_f16_is_ggmls_but_for_nan_payloads(path: str) -> None:
    x = hard("F16")
    number = ~np.isnan(x)
    np.testing.assert_array_equal(cast("F32", "F16", x)[0][number], ggml.from_f32("fp16", x)[number])


def test_f16_nan_keeps_sign_and_payload_and_becomes_quiet(path: str) -> None:
    """IEEE 754 6.2.3, and what the conversion instructions of x86 and ARM do."""
    bits = np.array([0x7F800001, 0xFF800001, 0x7FC12345, 0xFFBFFFFF, 0x7F802000, 0x7FFFFFFF], np.uint32)
    want = np.array([0x7E00, 0xFE00, 0x7E09, 0xFFFF, 0x7E01, 0x7FFF], np.uint16)
    np.testing.assert_array_equal(cast("F32", "F16", np.tile(bits, 7))[0], np.tile(want, 7))


def nearest_even(name: str, x: NDArray[np.float64]) -> NDArray[Any]:
    """The correctly rounded codes of non-negative f64, by search among all values of the type; beyond them, half a
    step further on, comes `beyond`."""
    every = codes(name)[: 256 ** BY_NAME[name].size // 2]  # the patterns without a sign ascend
    with np.errstate(all="ignore"):
        values = every.view(floats.SCALAR[name]).astype(np.float64)
    values = values[np.isfinite(values)]
    limit = 2 * values[-1] - values[-2]  # what would be the next value
    grid = np.append(values, limit)
    at = np.searchsorted(grid, x).clip(1, len(grid) - 1)
    low, high = grid[at - 1], grid[at]
    below, above = x - low, high - x
    code = np.where(below == above, at - 1 + ((at - 1) & 1), np.where(below < above, at - 1, at))
    return np.where(x > limit, len(grid) - 1, code)


@pytest.mark.parametrize("name", [n for n in NARROW if n != "F8_E8M0"])
def test_f64_is_rounded_once(name: str, path: str) -> None:
    """Through f32 with round to nearest, a value just above a midpoint would round down: rounding twice."""
    spots = boundaries(name).astype(np.float64)
    spots = spots[np.isfinite(spots) & (spots > 0)]
    x = np.concatenate([spots, spots * (1 + 2.0**-40), spots * (1 - 2.0**-40), spots + 2.0**-1060])
    got, counts = cast("F64", name, x)
    code = nearest_even(name, x)
    top = len(codes(name)[: 256 ** BY_NAME[name].size // 2])
    with np.errstate(all="ignore"):
        finite = np.isfinite(codes(name)[:top].view(floats.SCALAR[name]).astype(np.float64)).sum()
    inside = code < finite
    np.testing.assert_array_equal(got[inside], code[inside])
    with np.errstate(all="ignore"):
        assert not np.isfinite(got.view(floats.SCALAR[name]).astype(np.float64)[~inside]).any()
    assert counts == (int((~inside).sum()), int((code == 0).sum()))


def test_rounding_twice_would_be_seen() -> None:
    """The test above can fail: ml_dtypes goes through f32."""
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    assert cast("F64", "BF16", x)[0].tolist() == [0x3F81]
    assert x.astype(ml_dtypes.bfloat16).view(np.uint16).tolist() == [0x3F80]


def test_f64_and_f32_as_numpy(path: str) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.integers(0, 1 << 64, 100_000, dtype=np.uint64).view(np.float64), rng.normal(size=10_000)])
    x = np.concatenate([x, [0, -0.0, np.inf, -np.inf, 1e39, -1e39, 1e-46, -1e-46, 1.401298464324817e-45]])
    with np.errstate(all="ignore"):
        want = x.astype(np.float32)
        over, under = np.isfinite(x) & np.isinf(want), (x != 0) & (want == 0)
    got, counts = cast("F64", "F32", x)
    np.testing.assert_array_equal(got.view(np.float32), want)
    assert counts == (over.sum(), under.sum())
    f = random_bits(50_000)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(cast("F32", "F64", f)[0].view(np.float64), f.astype(np.float64))


@pytest.mark.parametrize("name", NARROW)
def test_losses_are_counted(name: str, path: str) -> None:
    x = hard(name)
    got, counts = cast("F32", name, x)
    with np.errstate(all="ignore"):
        back = got.view(floats.SCALAR[name]).astype(np.float32)
        over, under = np.isfinite(x) & ~np.isfinite(back), (x != 0) & (back == 0)
    assert tuple(counts) == (over.sum(), under.sum())
    assert counts.overflow > 0
    assert counts.underflow > 0 or name == "F8_E8M0"


def wide_bits(count: int) -> NDArray[np.uint64]:
    """f64 patterns whose exponents f32 has too (most of all others over- or underflow), with all 52 places random."""
    with np.errstate(all="ignore"):
        wide = random_bits(count).astype(np.float64).view(np.uint64)
    low = np.random.default_rng(4).integers(0, 1 << 29, count).astype(np.uint64)
    return np.concatenate([wide | low, np.arange(99).astype(np.uint64)])


@pytest.mark.parametrize(("source", "target"), list(product(floats.SCALAR, repeat=2)))
def test_levels_equal_the_reference(source: str, target: str) -> None:
    """All pairs, all patterns of the source (random ones where it is wide)."""
    if source in NARROW:
        data = codes(source)
    elif source == "F64":
        data = wide_bits(60_000)
    else:
        data = random_bits(60_000).view(np.uint32)
    with running("reference"):
        want, lost = cast(source, target, data)
    for level in LEVELS:
        with running(level):
            got, counts = cast(source, target, data)
        np.testing.assert_array_equal(got, want, err_msg=level)
        assert counts == lost


@pytest.mark.parametrize("target", floats.SCALAR)
def test_tails_and_alignment(target: str, path: str) -> None:
    """Every length around the vector widths, source and destination at odd addresses, nothing written beyond."""
    whole = random_bits(70, seed=1)
    full = cast("F32", target, whole)[0].view(np.uint8)
    size = BY_NAME[target].size
    for n in range(71):
        src = np.empty(4 * n + 1, np.uint8)
        src[1:] = whole[:n].view(np.uint8)
        out = np.full(size * n + 3, 0x5A, np.uint8)
        kernels.cast(F32, BY_NAME[target], src[1:], out[1 : 1 + size * n])
        np.testing.assert_array_equal(out[1 : 1 + size * n], full[: size * n])
        assert (out[0], *out[1 + size * n :]) == (0x5A, 0x5A, 0x5A)


def test_same_type_is_copied_bit_for_bit(path: str) -> None:
    data = codes("F16")
    assert np.array_equal(cast("F16", "F16", data)[0], data)  # signalling NaN too


def test_hand_checked() -> None:
    """1 + 2^-8 lies midway between two bf16: the even one is 1.0. 65520 is the first f32 that is no f16 any more."""
    assert cast("F32", "BF16", f32([1 + 2.0**-8, 1 + 3 * 2.0**-8]))[0].tolist() == [0x3F80, 0x3F82]
    assert cast("F32", "F16", f32([65519.996, 65520, 2.0**-25, 2.0**-24]))[0].tolist() == [0x7BFF, 0x7C00, 0, 1]
    assert cast("F32", "F8_E4M3", f32([448, 464, 465, -1.0625]))[0].tolist() == [0x7E, 0x7E, 0x7F, 0xB8]


def test_wrong_calls_are_refused(path: str) -> None:
    four = np.zeros(4, np.uint8)
    with pytest.raises(UsageError):
        kernels.cast(F32, F16, four, four)
    with pytest.raises(UsageError):
        kernels.cast(F32, F16, np.zeros(3, np.uint8), four)
    with pytest.raises(UnsupportedError):
        kernels.cast(F32, BY_NAME["I32"], four, four)
    assert kernels.casts(F64, BF16)
    assert not kernels.casts(F64, BY_NAME["Q8_0"])
