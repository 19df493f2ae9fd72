"""Floats to codes of few bits under shared scales, and small floats under them back: every level against the reference,
which the libraries judge (`tests/packings/test_rounding.py`, `test_makers.py`)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.kernels.data import LEVELS, boundaries, numbers, running

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.native import native
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import rounding as reference_rounding
from weighbridge.tensors.reference.rounding import RULES

KINDS = ["normal", "wide", "nan and inf", "halves", "below halves", "denormal", "signed zero", "huge", "bits"]
# columns, width: one for a row, several, the last of them short
SHAPES = [(64, 64), (192, 16), (300, 128), (7, 3), (1, 1)]
X, ONE = np.zeros(16, np.float32), np.ones(1, np.float32)
WAYS = [
    (name, step, multiplied)
    for name, rule in RULES.items()
    for step, multiplied in [*((step, False) for step in rule.steps), *([("F32", True)] if rule.multiplied else [])]
]


def scales_of(count: int, seed: int = 3) -> np.ndarray:
    """Numbers that scales are, and some that they shouldn't be."""
    rng = np.random.default_rng(seed)
    out = (rng.gamma(0.5, size=count) + 1e-3).astype(np.float32)
    for value in (0, -0.0, -1, np.inf, np.nan, 1e-45, 2.0**-126, 1):
        out[rng.random(count) < 0.03] = value
    return out


def shapes_of(rule: str) -> list[tuple[int, int]]:
    return [(c, w) for c, w in SHAPES if RULES[rule].bits == 8 or not (w % 16 or c % w)]


