"""Counters by bit pattern: the native kernels' are the reference's, and the statistics that follow are numpy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.kernels.data import LEVELS, random_bits, running
from tests.kernels.test_blocks import stored

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.native import native
from weighbridge.tensors import kernels
from weighbridge.tensors.counting import ValueCounts
from weighbridge.tensors.reference import patterns
from weighbridge.tensors.reference import registry as codecs

PLAIN = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32}


@pytest.mark.parametrize("name", codecs.DECODE)
def test_levels_count_as_the_reference(name: str) -> None:
    data = stored(BY_NAME[name], 67)
    with np.errstate(all="ignore"):
        want = patterns.count_patterns(name, data)
    for level in LEVELS:
        got = np.zeros(patterns.PATTERNS, np.uint64)
        with running(level):
            kernels.count_patterns(BY_NAME[name], data, got)
        np.testing.assert_array_equal(got, want, err_msg=level)
    assert int((want >> np.uint64(patterns.COUNT_SHIFT)).sum()) == data.size // BY_NAME[name].size * BY_NAME[name].block


def values_of(name: str, kind: str) -> Any:
    rng = np.random.default_rng(4)
    x: Any = random_bits(50_000, 2) if kind == "bits" else (rng.standard_t(3, 50_000) * 0.02).astype(np.float32)
    with np.errstate(all="ignore"):
        out = x.astype(PLAIN[name])
    out[:40:2], out[1:40:4] = 0.0, -0.0
    return out


def widened(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


@pytest.mark.parametrize("kind", ["bits", "weights"])
@pytest.mark.parametrize("name", PLAIN)
def test_statistics_are_numpys(name: str, kind: str) -> None:
    x = values_of(name, kind)
    counts = ValueCounts(BY_NAME[name])
    for part in np.array_split(x, 3):
        counts.add(part.view(np.uint8))
    wide = widened(x)
    finite = wide[np.isfinite(wide)]
    assert counts.total == x.size
    assert (counts.nan, counts.inf) == (np.isnan(wide).sum(), np.isinf(wide).sum())
    assert (counts.zeros, counts.negative_zeros) == ((wide == 0).sum(), ((wide == 0) & np.signbit(wide)).sum())
    smallest = float(ml_dtypes.finfo(PLAIN[name]).smallest_normal)
    assert counts.subnormals == ((finite != 0) & (np.abs(finite) < smallest)).sum()
    close = 1e-12 if counts.exact else 1e-5
    found = counts.moments()
    scale = np.abs(finite).mean()
    assert found.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-12 * scale)
    assert found.std == pytest.approx(finite.std(), rel=close)
    assert found.rms == pytest.approx(np.sqrt((finite**2).mean()), rel=close)
    centred = (finite - finite.mean()) / finite.std()
    assert found.kurtosis == pytest.approx((centred**4).mean(), rel=4 * close)


@pytest.mark.parametrize("kind", ["bits", "weights"])
@pytest.mark.parametrize("name", PLAIN)
def test_quantiles_and_bins_are_numpys(name: str, kind: str) -> None:
    x = values_of(name, kind)
    counts = ValueCounts(BY_NAME[name])
    counts.add(x.view(np.uint8))
    finite = widened(x)[np.isfinite(widened(x))]
    shares = [0, 0.001, 0.25, 0.5, 0.99, 1]
    want = np.quantile(finite, shares, method="inverted_cdf")
    rtol, atol = (0, 0) if counts.exact else (2**-8, 2**-132)
    np.testing.assert_allclose(counts.quantiles(shares), want, rtol, atol)
    edges = np.linspace(finite.min(), finite.max(), 33)
    got = counts.histogram(edges)
    assert got.sum() == finite.size
    if counts.exact:
        np.testing.assert_array_equal(got, np.histogram(finite, edges)[0])
        exponents, per = np.unique(np.frexp(finite[finite != 0])[1] - 1, return_counts=True)
        assert counts.magnitudes() == dict(zip(exponents.tolist(), per.tolist(), strict=True))


def test_nothing_and_only_nan() -> None:
    counts = ValueCounts(BY_NAME["F32"])
    assert (counts.total, counts.moments().mean, counts.extremes, counts.quantiles([0.5])) == (0, None, None, ())
    counts.add(np.array([np.nan, np.inf, -np.inf], np.float32).view(np.uint8))
    assert (counts.nan, counts.inf, counts.extremes, counts.moments().std) == (1, 2, None, None)


def test_the_smallest_floats_are_no_zeros() -> None:
    counts = ValueCounts(BY_NAME["F32"])
    bits = np.array([0, 1, 0xFFFF, 0x10000, 0x80000001, 0x7F800001, 0xFFFFFFFF, 0x80000000], np.uint32)
    counts.add(bits.view(np.uint8))
    assert (counts.zeros, counts.nan, counts.inf, counts.subnormals) == (2, 2, 0, 4)
    assert counts.extremes == (-(2.0**-149), 2.0**-133)


def test_sizes_are_checked() -> None:
    counters = np.zeros(patterns.PATTERNS, np.uint64)
    with pytest.raises(UsageError):
        kernels.count_patterns(BY_NAME["F16"], np.zeros(3, np.uint8), counters)
    with pytest.raises(UsageError):
        kernels.count_patterns(BY_NAME["F16"], np.zeros(4, np.uint8), counters[1:])
    with pytest.raises(UsageError):
        kernels.count_patterns(BY_NAME["F16"], np.zeros(2 * patterns.MOST + 2, np.uint8), counters)
    with pytest.raises(UnsupportedError):
        kernels.count_patterns(BY_NAME["I64"], np.zeros(8, np.uint8), counters)
    if native:
        for src, out in ((bytes(3), counters), (bytes(4), counters[1:]), (bytes(2 * patterns.MOST + 2), counters)):
            with pytest.raises(ValueError):
                native.count_patterns("F16", src, out)
