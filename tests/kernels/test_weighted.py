"""Encoding with an importance matrix: bytes equal to llama.cpp's own, for every type that takes one."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.kernels import ggml
from tests.kernels.data import LEVELS, SETS, Floats, numbers, running

from weighbridge.base.dtypes import BY_NAME, F32, TABLE, DType
from weighbridge.base.errors import UsageError
from weighbridge.base.spec import Spec
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import Const
from weighbridge.tensors.nodes.compute import Encode
from weighbridge.tensors.reference import registry as codecs

WEIGHTED = list(codecs.WEIGHTED)
STEADY = [name for name in WEIGHTED if name not in ggml.STOPPING]  # the others: test_codebooks.py
# An importance matrix is of means of squares: never negative. What a file could hold is another matter.
WEIGHTS = MappingProxyType(
    {
        "skewed": lambda rng, n: rng.gamma(0.3, size=n),
        "equal": lambda rng, n: np.ones(n),
        "none": lambda rng, n: np.zeros(n),
        "few": lambda rng, n: rng.gamma(0.3, size=n) * (rng.random(n) < 0.3),
        "huge": lambda rng, n: rng.random(n) * 3e38,
        "tiny": lambda rng, n: rng.random(n) * 1e-42,
        "negative": lambda rng, n: rng.normal(size=n),
    }
)
ROWS = (1, 3, 5, 20)  # blocks, of 256 or of the type's


def weights_of(kind: str, count: int) -> Floats:
    return np.ascontiguousarray(WEIGHTS[kind](np.random.default_rng(3), count)).astype(np.float32)


def encode(dtype: DType, x: Floats, weights: Floats) -> tuple[np.ndarray, kernels.CastCounts]:
    out = np.full(x.size // dtype.block * dtype.size, 0xA5, np.uint8)
    return out, kernels.encode(dtype, x, out, weights)


def without_nan(kind: str, count: int) -> Floats:
    """A row with a NaN is refused before it comes here; its scale would be a NaN of either sign."""
    x = numbers(kind, count)
    x[np.isnan(x)] = 0
    return x


@pytest.mark.oracle
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", STEADY)
def test_encoding_equals_llama_cpp(name: str, kind: str) -> None:
    """Rows shorter and longer than there are lanes, and than there are rows."""
    dtype = BY_NAME[name]
    for blocks in ROWS:
        columns = blocks * dtype.block
        x = without_nan(kind, columns * (256 * 60 // columns))
        for how in WEIGHTS:
            weights = weights_of(how, columns)
            want = ggml.quantize(dtype, x, weights)
            for level in LEVELS:
                with running(level):
                    np.testing.assert_array_equal(encode(dtype, x, weights)[0], want, err_msg=f"{level} {how} {blocks}")


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", STEADY)
def test_levels_equal_the_reference(name: str, kind: str) -> None:
    dtype = BY_NAME[name]
    x, how = without_nan(kind, 768 * 9), list(WEIGHTS)[list(SETS).index(kind) % len(WEIGHTS)]
    weights = weights_of(how, 768)
    with running("reference"):
        want, lost = encode(dtype, x, weights)
    for level in LEVELS:
        with running(level):
            got, counts = encode(dtype, x, weights)
            np.testing.assert_array_equal(got, want, err_msg=f"{level} {how}")
            assert counts == lost


@examples(40)
@given(
    name=st.sampled_from(WEIGHTED), blocks=st.integers(1, 40), rows=st.integers(0, 40),
    level=st.sampled_from(LEVELS or ("reference",)), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_row_at_a_time_gives_the_same(name: str, blocks: int, rows: int, level: str, seed: int) -> None:
    """Rows don't depend on their neighbours in the lanes; odd addresses; nothing beyond the end is written."""
    dtype = BY_NAME[name]
    columns = blocks * dtype.block
    x, size = numbers("normal", columns * rows, seed), blocks * dtype.size
    weights = np.random.default_rng(seed).gamma(0.3, size=columns).astype(np.float32)
    with running(level):
        moved = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
        out = np.full(rows * size + 2, 0x5A, np.uint8)
        kernels.encode(dtype, moved, out[1:-1], weights)
        assert out[0] == out[-1] == 0x5A
        for row in range(rows):
            alone = encode(dtype, x[row * columns : (row + 1) * columns], weights)[0]
            np.testing.assert_array_equal(out[1 + row * size : 1 + (row + 1) * size], alone)


