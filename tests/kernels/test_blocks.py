"""ggml's blocks: bytes equal to llama.cpp's own quantizers, on hostile input too."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels import ggml
from tests.kernels.data import LEVELS, SETS, numbers, running

from weighbridge.base.dtypes import BY_NAME, Q4_0, Q8_0, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors import kernels, reference

BLOCKS = ["Q8_0", "Q4_0", "Q4_1"]
BYTES = np.random.default_rng(5)


def encode(dtype: DType, x: np.ndarray) -> tuple[np.ndarray, kernels.CastCounts]:
    out = np.full(x.size // dtype.block * dtype.size, 0xA5, np.uint8)
    return out, kernels.encode(dtype, x, out)


def decode(dtype: DType, data: np.ndarray) -> np.ndarray:
    out = np.full(data.size // dtype.size * dtype.block, np.nan, np.float32)
    kernels.decode(dtype, data, out)
    return out


def test_all_block_types_are_tested() -> None:
    assert list(reference.BLOCKS) == BLOCKS
    for name, block in reference.BLOCKS.items():
        assert (BY_NAME[name].size, BY_NAME[name].block) == (block.size, reference.QK)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", BLOCKS)
def test_encoding_equals_llama_cpp(name: str, kind: str, path: str) -> None:
    x = numbers(kind, 32 * 2000)
    np.testing.assert_array_equal(encode(BY_NAME[name], x)[0], ggml.quantize(BY_NAME[name], x))


@pytest.mark.oracle
@pytest.mark.parametrize("name", BLOCKS)
def test_decoding_equals_llama_cpp(name: str, path: str) -> None:
    """Random bytes: every code, scales of all kinds. Compared as bits."""
    data = BYTES.integers(0, 256, BY_NAME[name].size * 5000, dtype=np.uint8)
    got, want = decode(BY_NAME[name], data), ggml.dequantize(BY_NAME[name], data)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", BLOCKS)
def test_levels_equal_the_reference(name: str, kind: str) -> None:
    x = numbers(kind, 32 * 501, seed=11)
    with running("reference"):
        want, lost = encode(BY_NAME[name], x)
        back = decode(BY_NAME[name], want)
    for level in LEVELS:
        with running(level):
            got, counts = encode(BY_NAME[name], x)
            np.testing.assert_array_equal(got, want, err_msg=level)
            assert counts == lost
            np.testing.assert_array_equal(decode(BY_NAME[name], want).view(np.uint32), back.view(np.uint32))


@pytest.mark.parametrize("name", BLOCKS)
def test_tails_and_alignment(name: str, path: str) -> None:
    """0..70 blocks at odd addresses: the padded last vector writes nothing beyond its blocks."""
    dtype = BY_NAME[name]
    x = numbers("normal", 32 * 70)
    data = encode(dtype, x)[0]
    values = decode(dtype, data)
    for n in range(71):
        src = np.empty(128 * n + 1, np.uint8)
        src[1:] = x[: 32 * n].view(np.uint8)
        out = np.full(dtype.size * n + 2, 0x5A, np.uint8)
        kernels.encode(dtype, src[1:].view(np.float32), out[1:-1])
        np.testing.assert_array_equal(out[1:-1], data[: dtype.size * n])
        assert out[0] == out[-1] == 0x5A
        floats = np.full(128 * n + 2, 0x5A, np.uint8)
        kernels.decode(dtype, out[1:-1], floats[1:-1].view(np.float32))
        np.testing.assert_array_equal(floats[1:-1], values[: 32 * n].view(np.uint8))
        assert floats[0] == floats[-1] == 0x5A


@pytest.mark.parametrize(("name", "steps"), [("Q8_0", 1 / 254), ("Q4_0", 1 / 8), ("Q4_1", 1 / 15)])
def test_the_error_is_within_a_step(name: str, steps: float, path: str) -> None:
    """Half a step of the code, and what f16 does to the scale. Q4_0's codes end at 7: there it is a whole step."""
    x = numbers("normal", 32 * 500)
    rows = x.reshape(-1, 32)
    error = np.abs(decode(BY_NAME[name], encode(BY_NAME[name], x)[0]) - x).reshape(-1, 32).max(axis=1)
    spread = rows.max(axis=1) - rows.min(axis=1) if name == "Q4_1" else np.abs(rows).max(axis=1)
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


def test_wrong_calls_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        kernels.decode(Q8_0, np.zeros(33, np.uint8), np.zeros(32, np.float32))
    with pytest.raises(UsageError):
        kernels.decode(Q8_0, np.zeros(34, np.uint8), np.zeros(31, np.float32))
    with pytest.raises(UsageError):
        kernels.encode(Q8_0, np.zeros(31, np.float32), np.zeros(34, np.uint8))
    with pytest.raises(UnsupportedError):
        kernels.decode(BY_NAME["IQ1_M"], np.zeros(56, np.uint8), np.zeros(256, np.float32))
    assert kernels.encodes(Q8_0)
    assert not kernels.encodes(BY_NAME["IQ1_M"])
