"""GPTQ's and AWQ's steps on a matrix: against the formula as published, and laws that hold for any inputs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from weighbridge.base.dtypes import BF16, F16, F32, DType
from weighbridge.packings.write import awq, gptq
from weighbridge.packings.write.awq import Consumer
from weighbridge.packings.write.gptq import ActOrder, Gptq, RoundedMatrix, inverse_factor, order_of
from weighbridge.packings.write.packers import rounded
from weighbridge.packings.write.rounding import RoundToIntQuant
from weighbridge.tensors import kernels

ORDERS: tuple[ActOrder, ...] = ("none", "static", "groups")
COLUMNS = 192


def _rule(name: str = "gptq", bits: int = 4, group: int = 32, symmetric: bool = True, dtype: DType = F32) -> Any:
    return RoundToIntQuant(name, bits, group, symmetric, dtype, F16 if name == "gptq" else dtype)


def _weights(rows: int = 24, dtype: DType = F32, seed: int = 1) -> Any:
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, COLUMNS)).astype(np.float32)
    values[:, ::17] *= 8
    return rounded(dtype, values)


def _hessian(rows: int = 600, seed: int = 2) -> Any:
    """Of inputs that depend on each other, and differ in size."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 40)) @ random.normal(size=(40, COLUMNS)) + 0.3 * random.normal(size=(rows, COLUMNS))
    x *= np.exp(random.normal(size=COLUMNS))
    return x.T @ x


def _values(rule: Any, made: RoundedMatrix) -> Any:
    scales = kernels.widened(rule.scale_dtype, made.scales).reshape(made.zeros.shape)
    return (made.codes - np.repeat(made.zeros.astype(np.float32), rule.group, 1)) * np.repeat(scales, rule.group, 1)


