"""GPTQ and AWQ: read by the formula, exact in ggml's blocks where there is room, refused where the parts don't fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.packings import makers
from tests.packings.stored import of_numpy, values
from tests.unpacked import unpack

from weighbridge.base.dtypes import F16, F32, Q4_0, Q8_0
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.packings import mlx_affine_bridge
from weighbridge.packings.ggml_blocks import Q5_0
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor

V2 = {"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}}
PLANAR = {"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_p"}}


def only(tensors: dict[str, Node], config: dict[str, Any] | None = None) -> QuantizedTensor:
    found = dict(unpack(tensors, config or {}))
    assert list(found) == ["m.weight"]
    node = found["m.weight"]
    assert isinstance(node, QuantizedTensor)
    return node


@pytest.mark.parametrize("order", [False, True], ids=["in turn", "act-order"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("stored_zero", "config"), [(1, {}), (0, V2)], ids=["v1", "v2"])
def test_gptq_reads_as_the_formula_says(bits: int, stored_zero: int, config: dict[str, Any], order: bool) -> None:
    made = makers.gptq(bits, stored_zero=stored_zero, order=order)
    np.testing.assert_array_equal(values(only(made.tensors, config)), made.values)


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_gptq_planes(bits: int) -> None:
    made = makers.gptq(bits, stored_zero=0)
    np.testing.assert_array_equal(values(only(made.tensors, PLANAR)), made.values)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("config", [{}, V2], ids=["labelled v1", "labelled v2"])
@pytest.mark.parametrize("stored_zero", [0, 1])
def test_a_symmetric_gptq_is_read_right_whatever_its_label_says(
    bits: int, config: dict[str, Any], stored_zero: int
) -> None:
    made = makers.gptq(bits, stored_zero=stored_zero, symmetric=True)
    np.testing.assert_array_equal(values(only(made.tensors, config)), made.values)


def test_words_and_zeros_of_the_published_examples() -> None:
    """Codes 0 8 0 8 ... are the word 0x80808080; a symmetric zero of 4 bits is stored as 0x77777777 (v1)."""
    codes = np.tile(np.array([0, 8], np.uint32), 4)[:, None]
    assert makers.down(codes, 4).view(np.uint32)[0, 0] == 0x80808080
    made = makers.gptq(4, symmetric=True)
    assert (made.tensors["m.qzeros"].read_all().view(np.uint32) == 0x77777777).all()
    packed = makers.awq().tensors["m.qweight"]
    assert packed.spec.shape == (256, 12)
    word = of_numpy(np.array([[0x75316420]], np.uint32).view(np.int32), "I32")
    np.testing.assert_array_equal(nodes.codes(word, "awq", 4, 8).read_all(), np.arange(8))


@pytest.mark.parametrize("zeros", [True, False])
def test_awq_reads_as_the_formula_says(zeros: bool) -> None:
    made = makers.awq(zeros=zeros)
    np.testing.assert_array_equal(values(only(made.tensors)), made.values)


def test_without_g_idx_and_qzeros() -> None:
    made = makers.gptq(4, symmetric=True)
    del made.tensors["m.g_idx"]
    np.testing.assert_array_equal(values(only(made.tensors)), made.values)
    del made.tensors["m.qzeros"]
    np.testing.assert_array_equal(values(only(made.tensors, {"quantization_config": {"bits": 4}})), made.values)


# ------------------------------------------------------------------------------------------------ exact moves


EXACT = {
    "gptq 4 symmetric": (lambda: makers.gptq(4, symmetric=True), Q4_0),
    "gptq 4 asymmetric": (lambda: makers.gptq(4), Q5_0),
    "gptq 2 asymmetric": (lambda: makers.gptq(2), Q4_0),
    "gptq 3 asymmetric": (lambda: makers.gptq(3), Q4_0),
    "gptq 3 symmetric": (lambda: makers.gptq(3, symmetric=True), Q4_0),
    "gptq 8 symmetric": (lambda: makers.gptq(8, symmetric=True), Q8_0),
    "gptq 5": (lambda: makers.gptq(5, stored_zero=0), Q8_0),
    "gptq 6": (lambda: makers.gptq(6, stored_zero=0), Q8_0),
    "gptq 7": (lambda: makers.gptq(7, stored_zero=0), Q8_0),
    "awq": (lambda: makers.awq(), Q5_0),
    "awq without zeros": (lambda: makers.awq(zeros=False), Q4_0),
}


@pytest.mark.parametrize("case", EXACT)
def test_every_value_is_the_same_in_ggmls_blocks(case: str) -> None:
    make, dtype = EXACT[case]
    made = make()
    node = only(made.tensors)
    assert node.packing.blocks[0] is dtype
    assert node.packing.inexact(node.members, dtype) == ""
    for target in node.packing.blocks:
        np.testing.assert_array_equal(values(nodes.transcode(node, target)), made.values)


def test_eight_bits_with_zeros_and_act_order_have_no_block() -> None:
    assert only(makers.gptq(8).tensors).packing.blocks == ()
    assert only(makers.gptq(4, order=True).tensors).packing.blocks == ()


def test_scales_that_f16_cannot_hold_are_told() -> None:
    made = makers.gptq(4, symmetric=True)
    scales = np.random.default_rng(1).normal(size=(4, 96)).astype(np.float32)
    node = only(made.tensors | {"m.scales": of_numpy(scales, "F32")})
    assert "not f16 numbers" in node.packing.inexact(node.members, Q4_0)
    rounded = scales.astype(np.float16).astype(np.float32)
    node = only(made.tensors | {"m.scales": of_numpy(rounded, "F32")})
    assert node.packing.inexact(node.members, Q4_0) == ""


def test_row_moves_keep_it_packed() -> None:
    made = makers.gptq(4)
    order = np.arange(96).reshape(2, 48)[:, ::-1].reshape(-1).copy()
    moved = nodes.gather(only(made.tensors), order)
    assert isinstance(moved, QuantizedTensor)
    np.testing.assert_array_equal(values(nodes.transcode(moved, Q5_0)), made.values[order])


# ------------------------------------------------------------------------------------------------ bad input


def _changed(**parts: Node | None) -> dict[str, Node]:
    tensors = dict(makers.gptq(4).tensors)
    for name, node in parts.items():
        if node is None:
            del tensors[f"m.{name}"]
        else:
            tensors[f"m.{name}"] = node
    return tensors


def zeros(*shape: int, kind: str = "I32") -> Node:
    return of_numpy(np.zeros(shape, np.int32), kind)


def _said(**settings: str) -> dict[str, Any]:
    return {"quantization_config": settings}


def _g_idx(value: int) -> Node:
    index = np.repeat(np.arange(4), 64).astype(np.int32)
    index[7] = value
    return of_numpy(index, "I32")


BAD: dict[str, tuple[Callable[[], dict[str, Node]], dict[str, Any], type[Exception], str]] = {
    "g_idx too large": (lambda: _changed(g_idx=_g_idx(4)), {}, FormatError, "group that isn't there"),
    "g_idx negative": (lambda: _changed(g_idx=_g_idx(-1)), {}, FormatError, "group that isn't there"),
    "g_idx of floats": (lambda: _changed(g_idx=zeros(256, kind="F32")), {}, FormatError, "g_idx"),
    "g_idx too short": (lambda: _changed(g_idx=zeros(250)), {}, FormatError, "fill"),
    "scales of integers": (lambda: _changed(scales=zeros(4, 96)), {}, FormatError, "scales"),
    "zeros too few": (lambda: _changed(qzeros=zeros(3, 12)), {}, FormatError, "qzeros"),
    "zeros too narrow": (lambda: _changed(qzeros=zeros(4, 11)), {}, FormatError, "qzeros"),
    "marlin": (lambda: _changed(), _said(checkpoint_format="marlin"), UnsupportedError, "marlin"),
    "awq gemv": (lambda: dict(makers.awq().tensors), _said(version="gemv"), UnsupportedError, "gemv"),
    "awq zeros": (
        lambda: dict(makers.awq().tensors) | {"m.qzeros": zeros(4, 11)},
        {}, FormatError, "qzeros",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_parts_that_do_not_fit_are_named(case: str) -> None:
    make, config, error, words = BAD[case]
    with pytest.raises(error, match=words) as caught:
        unpack(make(), config)
    assert "m" in str(caught.value)


def test_a_dynamic_rule_that_would_hang_is_not_run() -> None:
    config = {"quantization_config": {"dynamic": {"(a+)+$": {"bits": 8}, "m$": {"checkpoint_format": "gptq_v2"}}}}
    made = makers.gptq(4, stored_zero=0)
    np.testing.assert_array_equal(values(only(made.tensors, config)), made.values)


def test_ordinary_tensors_are_left_alone() -> None:
    plain = {"a.weight": of_numpy(np.zeros((4, 4), np.float16), F16), "a.bias": of_numpy(np.zeros(4, np.float16), F16)}
    assert unpack(plain, {}) is plain


REGRID: dict[str, Callable[[], makers.Made]] = {
    "gptq 2": lambda: makers.gptq(2),
    "gptq 3": lambda: makers.gptq(3),
    "gptq 4 symmetric": lambda: makers.gptq(4, symmetric=True),
    "gptq 6": lambda: makers.gptq(6, stored_zero=0),
    "gptq 7": lambda: makers.gptq(7, stored_zero=0),
    "gptq 8": lambda: makers.gptq(8),
    "one group a row": lambda: makers.gptq(4, group=256),
    "awq": lambda: makers.awq(),
}


@pytest.mark.parametrize("case", REGRID)
def test_as_mlx_affine_every_value_is_the_same(case: str) -> None:
    made = REGRID[case]()
    found = mlx_affine_bridge.as_affine(only(made.tensors))
    assert found is not None
    bits, group, parts = found
    stored = {f"m.{name}": part for name, part in parts.items()}
    again = unpack(stored, {"quantization": {"bits": bits, "group_size": group}})["m.weight"]
    np.testing.assert_array_equal(values(again), made.values)
    assert (parts["scales"].spec.dtype is F16) == ("symmetric" in case)


@pytest.mark.parametrize(("largest", "held"), [(8188, True), (-8188, True), (8192, False), (np.nan, False)])
def test_scales_keep_their_type_if_it_holds_every_bias(largest: float, held: bool) -> None:
    """-8 * 8188 is F16's least number."""
    made = makers.gptq(4, symmetric=True)
    scales = np.full((4, 96), 0.5, np.float16)
    scales[3, 95] = largest
    tensors = made.tensors | {"m.scales": of_numpy(scales, "F16")}
    found = mlx_affine_bridge.as_affine(only(tensors))
    assert found is not None
    assert (found[2]["biases"].spec.dtype is F16) == (held or np.isnan(largest))
    want = np.float32(-8) * scales.T.astype(np.float32)
    np.testing.assert_array_equal(values(nodes.cast(found[2]["biases"], F32)), want)


@pytest.mark.parametrize("group", [64, 40])
def test_awq_of_any_group_reads_as_the_formula_says(group: int) -> None:
    """Groups of whole words are read as words, others as bytes."""
    made = makers.awq(inner=4 * group, group=group)
    node = only(made.tensors)
    np.testing.assert_array_equal(values(node), made.values)
    assert (node.members["codes"].spec.shape == (96, group // 2)) == (group == 64)


def test_act_order_is_no_mlx_affine() -> None:
    assert mlx_affine_bridge.as_affine(only(makers.gptq(4, order=True).tensors)) is None
