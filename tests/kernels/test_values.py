"""What stands in the numbers; and the moves that don't look at them: byte order, rows by an index, transposes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.kernels.data import LEVELS, numbers, random_bits, running

from weighbridge.base.dtypes import BY_NAME, F32, F64
from weighbridge.base.errors import UsageError
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import floats
from weighbridge.tensors.reference import registry as codecs

RNG = np.random.default_rng(9)


@pytest.mark.parametrize("name", floats.SCALAR)
def test_stats_of_floats(name: str, path: str) -> None:
    with np.errstate(all="ignore"):
        for count in (*range(36), 5000):
            data = RNG.integers(0, 256, count * BY_NAME[name].size, dtype=np.uint8)
            values = data.view(floats.SCALAR[name]).astype(np.float64)
            found, finite = kernels.stats(BY_NAME[name], data), values[np.isfinite(values)]
            assert found[:2] == (np.isnan(values).sum(), np.isinf(values).sum())
            assert found[2:] == ((finite.min(), finite.max()) if finite.size else (None, None))


# Where the f16 scales of a block are.
HALVES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0], "Q1_0": [0], "Q2_0": [0],
    "TQ1_0": [52], "TQ2_0": [64], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ4_XS": [0],
}  # fmt: skip
OTHER_SCALES = {"MXFP4", "NVFP4", "Q8_K", "IQ1_M"}


def test_scales_of_all_block_types_are_tested() -> None:
    assert set(HALVES) | OTHER_SCALES == set(codecs.BLOCKS)


@pytest.mark.parametrize("name", HALVES)
def test_stats_of_scales(name: str, path: str) -> None:
    """Only the f16 scales are looked at: codes of 0x7C00 are numbers like others."""
    places = HALVES[name]
    data = np.full((1500, BY_NAME[name].size), 0x7C, np.uint8)
    scales = np.stack([RNG.normal(size=1500).astype(np.float16) for _ in places], axis=1)
    scales[7, 0], scales[8, -1], scales[9, -1] = np.nan, np.inf, -np.inf
    for k, at in enumerate(places):
        data[:, at : at + 2] = scales[:, k : k + 1].copy().view(np.uint8)
    finite = scales[np.isfinite(scales)].astype(np.float64)
    assert kernels.stats(BY_NAME[name], data.reshape(-1)) == (1, 2, finite.min(), finite.max())


def test_stats_of_other_scales(path: str) -> None:
    """One byte in the FP4 types, f32 in Q8_K, an f16 in four places in IQ1_M. What OCP calls a NaN is told, though ggml
    takes it for a number."""
    blocks = np.full((600, 36), 0x7F, np.uint8)
    blocks[:, :4] = [0x38, 0x08, 0x7E, 0xB9]
    assert kernels.stats(BY_NAME["NVFP4"], blocks.reshape(-1)) == (0, 0, 2.0**-6, 448.0)
    blocks[5, 1], blocks[599, 3] = 0x7F, 0xFF
    assert kernels.stats(BY_NAME["NVFP4"], blocks.reshape(-1))[:2] == (2, 0)
    fours = np.full((1300, 17), 0xFF, np.uint8)
    fours[:, 0], fours[3, 0], fours[4, 0] = 127, 0, 254
    assert kernels.stats(BY_NAME["MXFP4"], fours.reshape(-1)) == (0, 0, 2.0**-127, 2.0**127)
    fours[1299, 0] = 255
    assert kernels.stats(BY_NAME["MXFP4"], fours.reshape(-1))[:2] == (1, 0)
    eights = np.full((30, 292), 0xFF, np.uint8)
    eights[:, :4] = np.array([3.5], np.float32).view(np.uint8)
    eights[7, :4] = np.array([-np.inf], np.float32).view(np.uint8)
    assert kernels.stats(BY_NAME["Q8_K"], eights.reshape(-1)) == (0, 1, 3.5, 3.5)
    ones = np.full((30, 56), 0xFF, np.uint8)
    ones[:, 49::2] = [0x0F, 0x0F, 0xCF, 0x3F]  # the tops, lowest first: 0x3C00
    ones[3, 49::2] = [0x1F, 0x0F, 0xCF, 0x7F]  # 0x7C01
    ones[4, 49::2] = [0x0F, 0x0F, 0x0F, 0xCF]  # 0xC000
    assert kernels.stats(BY_NAME["IQ1_M"], ones.reshape(-1)) == (1, 0, -2.0, 1.0)


def test_stats_where_nothing_is_finite_and_of_zeros(path: str) -> None:
    assert kernels.stats(F32, np.full(40, np.nan, np.float32).view(np.uint8)) == (40, 0, None, None)
    assert kernels.stats(F32, np.zeros(0, np.uint8)) == (0, 0, None, None)
    low, high = kernels.stats(F32, np.array([-0.0, 0.0, -0.0] * 20, np.float32).view(np.uint8))[2:]
    assert (str(low), str(high)) == ("0.0", "0.0")  # the sign of a zero depends on order; it isn't told
    assert kernels.stats(F64, np.array([1e300, -1e-300]).view(np.uint8)) == (0, 0, -1e-300, 1e300)


def test_stats_agree_over_levels() -> None:
    data = random_bits(100_003).view(np.uint8)
    with running("reference"):
        want = kernels.stats(F32, data)
    for level in LEVELS:
        with running(level):
            assert kernels.stats(F32, data) == want


@pytest.mark.parametrize("name", ["U8", "F16", "BF16", "F32", "F64", "I64", "C64", "MXFP4"])
def test_byteswap_of_plain_types(name: str, path: str) -> None:
    """Words are reversed in place: those of the largest scalar inside (a complex number's parts each)."""
    dtype = BY_NAME[name]
    for atoms in range(70):
        odd = RNG.integers(0, 256, atoms * dtype.size + 1, dtype=np.uint8)
        before = odd[1:].reshape(-1, dtype.word).copy()
        kernels.byteswap(dtype, odd[1:])
        np.testing.assert_array_equal(odd[1:].reshape(-1, dtype.word), before[:, ::-1])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_byteswap_of_blocks_turns_the_scales_only(name: str, path: str) -> None:
    x = numbers("normal", 32 * 9)
    data = np.zeros(9 * BY_NAME[name].size, np.uint8)
    kernels.encode(BY_NAME[name], x, data)
    before = data.reshape(9, -1).copy()
    kernels.byteswap(BY_NAME[name], data)
    after = data.reshape(9, -1)
    codes = 2 * len(HALVES[name])
    np.testing.assert_array_equal(after[:, codes:], before[:, codes:])
    np.testing.assert_array_equal(after[:, :codes].copy().view(">u2"), before[:, :codes].copy().view("<u2"))


def test_byteswap_wants_whole_words(path: str) -> None:
    with pytest.raises(UsageError):
        kernels.byteswap(F32, np.zeros(5, np.uint8))
    with pytest.raises(UsageError):
        kernels.byteswap(BY_NAME["Q8_0"], np.zeros(35, np.uint8))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 16, 18, 20, 34, 100, 4096])