@pytest.mark.parametrize(("rule", "step", "multiplied"), WAYS)
def test_levels_round_as_the_reference(rule: str, step: str, multiplied: bool) -> None:
    for kind, (columns, width) in product(KINDS, shapes_of(rule)):
        x = numbers(kind, 12 * columns)
        scales = scales_of(12 * -(-columns // width))
        zeros = np.random.default_rng(2).integers(-8, 9, scales.size).astype(np.float32)
        for bits, offsets in (
            ((4, None), (4, zeros), (8, zeros), (1, None)) if rule in ("int", "gptq") else ((8, None),)
        ):
            want = reference_rounding.round_codes(rule, x, scales, offsets, columns, width, step, bits, multiplied)
            for level in LEVELS:
                with running(level):
                    found = kernels.round_codes(
                        rule, x, scales, columns, width, dtype=BY_NAME[step], zeros=offsets, bits=bits,
                        multiplied=multiplied,
                    )  # fmt: skip
                np.testing.assert_array_equal(found, want, err_msg=f"{level} {kind} {columns} {width}")


@pytest.mark.parametrize("rule", ["e2m1-down", "e2m1", "e2m3", "e4m3"])
def test_every_edge_between_codes(rule: str, path: str) -> None:
    """All values of the types, all middles and the floats beside these."""
    spots = boundaries("F8_E4M3")
    x = np.resize(np.concatenate([spots, spots / 64]), 16 * 2000).astype(np.float32)
    one = np.ones(2000, np.float32)
    np.testing.assert_array_equal(
        kernels.round_codes(rule, x, one, 16, 16),
        reference_rounding.round_codes(rule, x, one, None, 16, 16, "F32", 8, False),
    )


def test_hand_checked(path: str) -> None:
    """Ties, signs and zeros of each rule, as their drawing says."""
    x = np.array([0, -0.0, 0.25, -0.25, 0.75, -0.75, 1.25, 2.5, 3.5, -5, 5.5, 7, -0.1, 1.75, -1e9, np.nan], np.float32)
    two = np.array([2], np.float32)

    def nibbles(rule: str) -> list[int]:
        packed = kernels.round_codes(rule, x * 2, two, 16, 16)
        return [int(c) for byte in packed for c in (byte & 15, byte >> 4)]

    assert nibbles("e2m1-down") == [0, 0, 0, 0, 1, 9, 2, 4, 5, 14, 7, 7, 0, 3, 15, 7]
    assert nibbles("e2m1") == [0, 0, 0, 8, 2, 10, 2, 4, 6, 14, 7, 7, 8, 4, 15, 7]
    whole = kernels.round_codes("int", x * 2, two, 16, 16, bits=4)
    assert whole.tolist() == [8, 8, 8, 8, 9, 7, 9, 10, 12, 3, 14, 15, 8, 10, 0, 0]
    moved = kernels.round_codes("gptq", x * 2, two, 16, 16, zeros=np.array([3], np.float32), bits=4)
    assert moved.tolist() == [3, 3, 3, 3, 4, 2, 4, 5, 7, 0, 9, 10, 3, 5, 0, 0]
    assert not kernels.round_codes("e4m3", x, np.zeros(1, np.float32), 16, 16).any()


@pytest.mark.parametrize("kind", KINDS)
def test_extremes(kind: str, path: str) -> None:
    for columns, width in [*SHAPES, (33, 33), (70, 40)]:
        x = numbers(kind, 9 * columns)
        found = kernels.extremes(x, columns, width)
        runs = [row[at : at + width] for row in x.reshape(-1, columns) for at in range(0, columns, width)]
        for part, pick in zip(found, (np.min, np.max), strict=True):
            np.testing.assert_array_equal(part, [pick(run) for run in runs])


@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "BF16", "F32"])
def test_small_floats_times_their_scales(name: str, path: str) -> None:
    dtype = BY_NAME[name]
    for columns, width in (*SHAPES, (2500, 2500)):
        raw = np.random.default_rng(columns).integers(0, 256, 9 * columns * dtype.size, np.uint8)
        scales, out = scales_of(9 * -(-columns // width)), np.full(9 * columns, 5, np.float32)
        kernels.scaled_decode(dtype, raw, scales, columns, width, out)
        with np.errstate(all="ignore"):
            values = kernels.widened(dtype, raw).reshape(9, columns)
            want = [[x * s for x, s in zip(row, np.repeat(own, width), strict=False)]
                    for row, own in zip(values, scales.reshape(9, -1), strict=True)]  # fmt: skip
        np.testing.assert_array_equal(out, np.array(want, np.float32).reshape(-1))


def test_tails_and_alignment(path: str) -> None:
    x, scales = numbers("normal", 480), scales_of(30)
    room = np.empty(480 * 4 + 1, np.uint8)
    room[1:] = x.view(np.uint8)
    odd = room[1:].view(np.float32)
    np.testing.assert_array_equal(
        kernels.round_codes("e2m1", odd, scales, 48, 16), kernels.round_codes("e2m1", x, scales, 48, 16)
    )
    np.testing.assert_array_equal(np.stack(kernels.extremes(odd, 48, 16)), np.stack(kernels.extremes(x, 48, 16)))


def test_wrong_calls_are_refused(path: str) -> None:
    x, scales = numbers("normal", 96), np.ones(6, np.float32)
    for rule, width, steps, multiplied in (("e2m1", 24, "F32", False), ("gptq", 16, "BF16", False),
                                           ("e2m1", 16, "F32", True), ("e4m3", 16, "F16", True)):  # fmt: skip
        with pytest.raises(UnsupportedError):
            kernels.round_codes(rule, x, scales, 48, width, dtype=BY_NAME[steps], multiplied=multiplied)
    with pytest.raises(UnsupportedError):
        kernels.round_codes("int", x, scales, 48, 16, bits=9)
    for size, columns in ((5, 48), (6, 50)):
        with pytest.raises(UsageError):
            kernels.round_codes("e4m3", x, scales[:size], columns, 16)
    with pytest.raises(UsageError):
        kernels.round_codes("int", x, scales, 48, 16, zeros=scales[1:])
    with pytest.raises(UsageError):
        kernels.scaled_decode(BY_NAME["F8_E4M3"], np.zeros(95, np.uint8), scales, 48, 16, x)
    with pytest.raises(UsageError):
        kernels.extremes(x, 50, 10)


@pytest.mark.skipif(native is None, reason="the extension isn't built")
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("round_codes", ("e2m1", "F32", False, 8, 16, 16, X, np.zeros(2, np.float32), b"", bytearray(8))),
        ("round_codes", ("e2m1", "F32", False, 8, 16, 16, X, ONE, b"", bytearray(9))),
        ("round_codes", ("e2m1", "F32", False, 8, 24, 24, np.zeros(24, np.float32), ONE, b"", bytearray(12))),
        ("round_codes", ("e2m1", "F64", False, 8, 16, 16, X, ONE, b"", bytearray(8))),
        ("round_codes", ("e4m3", "BF16", True, 8, 16, 16, X, ONE, b"", bytearray(16))),
        ("round_codes", ("e3m2", "F32", False, 8, 16, 16, X, ONE, b"", bytearray(8))),
        ("round_codes", ("int", "F32", False, 0, 16, 16, X, ONE, b"", bytearray(16))),
        ("extremes", (0, 4, X, bytearray(16), bytearray(16))),
        ("extremes", (16, 4, X, bytearray(16), bytearray(12))),
        ("extremes", (5, 4, X, bytearray(16), bytearray(16))),
        ("scaled_decode", ("F8_E4M3", 16, 4, bytes(16), bytes(12), bytearray(64))),
        ("scaled_decode", ("F8_E4M3", 16, 4, bytes(15), bytes(16), bytearray(64))),
        ("scaled_decode", ("Q8_0", 16, 4, bytes(16), bytes(16), bytearray(64))),
    ],
)  # fmt: skip
def test_the_door_checks_every_size(call: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError):
        getattr(native, call)(*arguments)
