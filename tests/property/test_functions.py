"""Functions of elements: against Python's own exact arithmetic, their inverses, and as nodes that stream."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.examples import examples

from weighbridge.base.dtypes import BF16, F16, F32, Q8_0, DType
from weighbridge.base.errors import FormatError
from weighbridge.tensors import functions, nodes
from weighbridge.tensors.functions import exp, inverse_exp, log, log_expm1, log_inverse, log_neg, neg_exp, softplus
from weighbridge.tensors.layouts import NegatedHalves
from weighbridge.tensors.nodes import cast, const
from weighbridge.tensors.nodes.row_orders import swapped_order

FLOATS = st.floats(-80, 80, width=32)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _distance(x: float, a: float) -> Decimal:
    """How far -a is from exp(x), in units of exp(x)."""
    with localcontext(prec=60):
        exact = Decimal(x).exp()
        return abs(Decimal(-a) - exact) / exact


@given(FLOATS)
def test_neg_exp_is_the_nearest_f32(x: float) -> None:
    (a,) = neg_exp(f32(x))
    for neighbour in (np.nextafter(a, np.float32(0)), np.nextafter(a, np.float32(-np.inf))):
        assert _distance(x, float(a)) <= _distance(x, float(neighbour)) * (1 + Decimal("1e-6"))


def _rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """The values cut to so many bits of mantissa."""
    mask = np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)
    return (x.view(np.uint32) & mask).view(np.float32)


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_what_was_bf16_or_f16_or_is_large_comes_back_bit_by_bit(values: list[float]) -> None:
    x = f32(*values)
    for bits, least in ((8, 2.0**-16), (11, 2.0**-13), (24, 1.0)):
        kept = _rounded(x, bits)
        kept = kept[(np.abs(kept) >= least) | (kept == 0)]
        assert np.array_equal(log_neg(neg_exp(kept)), kept), bits
    back = log_neg(neg_exp(x))
    assert np.abs(back - x).max() <= 2.0**-23
    assert np.array_equal(neg_exp(back), neg_exp(x))


@given(st.floats(-(2.0**100), -(2.0**-100), width=32))
def test_log_neg_of_any_other_number_is_the_nearest(a: float) -> None:
    """Not every number is a negative exponential: the logarithm of one that isn't means a neighbour within its step."""
    (x,) = log_neg(f32(a))
    back = neg_exp(f32(float(x)))[0]
    step = max(np.spacing(abs(x)), np.float32(2.0**-24))  # of the logarithm, which is that much of the number
    assert abs(float(back) - a) <= abs(a) * float(step)


@given(st.integers(0, 2**32), st.sampled_from([F32, F16, BF16]), st.data())
@examples(60)
def test_an_applied_node_streams(seed: int, dtype, data: st.DataObject) -> None:
    """Any run of rows equals those rows of the whole, whatever the pieces are; the source may be of any float type."""
    rng = np.random.default_rng(seed)
    values = _rounded(rng.standard_normal((7, 5), np.float32), 8)
    raw = {F32: values, F16: values.astype(np.float16), BF16: (values.view(np.uint32) >> 16).astype(np.uint16)}[dtype]
    node = nodes.apply_function(nodes.const(raw, dtype), "neg_exp")
    want = neg_exp((raw if dtype is not BF16 else values).astype(np.float32))
    assert node.spec.dtype is F32
    lo = data.draw(st.integers(0, 7))
    hi = data.draw(st.integers(lo, 7))
    assert node.read(lo, hi).tobytes() == want[lo:hi].tobytes()


@given(st.integers(0, 2**32), st.sampled_from([F32, F16]), st.floats(-8, 8).filter(lambda x: abs(x) > 1e-30), st.data())
@examples(60)
def test_a_scaled_node_has_torch_s_bits_and_streams(seed: int, dtype, by: float, data: st.DataObject) -> None:
    import torch

    kind = np.float16 if dtype is F16 else np.float32
    values = (np.random.default_rng(seed).standard_normal((7, 5)) * 2.0 ** data.draw(st.integers(-20, 8))).astype(kind)
    lo = data.draw(st.integers(0, 7))
    hi = data.draw(st.integers(lo, 7))
    for over, want in (
        (False, torch.from_numpy(values) * by),
        (True, torch.from_numpy(values).float() / np.float32(by)),
    ):
        expected = want.to(torch.from_numpy(values).dtype).numpy()
        node = nodes.scaled(nodes.const(values, dtype), by, over=over)
        assert node.spec.dtype is dtype
        if np.isfinite(expected).all():
            assert node.read(lo, hi).tobytes() == expected[lo:hi].tobytes()