def test_gather(width: int, path: str) -> None:
    rows = RNG.integers(0, 256, (50, width), dtype=np.uint8)
    for count in (0, 1, 49, 77):
        order = RNG.integers(0, 50, count)
        out = np.zeros(count * width, np.uint8)
        kernels.gather_rows(rows.reshape(-1), order.astype(np.int32), width, out)
        np.testing.assert_array_equal(out.reshape(-1, width), rows[order])


@pytest.mark.parametrize("bad", [-1, 4, 1 << 62, -(1 << 63)])
def test_gather_refuses_rows_that_are_not_there(bad: int, path: str) -> None:
    out = np.full(16, 0x5A, np.uint8)
    with pytest.raises(UsageError):
        kernels.gather_rows(np.zeros(32, np.uint8), np.array([0, bad]), 8, out)
    assert (out == 0x5A).all()
    with pytest.raises(UsageError):
        kernels.gather_rows(np.zeros(32, np.uint8), np.array([0, 1]), 8, out[1:])


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_a_transposed_part_of_a_matrix(size: int, path: str) -> None:
    """Every edge of the squares that move together, at odd addresses; nothing beyond the part is written."""
    for rows, columns in product((1, 2, 7, 16, 17, 64, 65), repeat=2):
        source = RNG.integers(0, 256, (rows, (columns + 3) * size + 1), dtype=np.uint8)[:, 1:]
        target = np.full((columns, (rows + 2) * size + 1), 0x5A, np.uint8)
        part = source[:, : columns * size].view(f"V{size}")
        kernels.transpose(part, target[:, 1 : 1 + rows * size].view(f"V{size}"))
        want = source[:, : columns * size].reshape(rows, columns, size).swapaxes(0, 1).reshape(columns, -1)
        np.testing.assert_array_equal(target[:, 1 : 1 + rows * size], want)
        target[:, 1 : 1 + rows * size] = 0x5A
        assert (target == 0x5A).all()


def test_a_transposed_matrix_must_fit(path: str) -> None:
    with pytest.raises(UsageError, match="doesn't become"):
        kernels.transpose(np.zeros((2, 3), np.uint8), np.zeros((2, 3), np.uint8))
    kernels.transpose(np.zeros((0, 3), np.uint8), np.zeros((3, 0), np.uint8))


def test_codes_in_the_order_of_awq(path: str) -> None:
    """The nibbles of a word are columns 0 2 4 6 1 3 5 7."""
    words = np.concatenate([np.array([0x75316420], np.uint32), RNG.integers(0, 1 << 32, 99, dtype=np.uint32)])
    nibbles = words[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    want = np.empty_like(nibbles)
    want[:, [0, 2, 4, 6, 1, 3, 5, 7]] = nibbles
    got = kernels.unpack_awq(words.view(np.uint8))
    np.testing.assert_array_equal(got, want.reshape(-1))
    np.testing.assert_array_equal(got[:8], np.arange(8))
    with pytest.raises(UsageError):
        kernels.unpack_awq(np.zeros(5, np.uint8))


@pytest.mark.parametrize("shape", [(8, 1), (8, 16), (16, 37), (40, 33)])
def test_words_of_awq_by_rows(shape: tuple[int, int], path: str) -> None:
    """Nibble r of word [i, c] is the code of row 8 i + r and column c."""
    words = RNG.integers(0, 1 << 32, shape, dtype=np.uint32)
    got = np.empty(words.nbytes, np.uint8)
    kernels.awq_by_rows(words, got)
    codes = kernels.unpack_awq(words.reshape(-1).view(np.uint8)).reshape(-1, 8, shape[1] * 8)
    nibbles = got.view(np.uint32).reshape(len(codes), 1, -1) >> np.arange(0, 32, 4, dtype=np.uint32)[:, None] & 15
    np.testing.assert_array_equal(nibbles, codes)
    with pytest.raises(UsageError, match="don't become"):
        kernels.awq_by_rows(words[:-1], got)
