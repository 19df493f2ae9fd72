"""The laws of packings: unpack(pack(x)) within the bound, the same parameters in another block type bit for bit, moves
that keep a tensor packed. MLX itself and ggml are the judges where they are installed."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import examples
from tests.unpacked import unpack

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, Q4_0, Q4_1, Q8_0, U32, DType
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.plan.losses.requantized import losses_of
from weighbridge.conversion.plan.probe import block_for
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor
from weighbridge.tensors.reference import affine


def fits(node: LogicalTensor) -> DType | None:
    assert isinstance(node, QuantizedTensor)
    block, why = block_for(node, dtype_policy.EXACT_BLOCKS)
    return None if why else block


GROUPS, BITS = (32, 64, 128), (2, 3, 4, 5, 6, 8)


def values(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)


def packed(x: NDArray[np.float32], bits: int, group: int, scales: DType = F32) -> dict[str, Node]:
    """A matrix in MLX's three tensors, by our own encoder (held against MLX's in tests/kernels)."""
    rows, columns = x.shape
    weight, scale, bias = affine.affine_encode(bits, group, scales.name, x.reshape(-1))
    groups = (rows, columns // group)
    shapes = {"weight": (rows, columns * bits // 32), "scales": groups, "biases": groups}
    parts = {"weight": (weight, U32), "scales": (scale, scales), "biases": (bias, scales)}
    return {f"m.{k}": nodes.Const(Spec(shapes[k], d), v.tobytes()) for k, (v, d) in parts.items()}


def config(bits: int, group: int) -> Mapping[str, object]:
    return {"quantization": {"bits": bits, "group_size": group}}


def decoded(node: LogicalTensor) -> NDArray[np.float32]:
    return nodes.decode(node).read_all().view(np.float32).reshape(node.spec.shape)


@given(st.sampled_from(BITS), st.sampled_from(GROUPS), st.integers(0, 1000))
@examples(60)
def test_affine_comes_back_within_a_step(bits: int, group: int, seed: int) -> None:
    x = values(seed, 6, 2 * group)
    node = unpack(packed(x, bits, group), config(bits, group))["m.weight"]
    assert isinstance(node, QuantizedTensor)
    spread = np.ptp(x.reshape(-1, group), axis=1)[:, None]
    error = np.abs(decoded(node) - x).reshape(-1, group)
    # The scale is changed so that the end of larger magnitude is exact; the other end may be a step out of reach.
    assert (error <= spread / (2**bits - 1) * 1.01 + 1e-6).all()


@pytest.mark.parametrize("dtype", [Q8_0, Q4_0, Q4_1], ids=str)
@given(st.integers(0, 1000))
@examples(30)
def test_a_ggml_block_comes_back_within_its_step(dtype: DType, seed: int) -> None:
    x = values(seed, 4, 64)
    node = nodes.cast(nodes.const(x, F32), dtype)
    assert node.read_all().nbytes == node.spec.nbytes
    blocks = x.reshape(-1, 32)
    reach = np.ptp(blocks, axis=1) / 15 if dtype is Q4_1 else np.abs(blocks).max(1) / (127 if dtype is Q8_0 else 8)
    error = np.abs(decoded(node).reshape(-1, 32) - blocks).max(1)
    # Half a step, and what rounding the scale to f16 adds at the largest code; Q4_0's larger side lacks one code.
    assert (error <= reach * (1.01 if dtype is Q4_0 else 0.58)).all()


@pytest.mark.parametrize("dtype", [Q8_0, Q4_0], ids=str)
def test_a_block_type_passes_through_moves_untouched(dtype: DType) -> None:
    """pack(unpack(p)) = p, without unpacking: gathered, cut and joined, the blocks are the same bytes."""
    node = nodes.cast(nodes.const(values(1, 8, 64), F32), dtype)
    raw = node.read_all().reshape(8, -1)
    order = np.array([5, 2, 7, 0, 1, 6, 3, 4])
    moved = nodes.concat(
        [
            nodes.slice_rows(nodes.gather(node, order), 4, (4, 64)),
            nodes.slice_rows(nodes.gather(node, order), 0, (4, 64)),
        ]
    )
    assert moved.read_all().tobytes() == raw[order][[4, 5, 6, 7, 0, 1, 2, 3]].tobytes()
    assert losses_of({"t": moved}) == []


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("scales", [F16, BF16, F32], ids=str)
def test_to_q4_1_every_value_is_the_same(group: int, scales: DType) -> None:
    x = values(3, 5, 256)
    members = packed(x, 4, group, scales)
    if scales is F32:  # made to fit: f32 scales that an f16 holds
        for part in ("m.scales", "m.biases"):
            rounded = nodes.cast(nodes.cast(members[part], F16), F32)
            members[part] = nodes.Const(members[part].spec, rounded.read_all().tobytes())
    node = unpack(members, config(4, group))["m.weight"]
    assert fits(node) == Q4_1
    blocks = nodes.transcode(node, Q4_1)  # type: ignore[arg-type]
    assert np.array_equal(decoded(blocks), decoded(node))
    for lo, hi in ((0, 1), (2, 5), (0, 5)):  # row by row as all at once
        assert blocks.read(lo, hi).tobytes() == blocks.read_all()[lo * 160 : hi * 160].tobytes()


def test_scales_that_f16_cannot_hold_are_seen() -> None:
    members = packed(values(3, 5, 256), 4, 64)  # f32 scales as they come: not f16 numbers
    node = unpack(members, config(4, 64))["m.weight"]
    assert fits(node) is None
    assert fits(unpack(packed(values(3, 5, 256), 8, 64, F16), config(8, 64))["m.weight"]) is None


def test_ggml_reads_our_q4_1_as_we_do() -> None:
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        pytest.skip("NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    lib = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    node = unpack(packed(values(4, 3, 128), 4, 64, F16), config(4, 64))["m.weight"]
    raw = nodes.transcode(node, Q4_1).read_all()  # type: ignore[arg-type]
    out = np.empty(3 * 128, np.float32)
    source, target = (a.ctypes.data_as(ctypes.c_void_p) for a in (raw, out))
    lib.dequantize_row_q4_1(source, target, ctypes.c_int64(out.size))
    assert np.array_equal(out.reshape(3, 128), decoded(node))


def test_moves_and_joins_keep_affine_packed_and_exact() -> None:
    a, b = (unpack(packed(values(s, 6, 128), 4, 64, F16), config(4, 64))["m.weight"] for s in (5, 6))
    joined = nodes.gather(nodes.concat([a, b]), np.arange(12)[::-1].copy())
    assert isinstance(joined, QuantizedTensor)
    assert np.array_equal(decoded(joined), np.concatenate([decoded(a), decoded(b)])[::-1])
    part = nodes.slice_rows(joined, 3, (5, 128))
    assert isinstance(part, QuantizedTensor)
    assert np.array_equal(decoded(part), decoded(joined)[3:8])
    assert isinstance(nodes.stack([a, b]), QuantizedTensor)


@pytest.mark.parametrize(("bits", "group"), [(8, 64), (4, 32)])
def test_joining_other_parameters_decodes_and_says_why(bits: int, group: int) -> None:
    a = unpack(packed(values(5, 6, 128), 4, 64, F16), config(4, 64))["m.weight"]
    b = unpack(packed(values(6, 6, 128), bits, group, F16), config(bits, group))["m.weight"]
    joined = nodes.concat([a, b])
    assert not isinstance(joined, QuantizedTensor)
    assert np.array_equal(joined.read_all().view(np.float32).reshape(12, 128), np.concatenate([decoded(a), decoded(b)]))
    (loss,) = losses_of({"t": joined})  # one, although each part is decoded
    assert "different parameters" in loss.message


# ------------------------------------------------------------------------------------------------ recognising


def test_bits_follow_from_shapes_where_the_config_is_wrong_or_silent() -> None:
    """128 columns of 3 bits in groups of 32: no other bits and group fit 12 words in 4 groups."""
    node: Any = unpack(packed(values(1, 2, 128), 3, 32), config(4, 64))["m.weight"]
    assert (node.packing.code_bits, node.packing.group) == (3, 32)


def test_a_config_settles_what_shapes_leave_open() -> None:
    members = packed(values(1, 2, 128), 4, 64)
    node = unpack(members, config(4, 64))["m.weight"]
    assert node.spec.shape == (2, 128)
    for own in ({"bits": 4, "group_size": 64}, {"bits": 4, "group_size": None}):  # null: MLX's default of 64
        table = {"quantization": {"bits": 8, "group_size": 32, "m": own}}
        assert unpack(members, table)["m.weight"].spec.shape == (2, 128)
    with pytest.raises(FormatError, match="are ambiguous"):
        unpack(members, {})


def _without(name: str) -> dict[str, Node]:
    members = packed(values(1, 2, 128), 4, 64)
    del members[name]
    return members


def _with(name: str, node: Node) -> dict[str, Node]:
    return {**packed(values(1, 2, 128), 4, 64), name: node}


@pytest.mark.parametrize(
    ("members", "error"),
    [
        (_without("m.biases"), FormatError),
        (_with("m.biases", nodes.const(values(1, 2, 3), F32)), FormatError),
        (_with("m.scales", nodes.const(values(1, 3, 2), F32)), FormatError),
        (_with("m.scales", nodes.Const(Spec((2, 2), BY_NAME["U8"]), bytes(4))), FormatError),
        (_with("m.scales", nodes.const(values(1, 2, 0), F32)), FormatError),
    ],
)
def test_a_group_that_does_not_fit_is_told(members: dict[str, Node], error: type[Exception]) -> None:
    with pytest.raises(error, match="m"):
        unpack(members, config(4, 64))


def test_other_tensors_pass_in_their_order() -> None:
    members = packed(values(1, 2, 128), 4, 64)
    bias = nodes.const(values(1, 2), F32)
    out = unpack({"a.weight": bias, **members, "m.bias": bias}, config(4, 64))
    assert list(out) == ["a.weight", "m.weight", "m.bias"]
    assert out["m.bias"] is bias


def test_a_linear_bias_is_not_taken_for_biases() -> None:
    members = {"m.weight": nodes.const(values(1, 2, 4), F32), "m.scales": nodes.const(values(1, 2, 1), F32)}
    assert list(unpack(members, {})) == ["m.weight", "m.scales"]


def test_kernels_offer_what_the_core_needs() -> None:
    assert all(kernels.decodes(d) and kernels.encodes(d) for d in (Q8_0, Q4_0, Q4_1))
