"""One and two bits: BitNet as transformers unpacks it, MLX's codes as ggml's Q1_0 and Q2_0, TQ1_0 and TQ2_0 as MLX's;
the very same values in llama.cpp. What a block can't hold is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.kernels import ggml
from tests.packings import makers as packed
from tests.packings.stored import of_numpy, values
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME, F32
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.plan import probe
from weighbridge.packings import ggml_blocks, mlx_affine_bridge
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.write import packers
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor

TOLD = {"quantization_config": {"quant_method": "bitnet"}}
AUTO = {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"}}


def ggml_values(node: QuantizedTensor, dtype: Any) -> np.ndarray:
    return ggml.dequantize(dtype, nodes.transcode(node, dtype).read_all()).reshape(node.spec.shape)


def check_bitnet() -> None:
    made = packed.bitnet()
    np.testing.assert_array_equal(values(unpack(made.tensors, TOLD)["m.weight"]), made.values)


@pytest.mark.oracle
@pytest.mark.parametrize("divided", [True, False])
def test_bitnet_is_what_transformers_unpacks(divided: bool) -> None:
    torch: Any = pytest.importorskip("torch")
    theirs: Any = pytest.importorskip("transformers.integrations.bitnet")
    ternary = torch.randint(-1, 2, (96, 160), generator=torch.Generator().manual_seed(3))
    stored = {"m.weight": of_numpy(theirs.pack_weights(ternary).numpy(), "U8"),
              "m.weight_scale": of_numpy(np.array([1.7], np.float32), "F32")}  # fmt: skip
    found = values(unpack(stored, TOLD if divided else AUTO)["m.weight"])
    with torch.compiler.set_stance("force_eager"):  # compiled, it needs programs that not every machine has
        want = theirs.unpack_weights(torch.from_numpy(stored["m.weight"].read_all().reshape(24, 160)), torch.float32)
    factor = np.float32(1) / np.float32(1.7) if divided else np.float32(1.7)
    np.testing.assert_array_equal(found, want.numpy() * factor)


@pytest.mark.parametrize("scale", [16.0, 1.7])
@pytest.mark.parametrize("code", [0, 3])
def test_bitnet_in_blocks(scale: float, code: int) -> None:
    """All four codes have a place in Q2_0; a scale that f16 doesn't hold is near."""
    made = packed.bitnet(scale=scale)
    raw = made.tensors["m.weight"].read_all()
    raw[:7] = raw[:7] & 0xFC | code
    tensors = {**made.tensors, "m.weight": of_numpy(raw.reshape(24, 256), "U8")}
    node = unpack(tensors, TOLD)["m.weight"]
    assert isinstance(node, QuantizedTensor)
    block, why = probe.block_for(node, dtype_policy.EXACT_BLOCKS)
    assert block is ggml_blocks.Q2_0
    assert bool(why) == (scale == 1.7)
    found, want = ggml_values(node, block), values(node)
    np.testing.assert_allclose(found, want, rtol=0 if scale == 16 else 2**-11)
    assert found[0, 0] == np.float16(1 / scale) * (code - 1)


@pytest.mark.parametrize("columns", [32, 96])
def test_rows_of_no_whole_blocks_take_the_next_type(columns: int) -> None:
    node = unpack(packed.bitnet(inner=columns).tensors, TOLD)["m.weight"]
    assert isinstance(node, QuantizedTensor)
    assert probe.block_for(node, dtype_policy.EXACT_BLOCKS) == (BY_NAME["Q4_0"], "")
    np.testing.assert_array_equal(ggml_values(node, BY_NAME["Q4_0"]), values(node))


