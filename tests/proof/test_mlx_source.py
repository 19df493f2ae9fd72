"""MLX-quantized folders (mlx_lm.convert, affine) as a source: MLX's own numbers, and the model runs in llama.cpp."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import gguf_file, llamacpp, models, ours
from tests.oracles.folders import tensors
from tests.oracles.models import CASES, F32, probe_of

if os.environ.get("CI") != "true":
    pytest.importorskip("mlx_lm", reason="MLX SOURCES WERE NOT PROVED: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
Parsed = Callable[[Path], gguf_file.File]

# (model, bits, group): f32 models have f32 scales, bf16 models bf16 ones, as published repositories have
SOURCES = [
    ("llama3-v4@bfloat16", 4, 32),
    ("llama3-v4", 8, 32),
    ("mixtral", 4, 32),
    ("mixtral@bfloat16", 8, 32),
    ("llama", 4, 64),
    ("qwen2moe", 8, 32),
    ("qwen3", 8, 32),
    ("qwen3moe", 4, 32),
]


@pytest.fixture(scope="session")
def mlx_of(workshop: Path, folder_of: Maker) -> Callable[[str, int, int], Path]:
    @cache
    def make(name: str, bits: int, group: int) -> Path:
        return models.quantize_mlx(folder_of(name), workshop / f"mlx-{name}-{bits}-{group}", bits=bits, group=group)

    return make


def dequantized(folder: Path, bits: int, group: int) -> dict[str, F32]:
    """MLX's own float32 values of every tensor, under the names of the folder."""
    import mlx.core as mx

    loaded: Any = mx.load(str(folder / "model.safetensors"))
    own = json.loads((folder / "config.json").read_text())["quantization"]  # mlx-lm takes 8 bits for Qwen's routers
    out = {}
    for name, array in loaded.items():
        if name.endswith((".scales", ".biases")):
            continue
        base = name.removesuffix(".weight")
        if f"{base}.scales" in loaded:
            scales, biases = (loaded[f"{base}.{p}"].astype(mx.float32) for p in ("scales", "biases"))
            by_name = own.get(base, {"group_size": group, "bits": bits})
            array = mx.dequantize(array, scales, biases, group_size=by_name["group_size"], bits=by_name["bits"])
        out[name] = np.array(array.astype(mx.float32))
    return out


def mlx_logits(folder: Path, ids: tuple[int, ...]) -> F32:
    """mlx_lm's own model on the quantized weights, everything else in f32."""
    import mlx.core as mx
    import mlx_lm

    model, _ = mlx_lm.load(str(folder))
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


@pytest.mark.costly
@pytest.mark.parametrize(("name", "bits", "group"), SOURCES)
def test_llama_cpp_computes_what_mlx_computes(
    name: str, bits: int, group: int, mlx_of: Callable[[str, int, int], Path], workshop: Path
) -> None:
    folder = mlx_of(name, bits, group)
    path = ours.to_gguf(folder, workshop / f"{folder.name}-f32.gguf", "f32", pre=CASES[name.partition("@")[0]].pre)
    with llamacpp.Model(path) as model:
        found = model.logits(probe_of(name))
    assert models.relative_error(found, mlx_logits(folder, probe_of(name))) < 2e-3


@pytest.mark.parametrize(("name", "bits", "group"), SOURCES)
def test_values_are_mlx_own(
    name: str, bits: int, group: int, mlx_of: Callable[[str, int, int], Path], folder_of: Maker, tmp_path: Path
) -> None:
    """To a plain f32 folder: the names of the original, and MLX's values to the last bit."""
    folder = mlx_of(name, bits, group)
    found = tensors(ours.to_folder(folder, tmp_path / "plain", "f32"))
    assert sorted(found) == sorted(tensors(folder_of(name)))
    for key, value in dequantized(folder, bits, group).items():
        for stored, expected in _apart(key, value):
            assert np.array_equal(found[stored].numpy(), expected), stored


def _apart(name: str, value: F32) -> list[tuple[str, F32]]:
    """A stack of experts under the names that transformers' files have, one by one."""
    if ".switch_mlp." not in name:
        return [(name, value)]
    head, _, tail = name.partition("switch_mlp.")
    mixtral = {"gate_proj.weight": "w1.weight", "down_proj.weight": "w2.weight", "up_proj.weight": "w3.weight"}
    w = mixtral[tail] if "block_sparse_moe" in head else tail
    return [(f"{head}experts.{e}.{w}", expert) for e, expert in enumerate(value)]


def test_q4_1_is_lossless_where_the_scales_allow(
    mlx_of: Callable[[str, int, int], Path], workshop: Path, parsed: Parsed
) -> None:
    """4 bits in groups of 32, scales that f16 holds: Q4_1 under another name, the same numbers, not requantized."""
    import gguf

    folder = mlx_of("llama3-v4@bfloat16", 4, 32)
    exact = parsed(ours.to_gguf(folder, workshop / "exact-f32.gguf", "f32", pre="llama-bpe"))
    kept = parsed(ours.to_gguf(folder, workshop / "kept.gguf", None, pre="llama-bpe"))
    quantized = [name for name, t in kept.tensors.items() if t.type == "Q4_1"]
    assert "blk.0.attn_q.weight" in quantized
    for name in quantized:
        tensor = kept.tensors[name]
        values = gguf.quants.dequantize(tensor.data, gguf.GGMLQuantizationType.Q4_1).reshape(tensor.shape)
        assert np.array_equal(values, exact.tensors[name].data), name
