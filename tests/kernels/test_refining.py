"""`--search best`: valid blocks whose error is never above the reference's, and mostly below."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.llama import make_folder

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME, DType, Kind
from weighbridge.tensors import kernels
from weighbridge.tensors.refining import error_weights, refine, refines

TYPES = [
    t for t in BY_NAME.values()
    if t.kind is Kind.BLOCK and kernels.encodes(t) and kernels.decodes(t) and refines(t)
]  # fmt: skip
OPTIMAL = {("Q1_0", False)}  # one bit: the scale is the mean of the magnitudes
#: Types whose scales are no F16 of their own.
FIXED = {"MXFP4", "NVFP4", "IQ1_M", "Q8_K"}


def _encoded(dtype: DType, values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    out = np.empty(values.size // dtype.block * dtype.size, np.uint8)
    kernels.encode(dtype, values.reshape(-1), out, weights)
    return out


def _errors(dtype: DType, packed: np.ndarray, values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Of each block."""
    decoded = np.empty(values.size, np.float32)
    kernels.decode(dtype, packed, decoded)
    errors = (decoded.reshape(-1, dtype.block).astype(np.float64) - values.reshape(-1, dtype.block)) ** 2
    return (error_weights(values, dtype.block, weights) * errors).sum(-1)


def test_every_type_is_refined_or_has_no_such_scale() -> None:
    written = {t.name for t in BY_NAME.values() if t.kind is Kind.BLOCK and kernels.encodes(t)}
    assert written - {t.name for t in TYPES} <= FIXED


@pytest.mark.parametrize(
    ("dtype", "weighted"), [(t, w) for t in TYPES for w in (False, True) if w or t.importance != "required"],
    ids=lambda v: v.name if isinstance(v, DType) else "weighted" if v else "plain",
)  # fmt: skip
def test_the_error_falls(dtype: DType, weighted: bool) -> None:
    random = np.random.default_rng(7)
    values = (random.standard_t(4, (12, 768)) * 0.1).astype(np.float32)
    values[3], values[4, :300] = 0, 0
    weights = random.gamma(0.5, 1, 768).astype(np.float32) if weighted else None
    packed = _encoded(dtype, values, weights)
    before = _errors(dtype, packed, values, weights)
    refine(dtype, values, packed, weights)
    after = _errors(dtype, packed, values, weights)
    assert (after <= before * (1 + 1e-6) + 1e-12).all()
    assert after.sum() < 0.9995 * before.sum() or (dtype.name, weighted) in OPTIMAL
    assert not kernels.stats(dtype, packed).nan


def test_rows_are_independent() -> None:
    dtype, random = BY_NAME["Q4_K"], np.random.default_rng(1)
    values = random.standard_normal((700, 256)).astype(np.float32)
    weights = random.gamma(0.5, 1, 256).astype(np.float32)
    whole = _encoded(dtype, values, weights)
    parts = whole.copy()
    refine(dtype, values, whole, weights)
    for row in range(len(values)):
        refine(dtype, values[row : row + 1], parts[row * dtype.size : (row + 1) * dtype.size], weights)
    assert np.array_equal(whole, parts)


def test_exact_values_stay(tmp_path: Path) -> None:
    """Blocks without an error have nothing to gain."""
    for name in ("Q4_0", "Q8_0", "Q4_K"):
        dtype = BY_NAME[name]
        packed = _encoded(dtype, np.random.default_rng(2).standard_normal((4, 256)).astype(np.float32), None)
        values = np.empty(1024, np.float32)
        kernels.decode(dtype, packed, values)
        again = packed.copy()
        refine(dtype, values.reshape(4, 256), again, None)
        assert not _errors(dtype, again, values.reshape(4, 256), None).any()


def test_quantize_takes_it(tmp_path: Path) -> None:
    folder, errors = make_folder(tmp_path / "model"), []
    for search in ("ggml", "best"):
        out = tmp_path / f"{search}.gguf"
        wb.quantize(folder, out, "Q4_0", search=search, tokenizer=False)
        rows = wb.compare_quantized(folder, out, tokenizer=False).tensors
        errors.append(sum(row.nmse for row in rows))
    assert errors[1] != errors[0]
    assert errors[1] < errors[0] * 1.02