RULES = [
    ("gptq", 4, True, F32), ("gptq", 3, False, F32), ("compressed-tensors", 4, True, BF16),
    ("compressed-tensors", 4, False, F16), ("compressed-tensors", 8, True, F32), ("compressed-tensors", 2, False, BF16),
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", RULES)
def test_independent_inputs_round_to_nearest(case: tuple[str, int, bool, DType], order: ActOrder) -> None:
    name, bits, symmetric, dtype = case
    rule, weights = _rule(name, bits, 32, symmetric, dtype), _weights(dtype=dtype)
    made = Gptq(rule, order).round(weights, np.diag(np.random.default_rng(3).uniform(0.1, 9, COLUMNS)))
    specs = {part: np.empty(spec.nbytes, np.uint8) for part, spec in rule.specs(_spec(weights)).items()}
    rule.make(weights.reshape(-1).view(np.uint8), specs)
    assert np.array_equal(made.codes.reshape(-1), specs["codes"])
    assert np.array_equal(made.scales, specs["scales"])
    if not symmetric:
        assert np.array_equal(made.zeros.reshape(-1), specs["zeros"])
    assert made.error == made.nearest


def _spec(weights: Any) -> Any:
    from weighbridge.base.spec import Spec

    return Spec(weights.shape, F32)


# ------------------------------------------------------------------------------------------------ the formula


def _published(weights: Any, hessian: Any, rule: Any, damp: float, order: Any = None) -> tuple[Any, Any]:
    """The algorithm as its authors' code has it, column by column in F64, with torch: codes, and scales of groups."""
    torch = pytest.importorskip("torch")
    order = np.arange(len(hessian)) if order is None else order
    w = torch.from_numpy(weights.astype(np.float64))[:, order.copy()]
    h = torch.from_numpy(hessian)[order.copy()][:, order.copy()]
    h += damp * torch.diag(h).mean() * torch.eye(len(h))
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    codes, scales, top = torch.zeros_like(w), {}, 2**rule.bits - 1
    is_static = not np.array_equal(order, np.arange(len(order)))
    for i, column in enumerate(order):
        group = column // rule.group
        if group not in scales:
            start = group * rule.group
            part = (
                torch.from_numpy(weights)[:, start : start + rule.group]
                if is_static
                else w[:, start : start + rule.group]
            )
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            if rule.symmetric:
                high = torch.maximum(-low, high)
                low = -high
            exact = (high.float() - low.float()) / top  # in F32 as there: the largest of a symmetric group is a tie
            zero = torch.full_like(exact, (top + 1) / 2) if rule.symmetric else torch.round(-low.float() / exact)
            scales[group] = (exact.half().double(), exact, zero)
        scale, exact, zero = scales[group]
        codes[:, i] = (torch.round(w[:, i].float() / exact) + zero).clamp(0, top)
        error = (w[:, i] - (codes[:, i] - zero) * scale) / inverse[i, i]
        w[:, i:] -= error[:, None] * inverse[i, i:]
    out = np.empty(weights.shape, np.uint8)
    out[:, order] = codes.numpy()
    return out, np.stack([scales[g][0].numpy() for g in sorted(scales)], 1)


@pytest.mark.parametrize("group", [16, 32, 96, COLUMNS])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("order", ["none", "static"])
def test_codes_are_those_of_the_published_algorithm(
    monkeypatch: pytest.MonkeyPatch, order: ActOrder, symmetric: bool, group: int
) -> None:
    rule, weights, hessian = _rule(group=group, symmetric=symmetric), _weights(), _hessian()
    columns = order_of(order, np.diag(hessian), group).columns if order == "static" else None
    codes, scales = _published(weights, hessian, rule, 0.01, columns)
    for block in (1, 48, 128):
        monkeypatch.setattr(gptq, "_BLOCK", max(block, group if block > 1 else 1))
        gp = Gptq(rule, order)
        factor, damp = gp._factor(hessian, order_of(order, np.diag(hessian), group).columns)
        made = gp._columns(weights, factor, order_of(order, np.diag(hessian), group))
        assert damp == 0.01
        assert (made.codes == codes).mean() > 0.999  # a tie may fall to the other side in F32
        assert np.abs(rounded(F16, made.scales) / scales - 1).max() < 2e-3


def test_the_factor() -> None:
    for size in (1, 5, 64, 65, 200, 321):
        x = np.random.default_rng(size).normal(size=(2 * size, size))
        h = x.T @ x + np.eye(size)
        upper = inverse_factor(h[::-1, ::-1].copy())[::-1, ::-1]
        assert np.abs(upper.T @ upper @ h - np.eye(size)).max() < 1e-9
        assert not np.tril(upper, -1).any()
    with pytest.raises(np.linalg.LinAlgError):
        inverse_factor(-np.eye(200))


# ------------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [1, 20, 100, 5000])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_no_row_has_a_larger_error_than_rounded_to_nearest(bits: int, rows: int, order: ActOrder) -> None:
    rule, weights, hessian = _rule(bits=bits), _weights(), _hessian(rows)
    made = Gptq(rule, order).round(weights, hessian)
    plain = Gptq(rule).nearest(weights)
    before, after = (Gptq.errors(weights - _values(rule, each), hessian) for each in (plain, made))
    assert (after <= before * (1 + 1e-6)).all()
    total = Gptq.errors(weights, hessian).sum()
    assert made.error == pytest.approx(after.sum() / total, rel=1e-5)
    assert made.nearest == pytest.approx(before.sum() / total, rel=1e-5)
    if rows > 20:
        assert made.error < 0.8 * made.nearest


def test_rows_that_the_step_makes_worse_are_rounded_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, weights, hessian = _rule(), _weights(), _hessian()
    monkeypatch.setattr(Gptq, "_factor", lambda *_: (np.triu(np.full((COLUMNS, COLUMNS), 0.9, np.float32)), 0.01))
    made = Gptq(rule).round(weights, hessian)
    assert made.error == pytest.approx(made.nearest)


def test_inputs_that_are_always_zero() -> None:
    hessian = _hessian()
    hessian[:, 7] = hessian[7] = 0
    made = Gptq(_rule()).round(_weights(), hessian)
    assert 0 < made.error < made.nearest
    assert Gptq(_rule()).round(_weights(), np.zeros_like(hessian)).error == 0


def test_the_damping_is_raised_if_needed() -> None:
    hessian = _hessian()
    hessian -= 0.1 * np.diag(hessian).mean() * np.eye(COLUMNS)
    assert Gptq(_rule(), damp=0.001).round(_weights(), hessian).damp > 0.001
    with pytest.raises(np.linalg.LinAlgError):
        Gptq(_rule()).round(_weights(), np.full_like(hessian, np.nan))


@pytest.mark.parametrize("kind", ORDERS)
def test_orders_are_permutations(kind: ActOrder) -> None:
    importance = np.random.default_rng(5).uniform(size=COLUMNS)
    order = order_of(kind, importance, 32)
    assert sorted(order.columns) == list(range(COLUMNS))
    if kind == "groups":
        assert all(len({*order.columns[i : i + 32] // 32}) == 1 for i in range(0, COLUMNS, 32))
    if kind != "none":
        assert order.columns[0] == importance.argmax()


# ------------------------------------------------------------------------------------------------ AWQ


def test_factors_lessen_the_error_of_matrices_together() -> None:
    rule, hessian = _rule(symmetric=False), _hessian()
    both = [_weights(seed=n) for n in (1, 2)]
    magnitudes = np.sqrt(np.diag(hessian) / 600)
    factors = awq.column_factors([Consumer(partial(_weights, seed=n), rule) for n in (1, 2)], hessian, magnitudes)
    gp = Gptq(rule)
    plain, scaled = (
        sum(gp.errors(w - gp.decoded_nearest(w * f) / f, hessian).sum() for w in both)
        for f in (np.ones(COLUMNS, np.float32), factors)
    )
    assert scaled < 0.9 * plain
    assert factors.max() * factors.min() == pytest.approx(1, rel=1e-3)


def test_tied_columns_have_one_factor() -> None:
    tied = np.arange(COLUMNS) % 24
    hessian = _hessian()
    factors = awq.column_factors([Consumer(_weights, _rule())], hessian, np.sqrt(np.diag(hessian)), tied)
    assert all(len({*factors[tied == n]}) == 1 for n in range(24))
    assert len({*factors}) == 24


def test_factors_that_lessen_nothing_are_1() -> None:
    none = np.zeros((COLUMNS, COLUMNS))
    assert (awq.column_factors([Consumer(_weights, _rule())], none, np.zeros(COLUMNS)) == 1).all()
    assert (awq.column_factors([], _hessian(), np.ones(COLUMNS)) == 1).all()