def test_a_scaled_node_of_other_types_is_f32_and_undoes_itself() -> None:
    values = f32(1.5, -2.0, 3.0).reshape(1, 3)
    halves = nodes.const((values.view(np.uint32) >> 16).astype(np.uint16), BF16)
    there = nodes.scaled(halves, 0.3)
    assert there.spec.dtype is F32
    assert there.read_all().tobytes() == (values * np.float32(0.3)).tobytes()
    node = nodes.const(values, F32)
    assert nodes.scaled(nodes.scaled(node, 0.3), 0.3, over=True) is node
    assert nodes.scaled(nodes.scaled(node, 0.3, over=True), 0.3) is node
    assert nodes.scaled(node, 1.0) is node
    assert nodes.scaled(nodes.scaled(node, 0.3), 0.3) is not node
    quantized = nodes.cast(nodes.const(np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 32), F32), Q8_0)
    want = nodes.decode(quantized).read_all().view(np.float32) * np.float32(0.3)
    assert nodes.scaled(quantized, 0.3).read_all().tobytes() == want.tobytes()


@given(st.integers(0, 2**32), st.sampled_from([F32, F16, BF16, Q8_0]), st.sampled_from([1, 5, 5000]), st.data())
@examples(60)
def test_rows_of_length_1_are_torch_s_and_stream(seed: int, dtype, width: int, data: st.DataObject) -> None:
    import torch

    rng = np.random.default_rng(seed)
    scale = np.float32(10.0 ** rng.integers(-3, 4))
    values = rng.standard_normal((7, 32 if dtype is Q8_0 else width), np.float32) * scale
    values[rng.integers(7)] = 0
    source = nodes.cast(nodes.const(values, F32), dtype)
    node, exact = (
        nodes.normalize_rows(source),
        nodes.cast(source, F32).read_all().view(np.float32).reshape(values.shape),
    )
    lo = data.draw(st.integers(0, 7))
    hi = data.draw(st.integers(lo, 7))
    found = node.read(lo, hi).view(np.float32).reshape(hi - lo, values.shape[1])
    want = torch.nn.functional.normalize(torch.from_numpy(exact[lo:hi]).double()).numpy()
    assert node.spec.dtype is F32
    assert np.abs(found - want).max(initial=0) <= 2.0**-23


@pytest.mark.parametrize(("dtype", "kind", "by", "over"), [(F32, np.float32, 8.0, False), (F16, np.float16, 8.0, False),
                                                           (F32, np.float32, 0.125, True)])  # fmt: skip
def test_a_product_that_is_too_large_is_told_with_its_row(dtype, kind, by: float, over: bool) -> None:
    values = np.ones((6, 2), kind)
    values[4, 1] = np.finfo(kind).max
    node = nodes.scaled(nodes.const(values, dtype), by, over=over)
    with pytest.raises(FormatError, match=r"in rows 0 to 5 an element .* is too large"):
        node.read_all()
    assert node.read(0, 4).size == 8 * values.itemsize
    values[4, 1] = np.inf  # which it was before
    assert np.isinf(nodes.scaled(nodes.const(values, dtype), by, over=over).read_all().view(kind)[9])


def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.linspace(-3, 3, 60, dtype=np.float32).reshape(12, 5)
    for piece in (1, 7, 4096):
        monkeypatch.setattr(functions, "PIECE", piece)
        assert (
            nodes.apply_function(nodes.const(values, F32), "neg_exp").read_all().tobytes() == neg_exp(values).tobytes()
        )
        want = (values * np.float32(0.3)).tobytes()
        assert nodes.scaled(nodes.const(values, F32), 0.3).read_all().tobytes() == want


def test_a_function_and_its_inverse_are_none() -> None:
    node = nodes.const(f32(1, 2), F32)
    for name, (_, inverse) in functions.FUNCTIONS.items():
        assert nodes.apply_function(nodes.apply_function(node, name), inverse) is node


def test_scratch_bounds_what_is_allocated() -> None:
    kinds = {3: np.float32, 5000: np.float32, 5001: np.float16}
    for rows, scaled in ((3, False), (3, True), (5000, False), (5000, True), (5001, True)):
        source = nodes.const(-np.ones((rows, 8), kinds[rows]), F16 if rows == 5001 else F32)
        node = nodes.scaled(source, 0.3) if scaled else nodes.apply_function(source, "log_neg")
        out = np.empty(node.spec.nbytes, np.uint8)
        with traced_memory() as memory:
            node.read(0, rows, out)
        assert memory.peak <= node.scratch(0, rows) + 64_000


@pytest.mark.parametrize(("function", "bad"), [("neg_exp", 100.0), ("log_neg", 0.0), ("log_neg", 2.0),
                                               ("log_neg", -np.inf), ("log_neg", np.nan)])  # fmt: skip
def test_an_element_without_a_value_is_told_with_its_row(function: str, bad: float) -> None:
    values = -np.ones((6, 2), np.float32)
    values[4, 1] = bad
    with pytest.raises(FormatError, match=rf"rows 0 to 5 an element has no {function}"):
        nodes.apply_function(nodes.const(values, F32), function).read_all()