@pytest.mark.oracle
@pytest.mark.parametrize("name", [n for n in codecs.ENCODE if n in codecs.BLOCKS and n not in WEIGHTED])
def test_types_to_which_weights_mean_nothing(name: str) -> None:
    dtype = BY_NAME[name]
    x, weights = numbers("normal", dtype.block * 12), weights_of("skewed", dtype.block * 3)
    got, _ = encode(dtype, x, weights)
    np.testing.assert_array_equal(got, ggml.quantize(dtype, x, weights))
    np.testing.assert_array_equal(got, ggml.quantize(dtype, x))


@pytest.mark.oracle
def test_the_type_table_says_which_types_take_an_importance_matrix() -> None:
    """Required: as ggml_quantize_requires_imatrix. Used: where ggml's bytes depend on it."""
    for dtype in TABLE:
        if dtype.ggml is not None:
            assert (dtype.importance == "required") == ggml.requires_importance(dtype)
    for name in codecs.BLOCKS:
        assert (name in codecs.WEIGHTED) <= (BY_NAME[name].importance != "ignored")
        if name in codecs.ENCODE:
            assert (name in codecs.WEIGHTED) == (BY_NAME[name].importance == "used")


@pytest.mark.parametrize("name", [t.name for t in TABLE if t.importance == "required" and t.name in WEIGHTED])
def test_a_type_that_requires_one_is_refused_without(name: str) -> None:
    dtype = BY_NAME[name]
    assert kernels.encodes(dtype)
    with pytest.raises(UsageError, match="importance"):
        kernels.encode(dtype, np.zeros(dtype.block, np.float32), np.zeros(dtype.size, np.uint8))


@pytest.mark.parametrize("columns", [0, 16, 48, 96])
def test_weights_that_dont_fit_are_refused(columns: int, path: str) -> None:
    with pytest.raises(UsageError):
        encode(BY_NAME["Q4_0"], np.zeros(64, np.float32), np.ones(columns, np.float32))


# ------------------------------------------------------------------ the node


def node(rows: int, columns: int, groups: int, dtype: DType = BY_NAME["Q4_K"]) -> tuple[Encode, Floats, Floats]:
    x = numbers("normal", rows * columns)
    spec, importance = Spec((groups, rows // groups, columns), F32), weights_of("skewed", groups * columns)
    importance = importance.reshape(groups, columns)
    return Encode(spec.with_dtype(dtype), Const(spec, x.tobytes()), importance=importance), x, importance


@pytest.mark.oracle
def test_each_expert_has_weights_of_its_own() -> None:
    """As llama_tensor_quantize_impl: row r has the weights of matrix r // rows of a matrix."""
    tensor, x, importance = node(12, 512, 3)
    each = x.size // 3
    want = [ggml.quantize(tensor.spec.dtype, x[g * each : (g + 1) * each], importance[g]) for g in range(3)]
    np.testing.assert_array_equal(tensor.read_all(), np.concatenate(want))


@examples(30)
@given(groups=st.sampled_from([1, 2, 3, 6]), cut=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_any_range_of_rows_can_be_read(groups: int, cut: tuple[int, int]) -> None:
    tensor, _, _ = node(12, 256, groups)
    lo, hi = sorted(cut)
    width = tensor.spec.row_bytes
    np.testing.assert_array_equal(tensor.read(lo, hi), tensor.read_all()[lo * width : hi * width])


@pytest.mark.parametrize("shape", [(5, 256), (2, 128), (0, 256)])
def test_an_importance_matrix_that_doesnt_fit_is_refused(shape: Any) -> None:
    tensor, _, _ = node(12, 256, 2)
    with pytest.raises(UsageError, match="importance"):
        Encode(tensor.spec, tensor.source, importance=np.ones(shape, np.float32))


def test_hand_checked() -> None:
    """All weight on the first element, 3.5: some scale makes it exact, whatever that does to the others."""
    x, weights = np.zeros(32, np.float32), np.zeros(32, np.float32)
    x[0], x[1], weights[0] = 3.5, -4.1, 1
    out, _ = encode(BY_NAME["Q4_0"], x, weights)
    back = np.zeros(32, np.float32)
    kernels.decode(BY_NAME["Q4_0"], out, back)
    assert back[0] == pytest.approx(3.5, rel=2**-10)
