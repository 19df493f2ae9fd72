"""What we write for MLX: words, scales and biases as MLX's own CPU kernels make them; ggml blocks repacked so that MLX
reads the values that llama.cpp reads."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.kernels.data import numbers
from tests.packings.stored import values
from tests.unpacked import unpack

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, DType
from weighbridge.base.errors import RefusedError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.packings import mlx_affine_bridge
from weighbridge.packings.write import packers
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor
from weighbridge.tensors.reference import floats

mx = pytest.importorskip("mlx.core", reason="MLX WAS NOT COMPARED WITH: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle


def weights(kind: str, dtype: DType) -> NDArray[np.float32]:
    x = numbers(kind, 16 * 256)
    return floats.widen(dtype.name, floats.narrow(dtype.name, x).view(np.uint8)).reshape(16, 256)


def of_mlx(x: NDArray[np.float32], dtype: DType, **how: object) -> list[NDArray[np.uint8]]:
    stored = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}[dtype.name]
    with mx.stream(mx.cpu):
        parts = mx.quantize(mx.array(x).astype(stored), **how)
        views = [p.view(mx.uint16) if p.dtype in (mx.float16, mx.bfloat16) else p for p in parts]
        return [np.array(v).view(np.uint8).reshape(-1) for v in views]


@pytest.mark.parametrize("kind", ["normal", "halves", "one sign", "zero", "constant"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("mode", packers.MODES)
def test_float_modes_equal_mlx(mode: str, dtype: DType, kind: str) -> None:
    how, x = packers.MODES[mode], weights(kind, dtype)
    want = of_mlx(x, dtype, group_size=how.group, bits=how.bits, mode=mode)
    got = nodes.pack(nodes.const(x, F32), packers.FloatOf(mode, dtype))
    np.testing.assert_array_equal(got["scales"].read_all(), want[1])
    np.testing.assert_array_equal(got["weight"].read_all(), want[0])


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_affine_equals_mlx(bits: int, dtype: DType) -> None:
    x = weights("normal", dtype)
    want = of_mlx(x, dtype, group_size=64, bits=bits)
    got = nodes.pack(nodes.const(x, F32), packers.AffineOf(bits, 64, dtype))
    for part, expected in zip(("weight", "scales", "biases"), want, strict=True):
        np.testing.assert_array_equal(got[part].read_all(), expected)
        rows = got[part].spec.row_bytes
        np.testing.assert_array_equal(got[part].read(3, 7), expected[3 * rows : 7 * rows])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("mode", ["affine", *packers.MODES])
def test_values_that_are_none_are_refused(mode: str, value: float) -> None:
    """MLX quantizes them without a word: what shares their scale is lost, or a NaN is a number like any other."""
    x = weights("normal", F32)
    x[3, 5] = value
    group, bits = (64, 4) if mode == "affine" else (packers.MODES[mode].group, packers.MODES[mode].bits)
    how = {"group_size": group, "bits": bits, "mode": mode}
    with mx.stream(mx.cpu):
        theirs = np.array(mx.dequantize(*mx.quantize(mx.array(x), **how), **how).astype(mx.float32))[3, :group]
    others = np.arange(group) != 5
    assert np.isfinite(theirs[5]) or not np.isfinite(theirs[others]).any()
    assert np.isnan(value) or not np.allclose(theirs[others], x[3, :group][others], atol=0.5)
    packer = packers.AffineOf(4, 64, F32, "w") if mode == "affine" else packers.FloatOf(mode, F32, "w")
    for part in nodes.pack(nodes.const(x, F32), packer).values():
        with pytest.raises(RefusedError, match="w has values that aren't finite"):
            part.read_all()


@pytest.mark.parametrize("dtype", packers.EXACT, ids=str)
def test_blocks_keep_every_value(dtype: DType) -> None:
    """The values that ggml's blocks decode to, from what MLX would load."""
    blocks = nodes.cast(nodes.const(numbers("normal", 8 * 512).reshape(8, 512), F32), dtype)
    packer = packers.BlocksOf(dtype)
    parts: dict[str, Node] = {f"m.{k}": v for k, v in nodes.pack(blocks, packer).items()}
    config = {"quantization": {"bits": packer.bits, "group_size": packer.group}}
    np.testing.assert_array_equal(values(unpack(parts, config)["m.weight"]), values(blocks) + 0.0)  # -0 is 0 in FP4
    loaded = [mx.array(part.read_all().view(_KINDS[part.spec.dtype.name]).reshape(8, -1)) for part in parts.values()]
    how = {"group_size": packer.group, "bits": packer.bits, "mode": packer.mode}
    with mx.stream(mx.cpu):
        if packer.mode == "affine":
            theirs = mx.dequantize(loaded[0], *(p.astype(mx.float32) for p in loaded[1:]), **how)
        else:
            theirs = mx.dequantize(*loaded, **how, dtype=mx.float32)
    np.testing.assert_allclose(np.array(theirs), values(blocks), rtol=0, atol=1e-6 * (packer.mode == "affine"))


