"""MLX affine against MLX itself (its CPU backend)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.kernels.data import LEVELS, numbers, running

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import affine, floats

TYPES = ["F16", "BF16", "F32"]
GROUPS = [32, 64, 128]
# MLX computes in the type of the scales: its last bit is another one, so only f32 can be compared exactly.
KINDS = ["normal", "halves", "one sign", "tiny", "zero", "constant"]


def decode(bits: int, group: int, dtype: str, parts: tuple[np.ndarray, ...]) -> np.ndarray:
    out = np.full(parts[0].size * 8 // bits, np.nan, np.float32)
    kernels.affine_decode(bits, group, BY_NAME[dtype], parts[0], parts[1], parts[2], False, out)
    return out


def random_parts(bits: int, group: int, dtype: str, groups: int = 37) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(bits * group)
    scales = floats.narrow(dtype, rng.normal(size=groups).astype(np.float32)).view(np.uint8)
    biases = floats.narrow(dtype, rng.normal(size=groups).astype(np.float32)).view(np.uint8)
    return rng.integers(0, 256, groups * group * bits // 8, dtype=np.uint8), scales, biases


def as_bytes(mx: Any, array: Any) -> np.ndarray:
    array = array.view(mx.uint16) if array.dtype in (mx.float16, mx.bfloat16) else array
    return np.array(array).view(np.uint8).reshape(-1)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", affine.AFFINE_BITS)
@pytest.mark.parametrize("dtype", TYPES)
def test_encoding_equals_mlx(dtype: str, bits: int, group: int, kind: str, path: str) -> None:
    """Codes, scales and biases bit for bit, as its CPU kernel makes them."""
    mx = pytest.importorskip("mlx.core")
    stored = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}[dtype]
    x = floats.widen(dtype, floats.narrow(dtype, numbers(kind, 8 * 256)).view(np.uint8))
    with mx.stream(mx.cpu):
        want = mx.quantize(mx.array(x.reshape(8, 256)).astype(stored), group_size=group, bits=bits)
        mx.eval(want)
    got = kernels.affine_encode(bits, group, BY_NAME[dtype], x)
    for part, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_array_equal(ours, as_bytes(mx, theirs), err_msg=("weight", "scales", "biases")[part])


@pytest.mark.oracle
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", affine.AFFINE_BITS)
def test_decoding_equals_mlx(bits: int, group: int, path: str) -> None:
    mx = pytest.importorskip("mlx.core")
    groups = 4 * 128 // group
    parts = random_parts(bits, group, "F32", groups)
    weight, scales, biases = (
        mx.array(p.view(t).reshape(1, -1)) for p, t in zip(parts, ("u4", "f4", "f4"), strict=True)
    )
    with mx.stream(mx.cpu):
        want = np.array(mx.dequantize(weight, scales, biases, group_size=group, bits=bits)).reshape(-1)
    np.testing.assert_allclose(decode(bits, group, "F32", parts), want, rtol=0, atol=2e-5)
    # MLX may contract to a fused multiply-add, which differs in the last bit; codes must not:
    scale = scales.__class__(np.ones((1, groups), np.float32))
    zero = scales.__class__(np.zeros((1, groups), np.float32))
    with mx.stream(mx.cpu):
        codes = np.array(mx.dequantize(weight, scale, zero, group_size=group, bits=bits)).reshape(-1)
    one = np.ones(groups, np.float32).view(np.uint8)
    np.testing.assert_array_equal(decode(bits, group, "F32", (parts[0], one, np.zeros_like(one))), codes)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", affine.AFFINE_BITS)
def test_levels_equal_the_reference(bits: int, group: int, dtype: str) -> None:
    parts = random_parts(bits, group, dtype, groups=131)
    with running("reference"):
        want = decode(bits, group, dtype, parts)
    for level in LEVELS:
        with running(level):
            np.testing.assert_array_equal(decode(bits, group, dtype, parts), want, err_msg=level)


@pytest.mark.parametrize("bits", affine.AFFINE_BITS)
def test_tails_and_alignment(bits: int, path: str) -> None:
    parts = random_parts(bits, 32, "BF16", groups=70)
    full = decode(bits, 32, "BF16", parts)
    for n in range(71):
        sizes = (4 * bits * n, 2 * n, 2 * n)
        odd = [np.empty(size + 1, np.uint8) for size in sizes]
        for target, part, size in zip(odd, parts, sizes, strict=True):
            target[1:] = part[:size]
        out = np.full(128 * n + 2, 0x5A, np.uint8)
        kernels.affine_decode(bits, 32, BF16, odd[0][1:], odd[1][1:], odd[2][1:], False, out[1:-1].view(np.float32))
        np.testing.assert_array_equal(out[1:-1], full[: 32 * n].view(np.uint8))
        assert out[0] == out[-1] == 0x5A


@pytest.mark.parametrize("bits", affine.AFFINE_BITS)
def test_codes_pack_and_unpack(bits: int) -> None:
    codes = np.random.default_rng(1).integers(0, 1 << bits, 640).astype(np.uint8)
    words = affine.pack_codes(bits, codes)
    assert words.size == 80 * bits
    np.testing.assert_array_equal(affine.unpack_codes(bits, words), codes)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [0, 8, 16, 24, 640])
def test_packing_on_every_path(bits: int, count: int, path: str) -> None:
    """Native and numpy: the same stream, and back."""
    codes = np.random.default_rng(count).integers(0, 1 << bits, count).astype(np.uint8)
    words = kernels.pack_codes(bits, codes)
    np.testing.assert_array_equal(words, affine.pack_codes(bits, codes))
    np.testing.assert_array_equal(kernels.unpack_codes(bits, words), codes)


def test_hand_checked() -> None:
    """Codes 0,15,5,0,11,6,1,12 of 4 bits are the word 0xC16B05F0; 0,7,5,0,3,6,1,4 of 3 bits the bytes 78 31 87."""
    four = affine.pack_codes(4, np.array([0, 15, 5, 0, 11, 6, 1, 12], np.uint8))
    assert four.view("<u4").tolist() == [0xC16B05F0]
    assert affine.pack_codes(3, np.array([0, 7, 5, 0, 3, 6, 1, 4], np.uint8)).tobytes() == bytes.fromhex("783187")


def test_wrong_calls_are_refused(path: str) -> None:
    weight, scales, biases = random_parts(4, 64, "F16")
    out = np.zeros(37 * 64, np.float32)
    with pytest.raises(UnsupportedError):
        kernels.affine_decode(9, 64, F16, weight, scales, biases, False, out)
    with pytest.raises(UnsupportedError):
        kernels.affine_decode(4, 48, F16, weight, scales, biases, False, out)
    with pytest.raises(UnsupportedError):
        kernels.affine_decode(4, 64, BY_NAME["U8"], weight, scales, biases, False, out)
    for wrong in ((weight[1:], scales, biases), (weight, scales[2:], biases), (weight, scales, biases[2:])):
        with pytest.raises(UsageError):
            kernels.affine_decode(4, 64, F16, *wrong, False, out)
    with pytest.raises(UsageError):
        kernels.affine_decode(4, 64, F32, weight, scales, biases, False, out)


def ordered(rows: int, columns: int, groups: int, padded: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(rows)
    codes, zeros = (
        rng.integers(0, 256, (rows, columns + padded), np.uint8),
        rng.integers(0, 256, rows * groups, np.uint8),
    )
    scales = rng.integers(0, 1 << 32, rows * groups, np.uint32).view(np.float32)
    scales[np.isnan(scales)] = np.nan
    return codes, scales, zeros, rng.integers(0, groups, columns).astype(np.int32)


@pytest.mark.parametrize(("rows", "columns", "groups", "padded"), [(1, 1, 1, 0), (5, 96, 3, 0), (4, 77, 7, 3)])
def test_columns_in_any_order(rows: int, columns: int, groups: int, padded: int, path: str) -> None:
    codes, scales, zeros, index = ordered(rows, columns, groups, padded)
    out = np.zeros(rows * columns, np.float32)
    kernels.ordered_decode(codes, scales, zeros, index, out)
    at = np.arange(rows)[:, None] * groups + index  # spelled out: one group after the other
    with np.errstate(all="ignore"):
        levels = codes.reshape(rows, -1)[:, :columns].astype(int) - zeros.astype(int)[at]
        want = (levels.astype(np.float32) * scales[at]).reshape(-1)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(out, affine.ordered_decode(codes, scales, zeros, index, rows))


def test_an_index_outside_is_refused(path: str) -> None:
    codes, scales, zeros, index = ordered(5, 96, 3)
    out = np.zeros(5 * 96, np.float32)
    for wrong in (-1, 3, 1 << 30):
        with pytest.raises(UsageError, match="beyond the 3"):
            kernels.ordered_decode(codes, scales, zeros, np.where(index == 1, wrong, index).astype(np.int32), out)
    for parts in ((codes[5:], scales, zeros), (codes, scales[1:], zeros), (codes, scales, zeros[1:])):
        with pytest.raises(UsageError):
            kernels.ordered_decode(*parts, index, out)
    if path != "reference":  # the door looks for itself
        from weighbridge.base.native import native

        for wrong in (-1, 3):
            with pytest.raises(ValueError, match="a group that isn't there"):
                native.ordered_decode(96, 3, codes, scales, zeros, np.full(96, wrong, np.int32), out)
        with pytest.raises(ValueError, match="codes"):
            native.ordered_decode(96, 3, codes[5:], scales, zeros, index, out)


@pytest.mark.parametrize("high_first", [False, True])
@pytest.mark.parametrize(("group", "groups"), [(16, 1), (16, 37), (32, 5), (64, 3), (80, 2)])
def test_codes_that_are_places_in_a_table(group: int, groups: int, high_first: bool, path: str) -> None:
    rng = np.random.default_rng(group)
    table = rng.normal(size=16).astype(np.float32)
    table[8] = -0.0
    codes, scales = rng.integers(0, 256, groups * group // 2, np.uint8), rng.normal(size=groups).astype(np.float32)
    out = np.zeros(groups * group, np.float32)
    odd = np.zeros(codes.size + 1, np.uint8)[1:]
    odd[:] = codes
    kernels.table_decode(table, group, odd, scales, out, high_first=high_first)
    for i, value in enumerate(out):  # spelled out
        byte = int(codes[i // 2])
        code = byte >> 4 if (i % 2 == 0) == high_first else byte & 15
        assert value.tobytes() == (table[code] * scales[i // group]).tobytes()


def test_tables_that_do_not_fit_are_refused(path: str) -> None:
    table, out = np.zeros(16, np.float32), np.zeros(64, np.float32)
    codes, scales = np.zeros(32, np.uint8), np.zeros(2, np.float32)
    for group, wrong in ((0, table), (8, table), (24, table), (32, table[:8])):
        with pytest.raises(UnsupportedError):
            kernels.table_decode(wrong, group, codes, scales, out, high_first=True)
    for parts in ((codes[1:], scales, out), (codes, scales[1:], out), (codes, scales, out[1:])):
        with pytest.raises(UsageError):
            kernels.table_decode(table, 32, *parts, high_first=True)
    if path != "reference":  # the door looks for itself
        from weighbridge.base.native import native

        for arguments in ((table, 8, codes), (table[1:], 32, codes), (table, 32, codes[1:])):
            with pytest.raises(ValueError):
                native.table_decode(arguments[0], arguments[1], True, arguments[2], scales, out)
