"""ggml's blocks: bytes equal to llama.cpp's own quantizers, on hostile input too."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels import ggml
from tests.kernels.data import (
    LEVELS,
    SETS,
    around_e4m3_scales,
    around_fp4_borders,
    around_powers_of_two,
    numbers,
    of_two_signs,
    running,
    slow_to_settle,
)

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, Q4_0, Q8_0, TABLE, DType, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import registry as codecs

# What can be written, and the largest error in steps of a block's spread (see below).
STEPS = {
    "Q8_0": 1 / 254, "Q4_0": 1 / 8, "Q4_1": 1 / 15, "Q5_0": 1 / 16, "Q5_1": 1 / 31, "MXFP4": 1 / 3, "NVFP4": 1 / 5,
    "Q1_0": 1, "Q2_0": 1 / 2, "TQ1_0": 1 / 2, "TQ2_0": 1 / 2,
    "Q2_K": 1 / 2, "Q3_K": 1 / 4, "Q4_K": 1 / 15, "Q5_K": 1 / 31, "Q6_K": 1 / 31,
    "IQ4_NL": 1 / 8, "IQ4_XS": 1 / 8,
}  # fmt: skip
WITH_MINIMUM = {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"}
ENCODED = list(STEPS)
DECODED = list(codecs.BLOCKS)
BYTES = np.random.default_rng(5)
HARD_SCALES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0xFE01)


def encode(dtype: DType, x: np.ndarray) -> tuple[np.ndarray, kernels.CastCounts]:
    out = np.full(x.size // dtype.block * dtype.size, 0xA5, np.uint8)
    return out, kernels.encode(dtype, x, out)


def decode(dtype: DType, data: np.ndarray) -> np.ndarray:
    out = np.full(data.size // dtype.size * dtype.block, np.nan, np.float32)
    kernels.decode(dtype, data, out)
    return out


def stored(dtype: DType, blocks: int) -> np.ndarray:
    """Random bytes: every code, scales of all kinds; blocks of one byte; and hard f16 values in every place."""
    random = BYTES.integers(0, 256, (blocks, dtype.size), dtype=np.uint8)
    hard = np.resize(np.array(HARD_SCALES, np.uint16), (40, (dtype.size + 1) // 2)).view(np.uint8)[:, : dtype.size]
    same = np.repeat(np.arange(256, dtype=np.uint8)[:, None], dtype.size, axis=1)
    return np.ascontiguousarray(np.concatenate([random, hard, same])).reshape(-1)


def test_all_block_types_are_tested() -> None:
    """Q8_1 is left out: ggml makes it of activations, never stores it and can't decode it."""
    assert set(DECODED) == {t.name for t in TABLE if t.kind is Kind.BLOCK} - {"Q8_1"}
    written = {name for name, block in codecs.BLOCKS.items() if block.encode}
    assert written - set(ggml.STOPPING) == set(ENCODED)  # the others: test_codebooks.py


@pytest.mark.oracle
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", ENCODED)
def test_encoding_equals_llama_cpp(name: str, kind: str, path: str) -> None:
    x = numbers(kind, 256 * 250)
    if name.endswith("_K"):  # here ggml lets the payload of a NaN into the codes, by a compiler's choice of operands
        x[np.isnan(x)] = np.nan
    np.testing.assert_array_equal(encode(BY_NAME[name], x)[0], ggml.quantize(BY_NAME[name], x))