_KINDS = {"U32": "u4", "F16": "f2", "F32": "f4", "U8": "u1"}


@pytest.mark.parametrize(("name", "byte"), [("MXFP4", 0xFF), ("NVFP4", 0x7F), ("NVFP4", 0x81)])
def test_a_scale_that_mlx_reads_otherwise_is_told(name: str, byte: int) -> None:
    """NaN is a number to ggml, and a negative scale isn't negative."""
    raw = np.zeros((1, BY_NAME[name].size), np.uint8)
    raw[0, 0] = byte
    node = nodes.pack(
        nodes.Const(Spec((1, BY_NAME[name].block), BY_NAME[name]), raw.tobytes()), packers.BlocksOf(BY_NAME[name])
    )
    with pytest.raises(UnsupportedError, match="another meaning outside of ggml"):
        node["scales"].read_all()
    node["weight"].read_all()


def test_a_bias_that_overflows_is_told() -> None:
    raw = np.zeros((1, 34), np.uint8)
    raw[0, :2] = np.array([60000], np.float16).view(np.uint8)
    node = nodes.pack(nodes.Const(Spec((1, 32), BY_NAME["Q8_0"]), raw.tobytes()), packers.BlocksOf(BY_NAME["Q8_0"]))
    with pytest.raises(UnsupportedError, match="finite in F16"):
        node["biases"].read_all()


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0"])
def test_symmetric_codes_are_blocks_without_a_minimum_again(name: str) -> None:
    """What came of Q8_0 goes back to the same blocks; one bias that is another one, and it has no such form."""
    dtype = BY_NAME[name]
    blocks = nodes.cast(nodes.const(numbers("normal", 64 * 512).reshape(64, 512), F32), dtype)
    packer = packers.BlocksOf(dtype)
    parts: dict[str, Node] = {f"m.{k}": v for k, v in nodes.pack(blocks, packer).items()}
    told = {"quantization": {"bits": packer.bits, "group_size": packer.group}}
    node = unpack(parts, told)["m.weight"]
    assert isinstance(node, QuantizedTensor)
    int_quant = mlx_affine_bridge.as_int_quant(node)
    assert int_quant is not None
    assert dtype in int_quant.packing.blocks
    assert int_quant.packing.inexact(int_quant.members, dtype) == ""
    np.testing.assert_array_equal(nodes.transcode(int_quant, dtype).read_all(), blocks.read_all())
    np.testing.assert_array_equal(values(int_quant), values(node))
    other = parts["m.biases"].read_all()
    other[-2] ^= 1
    node = unpack({**parts, "m.biases": nodes.Const(parts["m.biases"].spec, other.tobytes())}, told)["m.weight"]
    assert isinstance(node, QuantizedTensor)
    assert mlx_affine_bridge.as_int_quant(node) is None