def affine(bits: int, group: int, scales: np.ndarray, biases: np.ndarray, kind: str) -> QuantizedTensor:
    """MLX affine of random codes; [4, groups] of parameters."""
    words = np.random.default_rng(bits).integers(0, 1 << 32, (4, scales.shape[1] * group * bits // 32), np.uint32)
    parts: dict[str, Node] = {"m.weight": of_numpy(words, "U32")}
    for name, part in (("scales", scales), ("biases", biases)):
        parts[f"m.{name}"] = nodes.cast(nodes.const(part.astype(np.float32), F32), BY_NAME[kind])
    node = unpack(parts, {"quantization": {"bits": bits, "group_size": group}})["m.weight"]
    assert isinstance(node, QuantizedTensor)
    return node


def numbers(groups: int = 4) -> np.ndarray:
    """Of f16 and bf16 alike."""
    return np.random.default_rng(1).integers(-127, 128, (4, groups)) / np.float32(1024)


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("group", [64, 128])
def test_mlx_of_two_bits_around_one_is_q2_0(group: int, kind: str) -> None:
    node = affine(2, group, numbers(), -numbers(), kind)
    int_quant = mlx_affine_bridge.as_int_quant(node)
    assert int_quant is not None
    assert probe.block_for(int_quant, dtype_policy.EXACT_BLOCKS) == (ggml_blocks.Q2_0, "")
    np.testing.assert_array_equal(ggml_values(int_quant, ggml_blocks.Q2_0), values(node))


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
def test_mlx_of_signs_is_q1_0(kind: str) -> None:
    node = affine(1, 128, 2 * numbers(), -numbers(), kind)
    assert probe.block_for(node, dtype_policy.EXACT_BLOCKS) == (ggml_blocks.Q1_0, "")
    np.testing.assert_array_equal(ggml_values(node, ggml_blocks.Q1_0), values(node))


_FINE = numbers() + np.float32(2**-20)
WRONG: dict[str, tuple[int, int, np.ndarray, np.ndarray, str, str]] = {
    "a bias of its own": (1, 128, 2 * numbers(), -numbers() - np.eye(4, dtype=np.float32), "F32", "Q4_1"),
    "a scale of more than f16": (1, 128, 2 * _FINE, -_FINE, "F32", ""),
    "groups that are no blocks": (1, 64, 2 * numbers(), -numbers(), "F16", "Q4_1"),
    "two bits in groups of 32": (2, 32, numbers(), -numbers(), "F16", "Q4_0"),
    "two bits around two": (2, 64, numbers(), -2 * numbers(), "F16", "Q4_0"),
    "two bits around three": (2, 64, numbers(), -3 * numbers(), "F16", "Q4_1"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_others_take_a_type_that_holds_them(case: str) -> None:
    bits, group, scales, biases, kind, block = WRONG[case]
    node = affine(bits, group, scales, biases, kind)
    int_quant = mlx_affine_bridge.as_int_quant(node)
    found, why = probe.block_for(int_quant or node, dtype_policy.EXACT_BLOCKS)
    assert (found.name if found and not why else "") == block
    if found and not why:
        np.testing.assert_array_equal(ggml_values(int_quant or node, found), values(node))
    assert ggml_blocks.Q1_0 not in node.packing.blocks or node.packing.inexact(node.members, ggml_blocks.Q1_0)


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_ternary_blocks_are_q2_0_by_way_of_mlx(name: str) -> None:
    """Two groups of 128 with the scale of their block of 256; codes as they are."""
    dtype = BY_NAME[name]
    x = np.random.default_rng(4).integers(-1, 2, (6, 512)).astype(np.float32) * np.float32(0.125)
    source = nodes.cast(nodes.const(x, F32), dtype)
    packer = packers.BlocksOf(dtype)
    parts = {f"m.{k}": v for k, v in nodes.pack(source, packer).items()}
    node = unpack(parts, {"quantization": {"bits": 2, "group_size": 128}})["m.weight"]
    assert isinstance(node, QuantizedTensor)
    assert node.packing == Affine(2, 128, BY_NAME["F16"])
    np.testing.assert_array_equal(values(node), ggml.dequantize(dtype, source.read_all()).reshape(x.shape))
    int_quant = mlx_affine_bridge.as_int_quant(node)
    assert int_quant is not None
    assert isinstance(int_quant.packing, IntQuant)
    np.testing.assert_array_equal(ggml_values(int_quant, ggml_blocks.Q2_0), values(node))