@pytest.mark.parametrize("kind", ["normal", "tiny", "halves"])
@pytest.mark.parametrize("source", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", ENCODED)
def test_encoding_in_tiles_is_encoding(name: str, source: DType, kind: str, path: str) -> None:
    """Two tiles of 4,096 elements and a part of one. A value or scale that isn't finite stops it in each."""
    dtype, plain = BY_NAME[name], numbers(kind, 256 * 37)
    out = np.zeros(plain.size // dtype.block * dtype.size, np.uint8)

    def in_tiles(x: np.ndarray) -> kernels.CastCounts | None:
        stored = np.zeros(x.size * source.size, np.uint8)
        kernels.cast(F32, source, x.view(np.uint8), stored)
        counts = kernels.encode_finite(source, dtype, stored, out)
        values = kernels.widened(source, stored)
        want, lost = encode(dtype, values)
        scales = kernels.stats(dtype, want)
        refused = bool(kernels.nonfinite(values) or scales.nan or scales.inf)
        assert counts == (None if refused else lost)
        if not refused:
            np.testing.assert_array_equal(out, want)
        return counts

    assert in_tiles(plain) is not None
    for place in (0, 4095, 4096, plain.size - 1):
        for value in (np.nan, np.inf, -np.inf, 1e30):
            x = plain.copy()
            x[place] = value
            assert in_tiles(x) is None or value == 1e30


def test_scales_at_the_borders_of_f16(path: str) -> None:
    """The scale of a block of Q8_0 is a 127th of its largest: half the smallest f16 and what follows it, that f16, the
    last f32 that rounds to the largest, and the first that doesn't. Sixteen of each, which are handled together."""
    borders = np.array([0x33000000, 0x33000001, 0x33800000, 0x477FEFFF, 0x477FF000], np.uint32).view(np.float32)
    x = np.zeros((borders.size, 16, 32), np.float32)
    x[:, :, 7] = (borders * np.float32(127))[:, None]
    assert (x[:, 0, 7] / np.float32(127) == borders).all()
    blocks, lost = encode(Q8_0, x.reshape(-1))
    scales = blocks.reshape(-1, 34)[:, :2].copy().view("<f2").reshape(-1, 16)
    np.testing.assert_array_equal(scales, np.repeat([[0], [2**-24], [2**-24], [65504], [np.inf]], 16, axis=1))
    assert lost == (16, 16)


@pytest.mark.oracle
@pytest.mark.parametrize("name", DECODED)
def test_decoding_equals_llama_cpp(name: str, path: str) -> None:
    """Compared as bits, NaN payloads and signs too."""
    data = stored(BY_NAME[name], 3000)
    got, want = decode(BY_NAME[name], data), ggml.dequantize(BY_NAME[name], data)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("name", DECODED)
def test_levels_decode_as_the_reference(name: str) -> None:
    data = stored(BY_NAME[name], 501)
    with running("reference"):
        want = decode(BY_NAME[name], data)
    for level in LEVELS:
        with running(level):
            got = decode(BY_NAME[name], data)
            np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), err_msg=level)


@pytest.mark.parametrize("name", sorted(set(DECODED) - set(ENCODED)))
def test_tails_and_alignment_of_decoding(name: str, path: str) -> None:
    dtype = BY_NAME[name]
    data = stored(dtype, 9)
    values = decode(dtype, data)
    for n in range(10):
        src = np.empty(dtype.size * n + 1, np.uint8)
        src[1:] = data[: dtype.size * n]
        floats = np.full(4 * dtype.block * n + 2, 0x5A, np.uint8)
        kernels.decode(dtype, src[1:], floats[1:-1].view(np.float32))
        np.testing.assert_array_equal(floats[1:-1], values[: dtype.block * n].view(np.uint8))
        assert floats[0] == floats[-1] == 0x5A


@pytest.mark.oracle
def test_mxfp4_scales_at_powers_of_two(path: str) -> None:
    x = around_powers_of_two()
    np.testing.assert_array_equal(encode(BY_NAME["MXFP4"], x)[0], ggml.quantize(BY_NAME["MXFP4"], x))


@pytest.mark.oracle
def test_q3_k_stops_after_five_rounds(path: str) -> None:
    x = slow_to_settle()
    np.testing.assert_array_equal(encode(BY_NAME["Q3_K"], x)[0], ggml.quantize(BY_NAME["Q3_K"], x))


@pytest.mark.oracle
def test_nvfp4_scales_at_all_roundings(path: str) -> None:
    x = around_e4m3_scales()
    np.testing.assert_array_equal(encode(BY_NAME["NVFP4"], x)[0], ggml.quantize(BY_NAME["NVFP4"], x))


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_fp4_at_all_roundings(name: str, path: str) -> None:
    x = around_fp4_borders()
    np.testing.assert_array_equal(encode(BY_NAME[name], x)[0], ggml.quantize(BY_NAME[name], x))


@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name in ENCODED if BY_NAME[name].block == 32])
def test_the_first_of_equals_gives_the_sign(name: str, path: str) -> None:
    x = of_two_signs()
    np.testing.assert_array_equal(encode(BY_NAME[name], x)[0], ggml.quantize(BY_NAME[name], x))


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", ENCODED)
def test_levels_equal_the_reference(name: str, kind: str) -> None:
    x = numbers(kind, 256 * 83, seed=11)
    with running("reference"):
        want, lost = encode(BY_NAME[name], x)
        back = decode(BY_NAME[name], want)
    for level in LEVELS:
        with running(level):
            got, counts = encode(BY_NAME[name], x)
            np.testing.assert_array_equal(got, want, err_msg=level)
            assert counts == lost
            np.testing.assert_array_equal(decode(BY_NAME[name], want).view(np.uint32), back.view(np.uint32))