def test_softplus_and_its_inverse() -> None:
    """As `numpy.logaddexp` in F64; back within 2^-22 of the softplus or of the number."""
    x = np.concatenate([np.linspace(-14, 30, 4001), [0.0, -1e-6, 88.0, 1e6]]).astype(np.float32)
    y = softplus(x)
    assert np.array_equal(y, np.logaddexp(x.astype(np.float64), 0).astype(np.float32))
    assert (np.abs(log_expm1(y) - x) <= 2.0**-22 * np.maximum(np.abs(x), 1)).all()
    for wrong in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(FloatingPointError):
            log_expm1(np.array([wrong], np.float32))


def test_a_reciprocal_of_an_exponential_and_its_inverse() -> None:
    """As conversion/qwen3tts.py `snake_fold` computes it, in F64; back within 2^-22 of the number."""
    x = np.linspace(-8, 30, 4001).astype(np.float32)
    y = inverse_exp(x)
    assert np.array_equal(y, (1 / (np.exp(x.astype(np.float64)) + 1e-9)).astype(np.float32))
    assert (np.abs(log_inverse(y) - x) <= 2.0**-22 * np.maximum(np.abs(x), 1)).all()
    for wrong in (0.0, -1.0, 2e9, np.inf, np.nan):
        with pytest.raises(FloatingPointError):
            log_inverse(np.array([wrong], np.float32))
    with pytest.raises(FloatingPointError):
        inverse_exp(np.array([1e4], np.float32))


def test_swapped_runs_are_those_of_the_reference() -> None:
    """conversion/minimax.py `_permute_vit_qk`: [Ta Ha Wa | Tb Hb Wb | rest] to [Ta Tb | Ha Hb | Wa Wb | rest]."""
    half, run = 39, 13
    head = [n for axis in range(3) for start in (0, half) for n in range(start + axis * run, start + (axis + 1) * run)]
    expected = [*head, 78, 79]
    assert swapped_order(160, 2, 2, 3).tolist() == [*expected, *(80 + n for n in expected)]
    with pytest.raises(FormatError):
        swapped_order(10, 2, 2, 3)


def test_exp_is_neg_exp_without_its_sign() -> None:
    x = np.linspace(-14, 30, 501).astype(np.float32)
    assert np.array_equal(exp(x), -neg_exp(x))
    assert np.array_equal(log(exp(x)), log_neg(neg_exp(x)))


@pytest.mark.parametrize("kind", ["<f4", "<f2"])
def test_a_matrix_is_rounded_as_bitnet_s_class_does(kind: str) -> None:
    """conversion/bitnet.py `weight_quant`, within the last bit of torch's mean; `spread` rounds to the same again."""
    import torch

    values = np.random.default_rng(1).standard_normal((96, 80)).astype(kind)
    source = nodes.const(values, F32 if kind == "<f4" else F16)
    rounded = nodes.round_ternary(source)
    found = rounded.read_all().view(kind).reshape(values.shape)
    plain = torch.from_numpy(values).float()
    inverse = 1 / plain.abs().mean().clamp(min=1e-5)
    wanted = ((plain * inverse).round().clamp(-1, 1) / inverse).numpy()
    step = 2.0**-22 if kind == "<f4" else 2.0**-10
    assert np.allclose(found.astype(np.float32), wanted, rtol=step, atol=0)
    assert len(np.unique(found)) == 3
    again = nodes.round_ternary(nodes.spread_ternary(rounded)).read_all().view(kind).reshape(values.shape)
    assert np.allclose(again.astype(np.float32), found.astype(np.float32), rtol=2 * step, atol=0)
    for node in (rounded, nodes.spread_ternary(rounded)):
        with traced_memory() as memory:
            node.read(0, 96, np.empty(node.spec.nbytes, np.uint8))
        assert memory.peak <= node.scratch(0, 96) + 128_000
        parts = [node.read(lo, lo + 8) for lo in range(0, 96, 8)]
        assert np.concatenate(parts).tobytes() == node.read_all().tobytes()


def test_zeros_are_rounded_to_zeros() -> None:
    zeros = nodes.const(np.zeros((4, 8), np.float32), F32)
    for node in (nodes.round_ternary(zeros), nodes.spread_ternary(zeros)):
        assert not node.read_all().any()


def test_a_vector_minus_its_mean() -> None:
    values = np.random.default_rng(2).standard_normal(37).astype(np.float32)
    found = nodes.centered(nodes.const(values, F32)).read_all().view(np.float32)
    assert np.array_equal(found, values - values.mean(dtype=np.float64).astype(np.float32))


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_the_second_half_of_each_head_changes_its_sign(dtype: DType) -> None:
    values = np.arange(1, 25, dtype=np.float32).reshape(12, 2)
    node = cast(const(values, F32), dtype)
    turned = NegatedHalves(3).apply(node)
    assert turned.spec == node.spec
    signs = np.array([1, 1, -1, -1] * 3, dtype=np.float32)[:, None]
    assert np.array_equal(cast(turned, F32).read_all().view("<f4").reshape(12, 2), values * signs)
    assert NegatedHalves(3).undo(turned).read_all().tobytes() == node.read_all().tobytes()
    with pytest.raises(FormatError, match="heads don't divide the rows"):
        NegatedHalves(5).apply(node)
