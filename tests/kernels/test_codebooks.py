"""Encoding over codebooks, IQ1 to IQ3: bytes equal to llama.cpp's where it has any, and refused where it stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.kernels import ggml
from tests.kernels.data import LEVELS, SETS, Floats, numbers, running
from tests.kernels.test_weighted import WEIGHTS, weights_of

from weighbridge.base.dtypes import BY_NAME, F32, DType
from weighbridge.base.errors import RefusedError
from weighbridge.base.native import native
from weighbridge.base.spec import Spec
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import Const
from weighbridge.tensors.nodes.compute import Encode
from weighbridge.tensors.reference import registry as codecs
from weighbridge.tensors.reference.codebooks import iq1_encode as reference_iq1encode
from weighbridge.tensors.reference.codebooks import iq23_encode as reference_iqencode
from weighbridge.tensors.reference.codebooks import iquants as reference_iq
from weighbridge.tensors.reference.codebooks import lattice_neighbours
from weighbridge.tensors.reference.codebooks.grids import LATTICES, grid

NAMES = ggml.STOPPING
WAYS = [(name, how) for name in NAMES for how in (None, *WEIGHTS) if how or BY_NAME[name].importance != "required"]
COLUMNS = 768


def _rows(make: Any) -> Any:
    return lambda rng, n: make(rng, n // 256).reshape(-1)


# What stops llama.cpp or nearly does: magnitudes whose squares leave f32, by element, by part and by block; zeros in
# all places; ties.
HOSTILE = MappingProxyType(
    {
        "1e30": lambda rng, n: np.full(n, 1e30),
        "powers": lambda rng, n: rng.choice([-1, 1], n) * 2.0 ** rng.integers(-149, 127, n),
        "parts": lambda rng, n: np.repeat(10.0 ** rng.uniform(-44, 38, n // 16), 16) * rng.normal(size=n),
        "blocks": _rows(lambda rng, n: rng.normal(size=(n, 256)) * 10.0 ** rng.uniform(-44, 38, (n, 1))),
        "one huge": lambda rng, n: (
            np.where(np.arange(n) % 256, 1e-3, 10.0 ** rng.uniform(0, 38, n)) * rng.normal(size=n)
        ),
        "sparse": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.08),
        "ties": lambda rng, n: rng.integers(-3, 4, n),
    }
)
KINDS = (*SETS, *HOSTILE)


def numbers_of(kind: str, count: int, seed: int = 7) -> Floats:
    """Without NaN: such a row is refused before it comes here."""
    with np.errstate(all="ignore"):
        x = HOSTILE[kind](np.random.default_rng(seed), count) if kind in HOSTILE else numbers(kind, count, seed)
        return np.nan_to_num(np.asarray(x, np.float32), nan=0, posinf=np.inf, neginf=-np.inf)


def encode(dtype: DType, x: Floats, weights: Floats | None) -> bytes | int:
    """The bytes, or the block that is refused."""
    out = np.full(x.size // dtype.block * dtype.size, 0xA5, np.uint8)
    try:
        kernels.encode(dtype, x, out, weights)
    except kernels.RefusedBlock as refused:
        return refused.block
    return out.tobytes()


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_verdicts_equal_llama_cpp(name: str, kind: str) -> None:
    dtype, rows = BY_NAME[name], numbers_of(kind, COLUMNS * 6).reshape(-1, COLUMNS)
    ways = [how for other, how in WAYS if other == name]
    for turn in range(3):  # every kind of numbers meets some kinds of weights
        how = ways[(KINDS.index(kind) + turn * 3) % len(ways)]
        weights = None if how is None else weights_of(how, COLUMNS)
        data, stopped = ggml.verdicts(dtype, rows, weights)
        for level in LEVELS:
            with running(level):
                good = encode(dtype, np.ascontiguousarray(rows[~stopped]).reshape(-1), weights)
                assert good == data[~stopped].tobytes(), f"{level} {how}"
                for row in rows[stopped]:
                    assert isinstance(encode(dtype, row, weights), int), f"{level} {how}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_levels_equal_the_reference(name: str, kind: str) -> None:
    """The first refused block too."""
    dtype, x = BY_NAME[name], numbers_of(kind, COLUMNS * 3, seed=11)
    ways = [how for other, how in WAYS if other == name]
    how = ways[KINDS.index(kind) % len(ways)]
    weights = None if how is None else weights_of(how, COLUMNS)
    with running("reference"):
        want = encode(dtype, x, weights)
    for level in LEVELS:
        with running(level):
            assert encode(dtype, x, weights) == want, f"{level} {how}"


@pytest.mark.oracle
@pytest.mark.slow  # llama.cpp takes seconds to prepare each type
@examples(40)
@given(
    way=st.sampled_from(WAYS), blocks=st.integers(1, 5), rows=st.integers(1, 5),
    level=st.sampled_from(LEVELS or ("reference",)), seed=st.integers(0, 1 << 30), power=st.integers(-6, 6),
)  # fmt: skip
def test_any_numbers(way: tuple[str, str | None], blocks: int, rows: int, level: str, seed: int, power: int) -> None:
    dtype, rng = BY_NAME[way[0]], np.random.default_rng(seed)
    x = (rng.standard_t(4, (rows, 256 * blocks)) * 10.0**power).astype(np.float32)
    weights = None if way[1] is None else rng.gamma(0.3, size=256 * blocks).astype(np.float32)
    with running(level):
        assert encode(dtype, x.reshape(-1), weights) == ggml.quantize(dtype, x.reshape(-1), weights).tobytes()


@pytest.mark.parametrize("name", [name for name in NAMES if BY_NAME[name].importance == "used"])
def test_tails_without_weights(name: str, path: str) -> None:
    dtype = BY_NAME[name]
    x = numbers("normal", 256 * 18)
    data = encode(dtype, x, None)
    assert isinstance(data, bytes)
    for n in (0, 1, 3, 5, 15, 16, 17):
        assert encode(dtype, x[: 256 * n], None) == data[: dtype.size * n]


@pytest.mark.oracle
def test_a_run_of_zeros_in_iq3_s_moves_what_follows(path: str) -> None:
    """quantize_iq3_s doesn't step on over it, so that what it wrote isn't what it read; ours are the same bytes."""
    dtype, x = BY_NAME["IQ3_S"], numbers("normal", 512)
    x[256 + 32 : 256 + 64] = 0
    got, back = encode(dtype, x, None), np.zeros(512, np.float32)
    assert got == ggml.quantize(dtype, x).tobytes()
    assert isinstance(got, bytes)
    kernels.decode(dtype, np.frombuffer(got, np.uint8), back)
    error = np.abs(back - x).reshape(-1, 32).mean(axis=1) / np.abs(x).mean()
    assert error[:9].max() < 0.3 < error[10:].min()


def test_the_refused_row_is_named(path: str) -> None:
    dtype, x = BY_NAME["IQ3_S"], numbers("normal", 512 * 20).reshape(-1, 512)
    x[13, 300] = x[17, 0] = 1e30
    spec = Spec((20, 512), F32)
    node = Encode(spec.with_dtype(dtype), Const(spec, x.tobytes()))
    with pytest.raises(RefusedError, match=r"row 13 .* from column 256, so .* IQ3_S"):
        node.read_all()
    with pytest.raises(RefusedError, match=r"row 17 .* from column 0,"):
        node.read(14, 20)
    node.read(14, 17)


@pytest.mark.skipif(native is None, reason="the extension isn't built")
def test_threads_that_come_first_wait_for_the_neighbours() -> None:
    x, results = numbers("normal", 256 * 16), []
    work = [threading.Thread(target=lambda: results.append(encode(BY_NAME["IQ2_S"], x, None))) for _ in range(4)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len(results) == 4
    assert set(results) == {encode(BY_NAME["IQ2_S"], x, None)}


# ------------------------------------------------------------------ faults

FAULT_KINDS = ("normal", "tiny", "ties", "sparse", "parts", "zero", "constant")
FAULT_DATA = [numbers_of(kind, 512 * 4, seed=3) for kind in FAULT_KINDS]


def differences(name: str) -> Iterator[bool]:
    dtype = BY_NAME[name]
    for x in FAULT_DATA:
        for weights in (weights_of("skewed", 512), *([None] if dtype.importance == "used" else [])):
            with running(LEVELS[-1]):
                want = encode(dtype, x, weights)
            with running("reference"):
                yield encode(dtype, x, weights) != want


def seen(*names: str) -> bool:
    try:
        return any(difference for name in names for difference in differences(name))
    except (ValueError, IndexError):  # a shape that no longer fits is a red test too
        return True


mutation = pytest.mark.mutation
needs_native = pytest.mark.skipif(native is None, reason="the extension isn't built")


@mutation
@needs_native
def test_nothing_is_seen_without_a_fault() -> None:
    assert not seen(*NAMES)


IQ1 = ("IQ1_S", "IQ1_M")
CONSTANTS = [
    (reference_iqencode, "N", 128, ("IQ3_S",)),
    (reference_iqencode, "SCALE_TOP", 14, ("IQ3_S",)),
    (reference_iqencode, "SCALE_STEPS", 30, ("IQ3_S",)),
    (reference_iqencode, "LADDER_TOP", 3, ("IQ2_XXS",)),
    (reference_iq1encode, "IQ1_SCALE_TOP", 6, IQ1),
    (reference_iq1encode, "IQ1_SCALE_STEPS", 16, IQ1),
    (reference_iq1encode, "IQ1_S_NOTHING", 1e-3, IQ1),
    (reference_iq1encode, "IQ1_M_NOTHING", 1e-3, IQ1),
    (reference_iq1encode, "IQ1_S_FUDGE", 1.12, IQ1),
    (reference_iq1encode, "IQ1_M_FUDGE", 1.11, IQ1),
    (reference_iq1encode, "IQ1_DELTA", 0.12, IQ1),
]


@mutation
@needs_native
@pytest.mark.parametrize(("module", "constant", "value", "names"), CONSTANTS, ids=lambda v: str(v)[:20])
def test_a_changed_constant_is_seen(
    module: Any, constant: str, value: float, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, constant, value)
    assert seen(*names)


def test_every_constant_has_a_fault() -> None:
    for module in (reference_iqencode, reference_iq1encode):
        there = {n for n, v in vars(module).items() if n.isupper() and isinstance(v, int | float)}
        imported = {"N"} if module is reference_iq1encode else set()
        assert there - imported == {name for where, name, _, _ in CONSTANTS if where is module}


CHANGES: dict[str, Any] = {
    "part": 64, "point": 2, "largest": 13, "tries": -1, "step": 0.05, "even": None, "again": None, "nothing": 1e-3,
    "mean": 3, "flat": 0.5, "fudge": 1.1,
}  # fmt: skip
AGAIN = {"all": "outside", "all if any": "outside", "outside": "all"}


@mutation
@needs_native
@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("name", reference_iqencode.SEARCHES)
def test_a_changed_search_is_seen(name: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how: Any = reference_iqencode.SEARCHES[name]
    if field == "flat" and BY_NAME[name].importance == "required":
        assert how.flat == 0  # never read
        return
    turned = {"tries": how.tries - 1, "even": not how.even, "again": AGAIN[how.again]}
    value = turned.get(field, CHANGES[field])
    monkeypatch.setattr(reference_iqencode, "SEARCHES", {name: how._replace(**{field: value})})
    assert seen(name)


@mutation
@needs_native
@pytest.mark.parametrize("name", lattice_neighbours.DISTANCES)
def test_a_changed_number_of_distances_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lattice_neighbours.neighbours.__wrapped__
    monkeypatch.setattr(lattice_neighbours, "DISTANCES", {name: lattice_neighbours.DISTANCES[name] + 1})
    changed = made(name)
    for module in (lattice_neighbours, reference_iqencode, reference_iq1encode):
        monkeypatch.setattr(module, "neighbours", lambda asked: changed if asked == name else made(asked))
    assert seen("IQ1_M" if name == "IQ1_S" else name)


RULES = {
    "zeros that move nothing": (reference_iqencode, "skip_empty_runs", lambda values, empty: values, "IQ3_S"),
    "seven signs free": (reference_iqencode, "_folded", lambda how, x, w: _free(how, x, w), "IQ2_XXS"),
    "sorted from above": (reference_iq1encode, "best_cut", lambda tried, n: _last_cut(list(tried)[::-1], n), "IQ1_M"),
}
_folded: Any = reference_iqencode._folded
_best_cut: Any = reference_iq1encode.best_cut


def _free(how: reference_iqencode.SearchOptions, x: Floats, w: Floats) -> Any:
    magnitudes, signs = _folded(how._replace(even=False), x, w)
    return magnitudes, signs & 127


def _last_cut(tried: list[Any], parts: int) -> Any:
    return _best_cut(iter(tried), parts)


@mutation
@needs_native
@pytest.mark.parametrize("rule", RULES)
def test_a_changed_rule_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, change, name = RULES[rule]
    monkeypatch.setattr(module, function, change)
    assert seen(name)


@pytest.mark.costly
def test_the_codebooks_have_zero_magnitudes_first() -> None:
    """A part of nothing is written as zeros, which must be a point of every codebook."""
    for name in lattice_neighbours.DISTANCES:
        assert not lattice_neighbours.neighbours(name).ranks[0].any()
    assert set(codecs.WEIGHTED) >= set(NAMES)
    assert reference_iq.IQ1_DELTA == 0.125


# The codebooks: sets of points of a lattice, compared with those of llama.cpp's own Python package.


@pytest.mark.parametrize("name", LATTICES)
def test_sizes(name: str) -> None:
    lattice, points = LATTICES[name], grid(name)
    assert points.shape == (lattice.size, lattice.dimensions)
    assert set(np.unique(points).tolist()) == set(lattice.values)
    assert len({p.tobytes() for p in points}) == lattice.size


@pytest.mark.oracle
@pytest.mark.parametrize("name", LATTICES)
def test_points_equal_llama_cpp(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    theirs = getattr(quants, name)
    theirs.init_grid()
    np.testing.assert_array_equal(grid(name), theirs.grid.reshape(grid(name).shape))
