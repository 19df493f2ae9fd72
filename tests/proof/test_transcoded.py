"""Quantized weights that move between GGUF and MLX: the very same values in the engine at the other end, and its logits
those of these values. llama.cpp multiplies blocks with activations of 8 bits, so there its logits are only near."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.kernels import ggml
from tests.oracles import llamacpp, models, ours
from tests.oracles.models import CASES, F32, probe
from tests.proof.test_packed_sources import SCHEMES, packed_folder

import weighbridge
from weighbridge.base.dtypes import BY_NAME
from weighbridge.packings.write.packers import EXACT

mx = pytest.importorskip("mlx.core", reason="MLX WAS NOT PROVED: install requirements/oracles.txt")
pytest.importorskip("mlx_lm", reason="MLX WAS NOT PROVED: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
#: Mean squared differences of logits over their variance: engines that compute in floats, and activations of 8 bits.
SAME, NEAR = 1e-6, 0.02
TYPES = [dtype.name for dtype in EXACT]
#: Types that come back as they went; the others' values lie in a wider type of the same.
BACK = {"Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "NVFP4"}
IDS = probe(96, 48)

# Rows of whole blocks of every type: 256 columns.
WIDE = replace(
    CASES["llama"],
    options=CASES["llama"].options | {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1},
)


def nmse(found: F32, want: F32) -> float:
    return float(np.mean((found - want) ** 2) / np.var(want))


def mlx_values(folder: Path) -> dict[str, F32]:
    """What MLX itself makes of each quantized tensor, in f32."""
    loaded: Any = mx.load(str(folder / "model.safetensors"))
    said = json.loads((folder / "config.json").read_text())["quantization"]
    out = {}
    for name in (n.removesuffix(".scales") for n in loaded if n.endswith(".scales")):
        own = said.get(name, said)
        how = {key: own.get(key, said.get(key)) for key in ("group_size", "bits")}
        parts = [loaded[f"{name}.weight"], loaded[f"{name}.scales"]]
        if f"{name}.biases" in loaded:
            parts = [parts[0], *(p.astype(mx.float32) for p in (parts[1], loaded[f"{name}.biases"]))]
            made = mx.dequantize(*parts, **how)
        else:
            made = mx.dequantize(*parts, **how, mode=own.get("mode", said.get("mode")), dtype=mx.float32)
        out[name] = np.array(made)
    return out


def mlx_logits(folder: Path) -> F32:
    import mlx_lm

    model, _ = mlx_lm.load(str(folder))
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([IDS]))[0].astype(mx.float32))


def llama_logits(path: Path) -> F32:
    with llamacpp.Model(path) as model:
        return model.logits(IDS)


def blocks_of(path: Path, name: str) -> dict[str, NDArray[np.uint8]]:
    """The bytes of a GGUF's tensors of one type."""
    data = np.fromfile(path, np.uint8)
    rows = weighbridge.inspect(path).tensors
    return {row.name: data[row.offset : row.offset + row.nbytes] for row in rows if row.dtype == name}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.build(WIDE, tmp_path_factory.mktemp("wide") / "llama")


