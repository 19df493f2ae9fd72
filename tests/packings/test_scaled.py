"""FP8 with a scale for each block, and the other placements of scales, against the formula; exact where scales are
powers of two."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.packings.stored import of_numpy, values
from tests.unpacked import unpack

from weighbridge.base.dtypes import U8, U32
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.io.source import BytesSource
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, Stored

TYPES = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz}


def floats(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def only(tensors: dict[str, Node]) -> LogicalTensor:
    (found,) = unpack(tensors, {}).values()
    return found


@pytest.mark.parametrize("suffix", [".weight_scale_inv", ".weight_scale", ".scale"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("block", "shape"), [(128, (300, 200)), (128, (128, 256)), (32, (70, 64))])
def test_a_scale_for_each_block(block: int, shape: tuple[int, int], dtype: str, suffix: str) -> None:
    """The last block may be partial in both directions."""
    weight = floats(*shape).astype(TYPES[dtype])
    scale = np.abs(floats(-(-shape[0] // block), -(-shape[1] // block), seed=2))
    node = only({"m.weight": of_numpy(weight, dtype), f"m{suffix}": of_numpy(scale, "F32")})
    grid = np.repeat(np.repeat(scale, block, 0), block, 1)[: shape[0], : shape[1]]
    want = weight.astype(np.float32) * grid
    np.testing.assert_array_equal(values(node), want)
    for lo, hi in ((0, 1), (31, 67), (shape[0] - 1, shape[0])):
        np.testing.assert_array_equal(nodes.decode(node).read(lo, hi).view(np.float32), want[lo:hi].reshape(-1))


@pytest.mark.parametrize("shape", [(), (1,), (48,), (48, 1)])
def test_one_scale_or_one_a_row(shape: tuple[int, ...]) -> None:
    weight, scale = floats(48, 64).astype(ml_dtypes.float8_e4m3fn), np.abs(floats(*shape, seed=3))
    tensors = {"m.weight": of_numpy(weight, "F8_E4M3"), "m.weight_scale": of_numpy(np.asarray(scale), "F32")}
    tensors["m.input_scale"] = of_numpy(np.ones((), np.float32), "F32")
    spread = np.asarray(scale).reshape(-1, 1)
    np.testing.assert_array_equal(values(only(tensors)), weight.astype(np.float32) * spread)


@pytest.mark.parametrize("kind", ["U8", "F8_E8M0"])
def test_powers_of_two_are_exact_in_bf16(kind: str) -> None:
    """ue8m0 scales: 8-bit floats times powers of two, none of which bf16 rounds."""
    weight = floats(64, 64).astype(ml_dtypes.float8_e4m3fn)
    codes = np.random.default_rng(4).integers(110, 140, (2, 2), dtype=np.uint8)
    node = only({"m.weight": of_numpy(weight, "F8_E4M3"), "m.weight_scale_inv": of_numpy(codes, kind)})
    grid = np.repeat(np.repeat(2.0 ** (codes.astype(np.float32) - 127), 32, 0), 32, 1)
    want = weight.astype(np.float32) * grid
    np.testing.assert_array_equal(values(node), want)
    np.testing.assert_array_equal(want.astype(ml_dtypes.bfloat16).astype(np.float32), want)


def test_experts_in_one_tensor() -> None:
    weight = floats(3, 256, 130).astype(ml_dtypes.float8_e4m3fn)
    scale = np.abs(floats(3, 2, 2, seed=2))
    stored = {"mlp.experts.gate_up_proj": of_numpy(weight, "F8_E4M3"),
              "mlp.experts.gate_up_proj_scale_inv": of_numpy(scale, "F32")}  # fmt: skip
    found = unpack(stored, {})
    assert list(found) == ["mlp.experts.gate_up_proj"]
    grid = np.repeat(np.repeat(scale, 128, 1), 128, 2)[:, :, :130]
    np.testing.assert_array_equal(values(found["mlp.experts.gate_up_proj"]), weight.astype(np.float32) * grid)


def test_rows_move_with_their_blocks() -> None:
    weight, scale = floats(256, 128).astype(ml_dtypes.float8_e4m3fn), np.abs(floats(2, 1, seed=2))
    node = only({"m.weight": of_numpy(weight, "F8_E4M3"), "m.weight_scale_inv": of_numpy(scale, "F32")})
    lower = nodes.slice_rows(node, 128, (128, 128))
    assert isinstance(lower, QuantizedTensor)
    np.testing.assert_array_equal(values(lower), values(node)[128:])


BAD: dict[str, tuple[dict[str, Node], str]] = {
    "no blocks fit": ({"m.weight_scale_inv": of_numpy(np.ones((3, 5), np.float32), "F32")}, "scales"),
    "a scale too many": ({"m.weight_scale": of_numpy(np.ones(301, np.float32), "F32")}, "scales"),
    "no scales": ({"m.weight_scale": of_numpy(np.ones((0, 2), np.float32), "F32")}, "scales"),
    "a vector": ({"m.weight": of_numpy(floats(7).astype(ml_dtypes.float8_e4m3fn), "F8_E4M3"),
                  "m.weight_scale": of_numpy(np.ones(1, np.float32), "F32")}, "isn't a matrix"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_scales_that_do_not_fit_are_named(case: str) -> None:
    changed, words = BAD[case]
    weight: dict[str, Any] = {"m.weight": of_numpy(floats(300, 200).astype(ml_dtypes.float8_e4m3fn), "F8_E4M3")}
    with pytest.raises(FormatError, match=words):
        unpack(weight | changed, {})


def test_other_tensors_called_scale_are_left_alone() -> None:
    tensors = {"norm.weight": of_numpy(floats(8), "F32"), "norm.scale": of_numpy(floats(8), "F32")}
    assert unpack(tensors, {}) is tensors


@pytest.mark.parametrize(("words", "scales"), [((), (256, 16)), ((4, 8), ()), ((), ())])
def test_a_scalar_has_no_columns_to_share_a_scale(words: tuple[int, ...], scales: tuple[int, ...]) -> None:
    """MLX's float modes are recognized by columns; found by fuzzing."""
    sizes = {"m.weight": Spec(words, U32), "m.scales": Spec(scales, U8)}
    stored: dict[str, Node] = {name: Stored(spec, BytesSource(b""), 0) for name, spec in sizes.items()}
    assert unpack(stored, {}).keys() == stored.keys()
