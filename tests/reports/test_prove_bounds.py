"""What a type may change (reports/prove/bounds.toml): measured again for every type that is encoded here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, F32, TABLE, DType, Kind
from weighbridge.base.spec import Spec
from weighbridge.reports.prove import predictions
from weighbridge.reports.prove.bounds import MARGIN, cost, largest_error, run_bounds, table, type_of
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import CastReport, Const, Encode, Node, QuantizedTensor, cast

ROWS, COLUMNS = 64, 1024
Values = NDArray[np.float32]


def distributions() -> Iterator[NDArray[np.floating]]:
    random, shape = np.random.default_rng(1), (ROWS, COLUMNS)
    yield random.normal(size=shape)
    yield random.laplace(size=shape)
    yield random.standard_t(4, size=shape)
    yield random.uniform(-1, 1, size=shape)
    yield random.normal(size=shape) + 1
    yield random.normal(size=shape) * np.exp(random.normal(size=(ROWS, 1)))
    yield random.normal(size=shape) * np.where(random.random(shape) < 0.01, 8, 1)


SAMPLES = [(0.05 * values).astype(np.float32) for values in distributions()]


def encoded(values: Values, dtype: DType) -> Node:
    node = Const(Spec(values.shape, F32), values.tobytes())
    if dtype.kind is Kind.FLOAT:
        return cast(node, dtype)
    weights = np.ones((1, COLUMNS), np.float32) if dtype.importance == "required" else None
    return Encode(node.spec.with_dtype(dtype), node, CastReport("x"), weights)


def nmse(values: Values, tensor: Node | QuantizedTensor) -> float:
    found = cast(tensor, F32).read(0, ROWS).view(np.float32).reshape(values.shape)
    return float(np.square(values.astype(np.float64) - found).sum() / np.square(values.astype(np.float64)).sum())


@pytest.mark.parametrize("name", table().nmse)
def test_a_type_costs_what_the_table_says(name: str) -> None:
    worst = max(nmse(values, encoded(values, BY_NAME[name])) for values in SAMPLES)
    assert 0.8 * cost(name) < worst <= cost(name)


def test_every_type_that_is_encoded_has_a_row() -> None:
    encodes = {t.name for t in TABLE if t.kind is Kind.BLOCK and kernels.encodes(t)}
    assert encodes <= table().nmse.keys()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packed_weights_cost_no_more_than_the_table_says(bits: int) -> None:
    from weighbridge.packings.read.affine import Affine
    from weighbridge.packings.write.packers import AffineOf

    for values in SAMPLES:
        node = Const(Spec(values.shape, F32), values.tobytes())
        parts = nodes.pack(node, AffineOf(bits, 64, F32, "x"))
        packed = QuantizedTensor(node.spec, Affine(bits, 64, F32), parts)
        assert nmse(values, packed) <= cost(type_of(packed))


@pytest.mark.parametrize("name", [n for n in table().nmse if cost(n) < 0.3])
def test_rows_in_another_order_are_beyond_every_useful_type(name: str) -> None:
    values = SAMPLES[0]
    assert nmse(values, encoded(np.roll(values, 1, axis=0), BY_NAME[name])) > largest_error("F32", name)


def test_a_type_that_holds_the_source_may_change_nothing() -> None:
    assert largest_error("BF16", "F32") == largest_error("Q4_0", "Q4_0") < 1e-9
    assert largest_error("F32", "Q8_0") == MARGIN * cost("Q8_0")


def test_a_few_coarse_tensors_set_the_bound_of_a_run() -> None:
    fine = run_bounds([("Q8_0", 990), ("Q2_K", 10)])
    coarse = run_bounds([("Q8_0", 900), ("Q2_K", 100)])
    assert fine.divergence < 0.04 < coarse.divergence
    assert fine.agreement > coarse.agreement


def test_divergence_is_that_of_the_definition() -> None:
    a, b = (np.random.default_rng(seed).normal(size=(40, 7)).astype(np.float32) for seed in (1, 2))
    p, q = (np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(-1, keepdims=True) for x in (a, b))
    found = predictions.compare_logits(a, np.concatenate([b, b[:, :1] + 99], axis=1)[:, :7])
    np.testing.assert_allclose(found.divergence, (p * np.log(p / q)).sum(-1), rtol=1e-6)
    assert found.agreement == np.mean(a.argmax(-1) == b.argmax(-1))
    rows = np.arange(len(a))
    np.testing.assert_allclose(found.gap, np.log(p[rows, p.argmax(-1)] / p[rows, q.argmax(-1)]), atol=1e-6)
    assert (found.gap[a.argmax(-1) != b.argmax(-1)] > 0).all()
    assert predictions.surprise(a, [0, *range(7), *[3] * 32]) > 0


def test_numbers_that_are_none_are_as_far_as_can_be() -> None:
    a = np.zeros((2, 3), np.float32)
    broken = np.array([[0, np.nan, 0], [0, np.inf, 0]], np.float32)
    assert np.isinf(predictions.compare_logits(a, broken).divergence).all()
    assert predictions.cosine_distance(a[0], a[0]) == 1.0
    assert predictions.cosine_distance(np.ones(3, np.float32), 2 * np.ones(3, np.float32)) < 1e-9
