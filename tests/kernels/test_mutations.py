"""Seeded faults: each constant and each table row of the reference, changed a little, must be seen by the comparison
with the native kernels (or with MLX, where only the reference can encode)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.kernels.data import SETS, numbers

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.native import native
from weighbridge.tensors import reference

pytestmark = [pytest.mark.mutation, pytest.mark.skipif(native is None, reason="the extension isn't built")]

DATA = {kind: numbers(kind, 32 * 64) for kind in SETS}
PATTERNS = np.random.default_rng(2).integers(0, 256, 34 * 18 * 20 * 8, dtype=np.uint8)


def native_decode(name: str, data: np.ndarray) -> np.ndarray:
    out = np.zeros(data.size // BY_NAME[name].size * BY_NAME[name].block, np.float32)
    native.decode(name, data, out)
    return out


def native_encode(name: str, x: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    out = np.zeros(x.size // BY_NAME[name].block * BY_NAME[name].size, np.uint8)
    return out, native.encode(name, x, out)


def differs(ours: Any, theirs: Any) -> bool:
    return not np.array_equal(np.asarray(ours).view(np.uint8), np.asarray(theirs).view(np.uint8))


def a_difference_is_seen() -> bool:
    """What the other tests of this folder compare, in short."""
    seen = []
    for name, decode in reference.DECODE.items():
        data = PATTERNS[: PATTERNS.size // BY_NAME[name].size * BY_NAME[name].size]
        seen.append(differs(decode(data), native_decode(name, data)))
        seen.append(reference.stats(name, data) != native.stats(name, data))
    for name in native.formats(True):
        for x in DATA.values():
            (ours, lost), (theirs, counts) = reference.ENCODE[name](x), native_encode(name, x)
            seen.append(differs(ours, theirs) or lost != counts)
    return any(seen)


def affine_difference_is_seen() -> bool:
    mx = pytest.importorskip("mlx.core")
    for kind in ("normal", "zero", "tiny", "halves"):
        x = DATA[kind][:1024]
        for bits in reference.AFFINE_BITS:
            with mx.stream(mx.cpu):
                want = mx.quantize(mx.array(x.reshape(4, 256)), group_size=64, bits=bits)
            got = reference.affine_encode(bits, 64, "F32", x)
            if any(differs(a, np.array(b).reshape(-1)) for a, b in zip(got, want, strict=True)):
                return True
    return False


def q4_1_difference_is_seen() -> bool:
    from tests.kernels import ggml

    return any(differs(reference.encode_q4_1(x)[0], ggml.quantize(BY_NAME["Q4_1"], x)) for x in DATA.values())


def seen_somewhere() -> bool:
    try:
        return a_difference_is_seen() or affine_difference_is_seen() or q4_1_difference_is_seen()
    except (ValueError, IndexError):  # a shape that no longer fits is a red test too
        return True


def test_nothing_is_seen_without_a_fault() -> None:
    assert not seen_somewhere()


CONSTANTS = [
    ("QK", 16),
    ("Q8_TOP", 128),
    ("Q8_TOP", 126),
    ("Q4_LOW", -7),
    ("Q4_LOW", 8),
    ("Q4_ROUND", 8.0),
    ("Q4_ROUND", 8.499),
    ("Q4_TOP", 16),
    ("Q4_TOP", 14),
    ("Q4_1_ROUND", 0.0),
    ("Q4_1_ROUND", 0.499),
    ("NIBBLE", 3),
    ("AFFINE_EPS", 1.001e-7),
    ("AFFINE_EPS", 1e-8),
]


@pytest.mark.parametrize(("name", "value"), CONSTANTS)
def test_a_changed_constant_is_seen(name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, name, value)
    assert seen_somewhere()


def test_every_constant_has_a_fault() -> None:
    numbers_there = {n for n, v in vars(reference).items() if n.isupper() and isinstance(v, int | float)}
    assert numbers_there == {name for name, _ in CONSTANTS}


ROWS = list(zip(reference.SCALAR, list(reference.SCALAR)[1:] + list(reference.SCALAR)[:1], strict=True))


@pytest.mark.parametrize(("name", "other"), [(a, b) for a, b in ROWS if BY_NAME[a].size == BY_NAME[b].size])
def test_a_changed_row_of_the_float_table_is_seen(name: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = MappingProxyType({**reference.SCALAR, name: reference.SCALAR[other]})
    monkeypatch.setattr(reference, "SCALAR", wrong)
    assert a_difference_is_seen()


FAULTS = {
    "round halves to even": ("round_away", lambda x: reference.truncate(np.rint(x))),
    "halves added before truncation": ("round_away", lambda x: reference.truncate(x + np.copysign(np.float32(0.5), x))),
    "conversion that saturates": ("truncate", lambda x: np.clip(np.nan_to_num(x), -128, 127).astype(np.int32)),
    "NaN payload kept in scales": ("half_bits", lambda x: reference.narrow("F16", x).view(np.uint8).reshape(-1, 2)),
    "NaN that wins the maximum": ("_running_max", lambda a: a.max(axis=1)),
    "last of equals": ("_extreme", lambda rows: rows[:, ::-1][np.arange(len(rows)), _last(rows)][:, None]),
    "scale losses not counted": ("scale_loss", lambda scales: (0, 0)),
}


def _last(rows: np.ndarray) -> np.ndarray:
    return np.argmax(np.nan_to_num(np.abs(rows[:, ::-1]), nan=-1.0), axis=1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_rule_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = FAULTS[fault]
    monkeypatch.setattr(reference, name, change)
    with np.errstate(all="ignore"):
        assert seen_somewhere()


def test_rounding_f64_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = (np.arange(1, 4000) / 256 + 1 + 2.0**-40).view(np.uint8)
    out = np.zeros(x.size // 4, np.uint8)
    native.cast("F64", "BF16", x, out)
    assert np.array_equal(reference.cast("F64", "BF16", x)[0], out)
    monkeypatch.setattr(reference, "round_to_odd", lambda values: values.astype(np.float32))
    assert not np.array_equal(reference.cast("F64", "BF16", x)[0], out)
