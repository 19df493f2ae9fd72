"""Seeded faults: each constant and each table row of the reference, changed a little, must be seen by the comparison
with the native kernels (or with MLX, where only the reference can encode)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import pytest
from tests.kernels.data import SETS, around_e4m3_scales, around_powers_of_two, numbers, slow_to_settle
from tests.kernels.ggml import STOPPING

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.native import native
from weighbridge.tensors.reference import affine, blocks32, floats, kquants, kquants_encode, lowbit, search
from weighbridge.tensors.reference import registry as codecs
from weighbridge.tensors.reference.codebooks import grids, iq4_encode, iquants

pytestmark = [pytest.mark.mutation, pytest.mark.skipif(native is None, reason="the extension isn't built")]

MODULES = (floats, affine, blocks32, lowbit, kquants, search, kquants_encode, iquants, iq4_encode)
DATA = {kind: numbers(kind, 32 * 64) for kind in SETS}
EDGES = {"MXFP4": (around_powers_of_two(),), "NVFP4": (around_e4m3_scales(),), "Q3_K": (slow_to_settle(),)}
COLUMNS = np.random.default_rng(4).gamma(0.3, size=512).astype(np.float32)
WEIGHTED_DATA = [DATA[kind] for kind in ("normal", "halves", "wide", "tiny", "zero")]
PATTERNS = np.random.default_rng(2).integers(0, 256, 150_000, dtype=np.uint8)


def native_decode(name: str, data: np.ndarray) -> np.ndarray:
    out = np.zeros(data.size // BY_NAME[name].size * BY_NAME[name].block, np.float32)
    native.decode(name, data, out)
    return out


def native_encode(name: str, x: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    out = np.zeros(x.size // BY_NAME[name].block * BY_NAME[name].size, np.uint8)
    return out, native.encode(name, x, out)


def differs(ours: Any, theirs: Any) -> bool:
    return not np.array_equal(np.asarray(ours).view(np.uint8), np.asarray(theirs).view(np.uint8))


def differences() -> Iterator[bool]:
    """What the other tests of this folder compare, in short."""
    for name, decode in codecs.DECODE.items():
        data = PATTERNS[: PATTERNS.size // BY_NAME[name].size * BY_NAME[name].size]
        yield differs(decode(data), native_decode(name, data))
        yield codecs.stats(name, data) != native.stats(name, data)
    for name in set(native.formats("encode")) - set(STOPPING):
        for x in (*DATA.values(), *EDGES.get(name, ())):
            (ours, lost), (theirs, counts) = codecs.ENCODE[name](x), native_encode(name, x)
            yield differs(ours, theirs) or lost != counts
    for name in set(native.formats("weighted")) - set(STOPPING):
        for x in WEIGHTED_DATA:
            ours, lost = codecs.WEIGHTED[name](x.reshape(-1, COLUMNS.size), COLUMNS)
            theirs = np.zeros(x.size // BY_NAME[name].block * BY_NAME[name].size, np.uint8)
            counts = native.encode_weighted(name, x, COLUMNS, theirs)
            yield differs(ours, theirs) or lost != counts


def a_difference_is_seen() -> bool:
    return any(differences())


def affine_difference_is_seen() -> bool:
    mx = pytest.importorskip("mlx.core")
    for kind in ("normal", "zero", "tiny", "halves"):
        x = DATA[kind][:1024]
        for bits in affine.AFFINE_BITS:
            with mx.stream(mx.cpu):
                want = mx.quantize(mx.array(x.reshape(4, 256)), group_size=64, bits=bits)
            got = affine.affine_encode(bits, 64, "F32", x)
            if any(differs(a, np.array(b).reshape(-1)) for a, b in zip(got, want, strict=True)):
                return True
    return False


def seen_somewhere() -> bool:
    try:
        return a_difference_is_seen() or affine_difference_is_seen()
    except (ValueError, IndexError):  # a shape that no longer fits is a red test too
        return True


def test_nothing_is_seen_without_a_fault() -> None:
    assert not seen_somewhere()


CONSTANTS = [
    (blocks32, "QK", 16),
    (blocks32, "Q8_TOP", 128),
    (blocks32, "Q8_TOP", 126),
    (blocks32, "Q4_LOW", -7),
    (blocks32, "Q4_LOW", 8),
    (blocks32, "Q4_ROUND", 8.0),
    (blocks32, "Q4_ROUND", 8.499),
    (blocks32, "Q4_TOP", 16),
    (blocks32, "Q4_TOP", 14),
    (blocks32, "Q4_1_ROUND", 0.0),
    (blocks32, "Q4_1_ROUND", 0.499),
    (blocks32, "NIBBLE", 3),
    (affine, "AFFINE_EPS", 1.001e-7),
    (affine, "AFFINE_EPS", 1e-8),
    (blocks32, "Q5_LOW", -15),
    (blocks32, "Q5_LOW", 16),
    (blocks32, "Q5_ROUND", 16.0),
    (blocks32, "Q5_ROUND", 16.499),
    (blocks32, "Q5_TOP", 30),
    (blocks32, "Q5_TOP", 32),
    (lowbit, "Q1_0_N", 64),
    (lowbit, "Q2_0_N", 32),
    (lowbit, "TQ_N", 128),
    (lowbit, "FP4_TOP", 5.999),
    (lowbit, "MXFP4_BIAS", 124),
    (lowbit, "MXFP4_BIAS", 126),
    (lowbit, "UE4M3_TOP", 0x7D),
    (lowbit, "UE4M3_SPAN", 0x76),
    (lowbit, "UE4M3_SPAN", 0x78),
    (kquants, "QK_K", 128),
    (kquants, "Q3_SCALE_ZERO", 31),
    (kquants, "Q3_ZERO", 3),
    (kquants, "Q6_ZERO", 31),
    (kquants_encode, "N", 128),
    (search, "ROUNDER", 12582911.0),
    (search, "NOTHING", 1.0),
    (search, "SIGNED_TRIES", 8),
    (search, "SIGNED_TRIES", 10),
    (search, "LADDER_TRIES", 3),
    (search, "LADDER_TRIES", 5),
    (search, "ROUNDS", 4),
    (search, "ROUNDS", 6),
    (search, "BYTE", 31),
    (kquants_encode, "Q2_SCALE_TOP", 14),
    (kquants_encode, "Q45_SCALE_TOP", 62),
    (kquants_encode, "Q3_SCALE_LOW", -31),
    (kquants_encode, "Q6_SCALE_LOW", -127),
    (kquants_encode, "Q2_MEAN", 2.0),
    (kquants_encode, "Q345_MEAN", 1.0),
    (iq4_encode, "RUN", 16),
    (iq4_encode, "IQ4_N", 128),
    (iq4_encode, "IQ4_TRIES", 6),
    (iq4_encode, "IQ4_TRIES", 8),
    (iq4_encode, "IQ4_SCALE_ZERO", 31),
    (iquants, "QK_K", 128),
    (iquants, "RUNS", 16),
    (iquants, "IQ1_DELTA", -0.125),
    (iquants, "IQ1_DELTA", 0.1249),
    (iquants, "SCALE_SHIFT", 0.499),
    (iquants, "IQ2_SCALE", 0.5),
    (iquants, "IQ3_SCALE", 0.25),
    (iquants, "IQ4_SCALE_ZERO", 31),
    (iquants, "PARITIES", 0x6997),
    (iquants, "CODE_BITS", 8),
]


@pytest.mark.parametrize(
    ("module", "name", "value"), CONSTANTS, ids=lambda v: getattr(v, "__name__", str(v)).split(".")[-1]
)
def test_a_changed_constant_is_seen(
    module: ModuleType, name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in MODULES:  # constants are imported by name
        if getattr(user, name, None) == getattr(module, name) and (user is module or not _own(user, name)):
            monkeypatch.setattr(user, name, value)
    assert seen_somewhere()


def _own(module: ModuleType, name: str) -> bool:
    return (module.__name__, name) in {(m.__name__, n) for m, n, _ in CONSTANTS}


def test_every_constant_has_a_fault() -> None:
    for module in MODULES:
        numbers_there = {n for n, v in vars(module).items() if n.isupper() and isinstance(v, int | float)}
        own = {name for where, name, _ in CONSTANTS if where is module}
        assert own <= numbers_there
        assert numbers_there <= own | {name for where, name, _ in CONSTANTS if where in (blocks32, search)}


RANGES = ("Q2_SEARCH", "Q4_SEARCH", "Q5_SEARCH", "Q2_WEIGHTED", "Q4_WEIGHTED", "Q5_WEIGHTED")
SIGNED = ("Q3_SEARCH", "Q6_SEARCH", "Q3_SCALES", "Q4_0_SEARCH", "Q5_0_SEARCH")
SEARCHES = [
    *product(RANGES, ({"size": 64}, {"top": 2}, {"start": -0.75}, {"delta": 0.06}, {"steps": 12})),
    *product(RANGES, ({"magnitude": None}, {"bounded": None})),
    *product(SIGNED, ({"zero": 7},)),
    *product(("Q3_SEARCH", "Q6_SEARCH"), ({"size": 64},)),  # in the others a row is a part
]


@pytest.mark.parametrize(("name", "change"), SEARCHES)
def test_a_changed_search_is_seen(name: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    users = [module for module in MODULES if hasattr(module, name)]
    options = getattr(users[0], name)
    change = {key: not getattr(options, key) if value is None else value for key, value in change.items()}
    for module in users:
        monkeypatch.setattr(module, name, options._replace(**change))
    with np.errstate(all="ignore"):
        assert seen_somewhere()


TABLES = [("IQ4_VALUES", 16), ("FP4_VALUES", 16)]


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, size in TABLES for at in range(size)])
def test_a_changed_value_of_a_table_is_seen(name: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = list(getattr(lowbit, name))
    values[at] += 1
    for module in (lowbit, iquants, iq4_encode):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, tuple(values))
    assert a_difference_is_seen()


@pytest.mark.parametrize("at", range(3))
def test_a_changed_part_of_tq1_0_is_seen(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = list(lowbit.TQ1_PARTS)
    parts[at] = (parts[at][0], parts[at][1] - 1)
    monkeypatch.setattr(lowbit, "TQ1_PARTS", tuple(parts))
    assert seen_somewhere()


@pytest.mark.parametrize("name", grids.LATTICES)
def test_a_changed_point_of_a_codebook_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points = grids.grid(name).copy()
    points[-1, -1] ^= 1
    monkeypatch.setattr(iquants, "grid", lambda asked: points if asked == name else grids.grid(asked))
    assert a_difference_is_seen()


ROWS = list(zip(floats.SCALAR, list(floats.SCALAR)[1:] + list(floats.SCALAR)[:1], strict=True))


@pytest.mark.parametrize(("name", "other"), [(a, b) for a, b in ROWS if BY_NAME[a].size == BY_NAME[b].size])
def test_a_changed_row_of_the_float_table_is_seen(name: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = MappingProxyType({**floats.SCALAR, name: floats.SCALAR[other]})
    monkeypatch.setattr(floats, "SCALAR", wrong)
    assert a_difference_is_seen()


FAULTS = {
    "round halves to even": ("round_away", lambda x: floats.truncate(np.rint(x))),
    "halves added before truncation": ("round_away", lambda x: floats.truncate(x + np.copysign(np.float32(0.5), x))),
    "conversion that saturates": ("truncate", lambda x: np.clip(np.nan_to_num(x), -128, 127).astype(np.int32)),
    "NaN payload kept in scales": ("to_half", lambda x: floats.narrow("F16", x)),
    "NaN that wins the maximum": ("running_max", lambda a: a.max(axis=1)),
    "last of equals": ("extreme", lambda rows: rows[:, ::-1][np.arange(len(rows)), _last(rows)][:, None]),
    "fifth bits in the other order": ("fifth_bits", lambda codes: reference_fifth_bits(codes)[:, ::-1]),
    "log2 not rounded": ("floor_log2", lambda x: (np.frexp(x)[1] - 1).astype(np.int32)),
    "last of the nearest codes": ("nearest_fp4", lambda rows, d: _last_nearest(rows, d)),
    "scale losses not counted": ("scale_loss", lambda scales: (0, 0)),
}


reference_fifth_bits: Callable[[Any], Any] = blocks32.fifth_bits


def _last_nearest(rows: np.ndarray, d: np.ndarray) -> np.ndarray:
    errors = np.abs(np.array(lowbit.FP4_VALUES, np.float32)[:, None, None] * d - rows)
    return 15 - np.argmin(np.nan_to_num(errors[::-1], nan=np.inf, posinf=np.inf), axis=0)


def _last(rows: np.ndarray) -> np.ndarray:
    return np.argmax(np.nan_to_num(np.abs(rows[:, ::-1]), nan=-1.0), axis=1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_rule_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = FAULTS[fault]
    for module in MODULES:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, change)
    with np.errstate(all="ignore"):
        assert seen_somewhere()


def test_rounding_f64_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = (np.arange(1, 4000) / 256 + 1 + 2.0**-40).view(np.uint8)
    out = np.zeros(x.size // 4, np.uint8)
    native.cast("F64", "BF16", x, out)
    assert np.array_equal(floats.cast("F64", "BF16", x)[0], out)
    monkeypatch.setattr(floats, "round_to_odd", lambda values: values.astype(np.float32))
    assert not np.array_equal(floats.cast("F64", "BF16", x)[0], out)