@pytest.mark.parametrize("name", ENCODED)
def test_tails_and_alignment(name: str, path: str) -> None:
    """Up to 130 blocks at odd addresses: the padded last vectors write nothing beyond their blocks. Up to 64 are coded
    together."""
    dtype = BY_NAME[name]
    x = numbers("normal", dtype.block * 130)
    data = encode(dtype, x)[0]
    values = decode(dtype, data)
    for n in (*range(41), 63, 64, 65, 127, 128, 129, 130):
        src = np.empty(4 * dtype.block * n + 1, np.uint8)
        src[1:] = x[: dtype.block * n].view(np.uint8)
        out = np.full(dtype.size * n + 2, 0x5A, np.uint8)
        kernels.encode(dtype, src[1:].view(np.float32), out[1:-1])
        np.testing.assert_array_equal(out[1:-1], data[: dtype.size * n])
        assert out[0] == out[-1] == 0x5A
        floats = np.full(4 * dtype.block * n + 2, 0x5A, np.uint8)
        kernels.decode(dtype, out[1:-1], floats[1:-1].view(np.float32))
        np.testing.assert_array_equal(floats[1:-1], values[: dtype.block * n].view(np.uint8))
        assert floats[0] == floats[-1] == 0x5A


@pytest.mark.parametrize(("name", "steps"), STEPS.items())
def test_the_error_is_within_a_step(name: str, steps: float, path: str) -> None:
    """Half a step of the code, and what f16 does to the scale. Q4_0's and Q5_0's codes end below the largest: there it
    is a whole step; and the scale of FP4 types is a power of two or of three bits."""
    dtype = BY_NAME[name]
    x = numbers("normal", dtype.block * 500)
    rows = x.reshape(-1, dtype.block)
    error = np.abs(decode(dtype, encode(dtype, x)[0]) - x).reshape(-1, dtype.block).max(axis=1)
    spread = rows.max(axis=1) - rows.min(axis=1) if name in WITH_MINIMUM else np.abs(rows).max(axis=1)
    assert (error <= spread * steps * 1.01 + np.abs(rows).max(axis=1) * 2**-10).all()


def test_hand_checked() -> None:
    """Scales of exactly one: the element of largest magnitude is 127 in Q8_0, -8 in Q4_0."""
    x = np.zeros(32, np.float32)
    x[:3] = [127, -2, 2.5]
    data, _ = encode(Q8_0, x)
    assert data[:5].tolist() == [0x00, 0x3C, 127, 254, 3]  # d = 1.0, halves away from zero
    x[:3], x[16:18] = [-8, 3, 0.5], [7, -1]
    data, _ = encode(Q4_0, x)
    assert data[:4].tolist() == [0x00, 0x3C, 0xF0, 0x7B]  # low nibbles: -8 + 8, 3 + 8; high: 7 + 8, -1 + 8
    assert decode(Q4_0, data)[[0, 1, 2, 16, 17]].tolist() == [-8, 3, 1, 7, -1]


def test_lost_scales_are_counted(path: str) -> None:
    x = np.zeros(32 * 9, np.float32)
    x[0], x[32], x[64] = 1e38, 1e-30, np.nan
    assert encode(Q8_0, x)[1] == (1, 1)
    assert encode(Q4_0, x)[1] == (1, 1)
    x = np.zeros((8, 64), np.float32)
    x[0, 0], x[1, :], x[2, 3], x[3, 4] = 1e-40, 1e-40, np.inf, np.nan
    assert encode(BY_NAME["MXFP4"], x.reshape(-1))[1] == (0, 3)  # scales below the smallest
    assert encode(BY_NAME["NVFP4"], x.reshape(-1))[1] == (0, 5)


def test_wrong_calls_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        kernels.decode(Q8_0, np.zeros(33, np.uint8), np.zeros(32, np.float32))
    with pytest.raises(UsageError):
        kernels.decode(Q8_0, np.zeros(34, np.uint8), np.zeros(31, np.float32))
    with pytest.raises(UsageError):
        kernels.encode(Q8_0, np.zeros(31, np.float32), np.zeros(34, np.uint8))
    with pytest.raises(UnsupportedError):
        kernels.decode(BY_NAME["Q8_1"], np.zeros(36, np.uint8), np.zeros(32, np.float32))
    assert kernels.encodes(Q8_0)
    assert not kernels.encodes(BY_NAME["Q8_1"])