@pytest.fixture(scope="module")
def gguf_of_type(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("types")

    @cache
    def make(name: str) -> Path:
        plain = folder / "plain.gguf"
        if not plain.exists():
            ours.to_gguf(wide, plain, "f32", pre=WIDE.pre)
        types = [f".*weight={name.lower()}"]
        weighbridge.quantize(plain, folder / f"{name}.gguf", "Q8_0", tensor_type=types)
        return folder / f"{name}.gguf"

    return make


@pytest.mark.parametrize("name", TYPES)
def test_a_block_type_to_mlx_and_back(name: str, gguf_of_type: Callable[[str], Path], tmp_path: Path) -> None:
    """MLX's values are llama.cpp's to the bit, its logits those that llama.cpp computes of these values as floats; back
    in a GGUF the blocks are the same ones, or hold the same values."""
    source = gguf_of_type(name)
    blocks = blocks_of(source, name)
    assert len(blocks) >= 7
    weighbridge.convert(source, tmp_path / "mlx", to="mlx", inexact="refuse")
    values = {n: ggml.dequantize(BY_NAME[name], data) for n, data in blocks.items()}
    found = mlx_values(tmp_path / "mlx")
    for role, module in (("ffn_down", "mlp.down_proj"), ("attn_v", "self_attn.v_proj"), ("ffn_up", "mlp.up_proj")):
        np.testing.assert_allclose(
            found[f"model.layers.0.{module}"].reshape(-1), values[f"blk.0.{role}.weight"], rtol=0, atol=1e-6
        )
    floats = ours.to_gguf(tmp_path / "mlx", tmp_path / "f32.gguf", "f32", pre=WIDE.pre)
    want = llama_logits(floats)
    assert nmse(mlx_logits(tmp_path / "mlx"), want) < SAME
    back = ours.to_gguf(tmp_path / "mlx", tmp_path / "back.gguf", None, pre=WIDE.pre)
    if name in BACK:
        again = blocks_of(back, name)
        assert all(np.array_equal(again[n], data) for n, data in blocks.items())
    assert nmse(llama_logits(back), want) < NEAR


MODES: dict[str, dict[str, Any]] = {
    "affine 2": {"q_bits": 2}, "affine 3": {"q_bits": 3}, "affine 4": {"q_bits": 4}, "affine 5": {"q_bits": 5},
    "affine 6": {"q_bits": 6}, "affine 8": {"q_bits": 8}, "mxfp4": {"q_mode": "mxfp4"}, "nvfp4": {"q_mode": "nvfp4"},
    "mxfp8": {"q_mode": "mxfp8"},
}  # fmt: skip


# How exact: ggml has no blocks for some, and in blocks of f16 scales few F32 scales are the same. Two bits are around
# their middle, in scales that this model's bf16 weights leave short.
KINDS = {**dict.fromkeys(("affine 6", "affine 8", "mxfp8"), "decoded"),
         **dict.fromkeys(("affine 2", "mxfp4", "nvfp4"), "exact")}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_mlx_to_gguf(mode: str, wide: Path, tmp_path: Path) -> None:
    """What MLX has quantized itself: exact where ggml has such blocks, else floats that are said to be decoded."""
    import mlx_lm

    how = MODES[mode]
    mlx_lm.convert(str(wide), str(tmp_path / "mlx"), quantize=True, **{"q_group_size": None, **how})
    plan = weighbridge.plan_convert(tmp_path / "mlx", tmp_path / "x.gguf", inexact="near")
    kinds = {m.kind for m in plan.moves}
    assert kinds == {KINDS.get(mode, "near")}
    weighbridge.convert(tmp_path / "mlx", tmp_path / "x.gguf", inexact="near", pre=WIDE.pre)
    floats = ours.to_gguf(tmp_path / "mlx", tmp_path / "f32.gguf", "f32", pre=WIDE.pre)
    want = llama_logits(floats)
    assert nmse(mlx_logits(tmp_path / "mlx"), want) < SAME
    assert nmse(llama_logits(tmp_path / "x.gguf"), want) < NEAR


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_packed_folder_to_mlx(scheme: str, folder_of: Maker, tmp_path: Path) -> None:
    """GPTQ and AWQ in MLX: its logits are those of the scheme's own values."""
    folder, values = packed_folder(folder_of("llama3-v4"), tmp_path / "packed", scheme)
    weighbridge.convert(folder, tmp_path / "mlx", to="mlx", inexact="refuse")
    found = mlx_values(tmp_path / "mlx")
    for name, want in values.items():
        np.testing.assert_allclose(found[name.removesuffix(".weight")], want, rtol=0, atol=1e-6, err_msg=name)
    floats = ours.to_gguf(folder, tmp_path / "f32.gguf", "f32", pre=CASES["llama3-v4"].pre)
    assert nmse(mlx_logits(tmp_path / "mlx"), llama_logits(floats)) < SAME
