"""ComfyUI's quantized layers: tiles of scales against cuBLAS's layout as comfy-kitchen writes it, the rest against the
formula."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.packings.stored import of_numpy, values
from tests.unpacked import unpack

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.packings.read import comfy as reader
from weighbridge.packings.schema import comfy as schema
from weighbridge.packings.schema.base import METADATA
from weighbridge.tensors.nodes import Node

FLOATS = {"float8_e4m3fn": ("F8_E4M3", ml_dtypes.float8_e4m3fn), "float8_e5m2": ("F8_E5M2", ml_dtypes.float8_e5m2)}


def settings(**config: Any) -> Node:
    return of_numpy(np.frombuffer(json.dumps(config).encode(), np.uint8), "U8")


def floats(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tiled(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The scales as cuBLAS's tiles: padded to 128 x 4, each tile with the rows of a quarter side by side."""
    rows, groups = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-groups // 4) * 4), np.uint8)
    padded[:rows, :groups] = scales
    tiles = [
        np.concatenate([padded[r + 32 * a : r + 32 * a + 32, c : c + 4] for a in range(4)], axis=1)
        for r in range(0, padded.shape[0], 128)
        for c in range(0, padded.shape[1], 4)
    ]
    return np.concatenate([tile.reshape(-1) for tile in tiles]).reshape(padded.shape)


@pytest.mark.parametrize("name", FLOATS)
def test_floats_with_one_scale(name: str) -> None:
    dtype, scalar = FLOATS[name]
    weight, scale = floats(24, 40).astype(scalar), np.float32(0.37)
    tensors = {"m.weight": of_numpy(weight, dtype), "m.weight_scale": of_numpy(np.asarray(scale), "F32")}
    found = unpack({**tensors, "m.comfy_quant": settings(format=name)}, {})
    assert list(found) == ["m.weight"]
    np.testing.assert_array_equal(values(found["m.weight"]), weight.astype(np.float32) * scale)


def judge_tiles(rows: int, columns: int) -> None:
    weight = floats(rows, columns).astype(ml_dtypes.float8_e4m3fn)
    scales = np.random.default_rng(2).integers(100, 150, (rows, columns // 32)).astype(np.uint8)
    stored = {"m.weight": of_numpy(weight, "F8_E4M3"), "m.weight_scale": of_numpy(tiled(scales), "U8")}
    found = unpack({**stored, "m.comfy_quant": settings(format="mxfp8")}, {})["m.weight"]
    factors = np.exp2(scales.astype(np.float32) - 127).repeat(32, axis=1)
    np.testing.assert_array_equal(values(found), weight.astype(np.float32) * factors)


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (64, 96), (256, 320), (160, 32), (384, 1024)])
def test_scales_in_tiles(rows: int, columns: int) -> None:
    judge_tiles(rows, columns)


@pytest.mark.mutation
@pytest.mark.parametrize("tile", [(64, 4), (128, 8), (128, 2)])
def test_the_size_of_a_tile_is_seen(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "TILE", tile)
    monkeypatch.setattr(reader, "TILE", tile)
    with pytest.raises((AssertionError, FormatError)):
        judge_tiles(160, 320)


@pytest.mark.parametrize("shape", [(), (24, 1)])
def test_integers_with_a_scale_a_row(shape: tuple[int, ...]) -> None:
    weight = np.random.default_rng(3).integers(-127, 128, (24, 64)).astype(np.int8)
    scale = np.abs(floats(*shape, seed=4))
    tensors = {"m.weight": of_numpy(weight, "I8"), "m.weight_scale": of_numpy(np.asarray(scale), "F32")}
    found = unpack({**tensors, "m.comfy_quant": settings(format="int8_tensorwise")}, {})
    np.testing.assert_array_equal(values(found["m.weight"]), weight.astype(np.float32) * scale)


def nvfp4() -> dict[str, Node]:
    return {
        "m.weight": of_numpy(np.zeros((128, 32), np.uint8), "U8"),
        "m.weight_scale": of_numpy(np.ones((128, 4), np.uint8), "F8_E4M3"),
        "m.weight_scale_2": of_numpy(np.ones((), np.float32), "F32"),
    }


@pytest.mark.parametrize("config", [
    {"format": "nvfp4"}, {"format": "int8_tensorwise", "convrot": True}, {"format": "int8_blockwise"}, {},
])  # fmt: skip
def test_other_formats_are_refused_and_not_read_as_those_of_other_tools(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="ComfyUI"):
        unpack({**nvfp4(), "m.comfy_quant": settings(**config)}, {})


@pytest.mark.parametrize(("module", "layer"), [
    ("m", "m"), ("model.diffusion_model.m", "m"), ("m", "model.diffusion_model.m"),
])  # fmt: skip
def test_the_metadata_of_the_file_counts_too(module: str, layer: str) -> None:
    """Some tools write the names of layers without the file's prefix, or with it."""
    metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": {layer: {"format": "nvfp4"}}})}
    tensors = {name.replace("m.", f"{module}.", 1): node for name, node in nvfp4().items()}
    with pytest.raises(UnsupportedError, match="nvfp4"):
        unpack(tensors, {METADATA: metadata})
    unpack(nvfp4(), {METADATA: {"_quantization_metadata": "[]"}})  # ModelOpt's


def test_settings_that_are_no_json_are_a_fault_of_the_file() -> None:
    broken = of_numpy(np.frombuffer(b"{", np.uint8), "U8")
    with pytest.raises(FormatError, match="comfy_quant"):
        unpack({**nvfp4(), "m.comfy_quant": broken}, {})
