"""A quantized folder of every scheme as a source: its very values in a GGUF, in blocks where that is exact, and the
model runs in llama.cpp."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kernels import ggml
from tests.models.mlx_vlm_cases import case
from tests.models.projector_cases import write_folder
from tests.oracles import llamacpp, ours, published_packings
from tests.oracles.models import CASES, probe_of
from tests.packings import makers

import weighbridge
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import RefusedError

pytestmark = pytest.mark.oracle
Maker = Callable[[str], Path]

# How a matrix [out, in] of the source becomes stored tensors: by its seed, so that each differs.
SCHEMES: dict[str, tuple[Callable[[int, int, int], makers.Made], dict[str, Any], str]] = {
    "gptq4": (lambda o, i, s: makers.gptq(4, inner=i, outer=o, group=32, symmetric=True, spread=0.2 / i, seed=s),
              {"quant_method": "gptq", "bits": 4, "group_size": 32}, "Q4_0"),
    "gptq4-zeros": (lambda o, i, s: makers.gptq(4, inner=i, outer=o, group=32, spread=0.2 / i, seed=s),
                    {"quant_method": "gptq", "bits": 4, "group_size": 32}, "Q5_0"),
    "gptq3": (lambda o, i, s: makers.gptq(3, inner=i, outer=o, group=32, spread=0.2 / i, seed=s),
              {"quant_method": "gptq", "bits": 3, "group_size": 32}, "Q4_0"),
    "gptq8": (lambda o, i, s: makers.gptq(8, inner=i, outer=o, group=32, symmetric=True, spread=0.2 / i, seed=s),
              {"quant_method": "gptq", "bits": 8, "group_size": 32}, "Q8_0"),
    "awq": (lambda o, i, s: makers.awq(inner=i, outer=o, group=32, spread=0.2 / i, seed=s),
            {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, "Q5_0"),
    "bitnet": (lambda o, i, s: makers.bitnet(inner=i, outer=o, scale=16, seed=s), {"quant_method": "bitnet"}, "Q2_0"),
}  # fmt: skip


def packed_folder(source: Path, target: Path, scheme: str) -> tuple[Path, dict[str, np.ndarray]]:
    """The folder with its linear layers replaced by packed ones of random codes, and their values."""
    from safetensors.numpy import load_file, save_file

    make, config, _ = SCHEMES[scheme]
    shutil.copytree(source, target)
    tensors, kept, values = load_file(target / "model.safetensors"), {}, {}
    for seed, (name, tensor) in enumerate(sorted(tensors.items())):
        if not name.endswith("_proj.weight"):
            kept[name] = tensor
            continue
        rows, columns = tensor.shape
        made = make(rows, columns, seed)
        values[name] = made.values
        for member, node in made.tensors.items():
            array = node.read_all().view(
                {"I32": np.int32, "F16": np.float16, "F32": np.float32, "U8": np.uint8}[node.spec.dtype.name]
            )
            kept[name.removesuffix("weight") + member.removeprefix("m.")] = array.reshape(node.spec.shape)
    save_file(kept, target / "model.safetensors", {"format": "pt"})
    told = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(told | {"quantization_config": config}))
    return target, values


@pytest.fixture(scope="module")
def made(
    folder_of: Maker, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, dict[str, np.ndarray]]]:
    cache: dict[str, tuple[Path, dict[str, np.ndarray]]] = {}

    def make(scheme: str) -> tuple[Path, dict[str, np.ndarray]]:
        if scheme not in cache:
            cache[scheme] = packed_folder(folder_of("llama3-v4"), tmp_path_factory.mktemp("packed") / scheme, scheme)
        return cache[scheme]

    return make


@pytest.mark.parametrize("scheme", SCHEMES)
def test_blocks_hold_the_very_values(scheme: str, made: Any, tmp_path: Path) -> None:
    """Read back by ggml itself; the model's logits are those of the same values in f32."""
    folder, values = made(scheme)
    pre = CASES["llama3-v4"].pre
    kept = ours.to_gguf(folder, tmp_path / "kept.gguf", None, pre=pre)
    block, data = SCHEMES[scheme][2], np.fromfile(kept, np.uint8)
    rows = {row.name: row for row in weighbridge.inspect(kept).tensors}
    for name, role in (
        ("mlp.down_proj", "ffn_down"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
    ):
        row, want = rows[f"blk.1.{role}.weight"], values[f"model.layers.1.{name}.weight"]
        assert row.dtype == (block if want.shape[1] % BY_NAME[block].block == 0 else "Q4_0")
        decoded = ggml.dequantize(BY_NAME[row.dtype], data[row.offset : row.offset + row.nbytes])
        np.testing.assert_array_equal(decoded.reshape(want.shape), want)
    plain = ours.to_gguf(folder, tmp_path / "f32.gguf", "f32", pre=pre)
    with llamacpp.Model(kept) as quantized, llamacpp.Model(plain) as floats:
        # llama.cpp quantizes activations to 8 bits for block types: close, not equal.
        ours_, theirs = quantized.logits(probe_of("llama3-v4")), floats.logits(probe_of("llama3-v4"))
    assert np.mean((ours_ - theirs) ** 2) / np.var(theirs) < 0.01


def test_the_plan_says_how_exact_each_move_is(made: Any, tmp_path: Path) -> None:
    folder, values = made("gptq4-zeros")
    plan = weighbridge.plan_convert(folder, tmp_path / "x.gguf", inexact="refuse")
    assert {(m.source, m.target, m.kind) for m in plan.moves} == {("gptq", "Q5_0", "exact")}
    assert len(plan.moves) == len(values)
    assert plan.describe()["moves"][0]["kind"] == "exact"


def test_what_is_not_exact_is_decoded_rounded_or_refused_as_asked(made: Any, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder, _ = made("gptq4")
    other = tmp_path / "bf"
    shutil.copytree(folder, other)
    tensors = load_file(other / "model.safetensors")
    scales = {n: t.astype(np.float32) * np.float32(1.0001) for n, t in tensors.items() if n.endswith(".scales")}
    save_file(tensors | scales, other / "model.safetensors", {"format": "pt"})
    plan = weighbridge.plan_convert(other, tmp_path / "x.gguf")
    assert {m.kind for m in plan.moves} == {"decoded"}
    assert all("not f16 numbers" in m.why for m in plan.moves)
    near = weighbridge.plan_convert(other, tmp_path / "x.gguf", inexact="near")
    assert {(m.target, m.kind) for m in near.moves} == {("Q4_0", "near")}
    assert all(0 < (m.relative or 0) < 1e-3 for m in near.moves)
    with pytest.raises(RefusedError, match="without loss"):
        weighbridge.plan_convert(other, tmp_path / "x.gguf", inexact="refuse")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_mlx_folder_holds_the_very_values(scheme: str, made: Any, tmp_path: Path) -> None:
    """Read by MLX, its parameters in f32."""
    import mlx.core as mx

    folder, values = made(scheme)
    result = weighbridge.convert(folder, tmp_path / "mlx", to="mlx", inexact="refuse")
    assert {m.kind for m in result.moves} == {"exact"}
    told = json.loads((tmp_path / "mlx" / "config.json").read_text())["quantization"]
    loaded: Any = mx.load(str(tmp_path / "mlx" / "model.safetensors"))
    for name, want in values.items():
        module = name.removesuffix(".weight")
        scales, biases = (loaded[f"{module}.{p}"].astype(mx.float32) for p in ("scales", "biases"))
        own = told.get(module, told)
        how = {"bits": own["bits"], "group_size": own["group_size"]}
        got = mx.dequantize(loaded[name], scales, biases, **how)
        np.testing.assert_allclose(np.array(got), want, rtol=0, atol=1e-6)
    with weighbridge.open(tmp_path / "mlx") as model:
        for name, want in values.items():
            np.testing.assert_array_equal(model[name].numpy(dtype="f32"), want)


@pytest.mark.parametrize("name", ["deepseek-v4", "deepseek-v4-vision"])
def test_a_published_deepseek_v4_for_mlx_vlm(name: str, tmp_path: Path) -> None:
    """Experts in MXFP4 keep their codes; matrices in FP8 become floats, and are listed. All values return."""
    source = write_folder(case(name), tmp_path / "m")
    published_packings.deepseek_v4(source)
    with weighbridge.plan_convert(source, tmp_path / "mlx", to="mlx", towers=True) as plan:
        decoded = {move.tensor for move in plan.moves if move.kind == "decoded"}
        plan.run()
    stacks = 3 * case(name)["config"]["num_hidden_layers"]
    assert sum(move.kind == "exact" and move.source == "mxfp4" for move in plan.moves) == stacks
    assert any(tensor.endswith(".attn.wo_a.weight") for tensor in decoded)
    assert not any(".switch_mlp." in tensor for tensor in decoded)
    weighbridge.convert(tmp_path / "mlx", tmp_path / "back", to="hf")
    with weighbridge.open(source) as before, weighbridge.open(tmp_path / "back") as after:
        assert sorted(before) == sorted(after)
        for tensor in before:
            assert np.array_equal(before[tensor].numpy(), after[tensor].numpy()), tensor
