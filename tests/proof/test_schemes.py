"""Model folders quantized by us, as the libraries of their schemes read them: the same values, the same config; and
what comes quantized moved between schemes with its very codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import gguf_file, models, ours, reference_converter
from tests.oracles.case import Case
from tests.oracles.models import CASES
from tests.packings import rounded
from tests.proof.test_packed_sources import packed_folder

import weighbridge
from weighbridge.base.errors import RefusedError, UsageError

for _library in ("torch", "transformers", "compressed_tensors"):
    pytest.importorskip(_library, reason="SCHEMES WERE NOT PROVED: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle
Maker = Callable[[str], Path]
Parsed = Callable[[Path], gguf_file.File]

# Wide enough for blocks of 128 x 128.
WIDE = Case(
    "wide", "LlamaConfig", "spm",
    models._DECODER | models._theta(10000.0) | {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1},
)  # fmt: skip


@pytest.fixture(scope="module")
def wide(workshop: Path) -> Path:
    return models.build(WIDE, workshop / "wide", dtype="bfloat16")


def stored(folder: Path) -> dict[str, Any]:
    """Every tensor by safetensors, as numpy's bytes, type and shape."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found


def floats(folder: Path) -> dict[str, np.ndarray]:
    with weighbridge.open(folder) as model:
        return {name: model[name].numpy(dtype="f32") for name in model}


# ------------------------------------------------------------------------------------------------ quantized by us

SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "w4a16": ("w4a16", {}),
    "w3a16 of 32": ("w3a16", {"q_group_size": 32}),
    "w8a16 a row": ("w8a16", {"q_group_size": -1}),
    "w8a8": ("w8a8", {}),
    "fp8_dynamic": ("fp8_dynamic", {}),
    "fp8_block": ("fp8_block", {}),
    "mxfp4a16": ("mxfp4a16", {}),
    "mxfp6a16": ("mxfp6a16", {}),
    "mxfp8a16": ("mxfp8a16", {}),
    "nvfp4a16": ("nvfp4a16", {}),
    "fp8": ("fp8", {}),
}


@pytest.mark.parametrize("case", SCHEMES)
def test_transformers_loads_the_very_values(case: str, wide: Path, tmp_path: Path) -> None:
    """In f32, unpacked by the library (NVFP4 it unpacks in bf16)."""
    scheme, options = SCHEMES[case]
    weighbridge.convert(wide, tmp_path / "q", scheme=scheme, **options)
    model = models.load(tmp_path / "q")
    if hasattr(model, "ct_decompress_hook"):
        from compressed_tensors.compressors import decompress_module

        for module in model.modules():
            decompress_module(module)
    found, loaded = floats(tmp_path / "q"), dict(model.named_parameters())
    for name, want in found.items():
        near = 2.0**-7 if scheme == "nvfp4a16" and "_proj" in name else 0
        np.testing.assert_allclose(loaded[name].detach().float().numpy(), want, rtol=near, atol=0, err_msg=name)
    original = floats(wide)
    changed = {name for name, want in original.items() if not np.array_equal(found[name], want)}
    assert changed == {name for name in original if "_proj" in name}
    rough = {"w4a16": 0.13, "w3a16": 0.22, "mxfp4a16": 0.13, "nvfp4a16": 0.1, "mxfp6a16": 0.05}.get(scheme, 0.04)
    for name in changed:
        assert np.linalg.norm(found[name] - original[name]) < rough * np.linalg.norm(original[name]), name


def test_fused_layers_share_their_global_scale(wide: Path, tmp_path: Path) -> None:
    weighbridge.convert(wide, tmp_path / "q", scheme="nvfp4a16")
    import torch

    scales = {n: t for n, t in stored(tmp_path / "q").items() if n.endswith("global_scale")}
    original = stored(wide)
    for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("o_proj",), ("down_proj",)):
        names = [n for n in scales if n.split(".")[-2] in group]
        weights = [original[n.replace("weight_global_scale", "weight")] for n in names]
        want, _ = rounded.compressed("nvfp4-pack-quantized", {"num_bits": 4, "type": "float",
                                     "strategy": "tensor_group", "group_size": 16,
                                     "scale_dtype": torch.float8_e4m3fn}, weights[0], weights)  # fmt: skip
        assert [scales[n].tolist() for n in names] == [want["weight_global_scale"].tolist()] * len(group)
        assert torch.equal(stored(tmp_path / "q")[names[0].replace("global_scale", "packed")], want["weight_packed"])


@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (8, True), (2, False), (4, False)])
def test_the_reference_converter_reads_our_gptq(
    bits: int, symmetric: bool, wide: Path, tmp_path: Path, parsed: Parsed
) -> None:
    weighbridge.convert(wide, tmp_path / "q", scheme="gptq", q_bits=bits, sym=symmetric, q_group_size=64)
    found = told(tmp_path / "q")
    assert (found["checkpoint_format"], found["sym"]) == (("gptq", True) if symmetric else ("gptq_v2", False))
    theirs = parsed(reference_converter.convert(tmp_path / "q", tmp_path / "r.gguf", "f32"))
    mine = parsed(ours.to_gguf(tmp_path / "q", tmp_path / "o.gguf", "f32"))
    for name, tensor in mine.tensors.items():
        np.testing.assert_array_equal(theirs.tensors[name].data, tensor.data, err_msg=name)


def test_compressed_tensors_reads_our_awq(wide: Path, tmp_path: Path) -> None:
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    weighbridge.convert(wide, tmp_path / "awq", scheme="awq", q_group_size=32)
    found = told(tmp_path / "awq")
    assert (found["quant_method"], found["version"], found["modules_to_not_convert"]) == ("awq", "gemm", ["lm_head"])
    converter = AutoAWQConverter.from_autoawq_config(found)
    want = converter.process(stored(tmp_path / "awq"))
    weighbridge.convert(tmp_path / "awq", tmp_path / "ct", scheme="w4a16", inexact="refuse")
    mine = stored(tmp_path / "ct")
    assert sorted(mine) == sorted(want)
    for name, tensor in want.items():
        np.testing.assert_array_equal(mine[name].float().numpy(), tensor.float().numpy(), err_msg=name)
    rough, original = floats(tmp_path / "ct"), floats(wide)
    for name in (n for n in original if "_proj" in n):
        assert np.linalg.norm(rough[name] - original[name]) < 0.1 * np.linalg.norm(original[name])


def test_routers_heads_and_embeddings_stay_floats(folder_of: Maker, tmp_path: Path) -> None:
    groups: dict[str, Any] = {"w4a16": {"q_group_size": 32}, "awq": {"q_group_size": 32}, "mxfp4a16": {}}
    for scheme, options in groups.items():
        key = "modules_to_not_convert" if scheme == "awq" else "ignore"
        weighbridge.convert(folder_of("qwen3moe"), tmp_path / scheme, scheme=scheme, **options)
        names = {n.rpartition(".")[0] for n in stored(tmp_path / scheme) if "weight_packed" in n or "qweight" in n}
        assert {n.split(".")[-1] for n in names} == {
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
        }  # fmt: skip
        left = told(tmp_path / scheme)[key]
        assert "lm_head" in left
        assert {n for n in left if n != "lm_head"} == {f"model.layers.{i}.mlp.gate" for i in range(2)}


def test_layers_that_do_not_fit_stay_floats_and_are_told(folder_of: Maker, tmp_path: Path) -> None:
    result = weighbridge.convert(folder_of("llama"), tmp_path / "q", scheme="w4a16", q_group_size=64)
    assert any("down_proj" in note and "multiple of the group size 64" in note for note in result.notes)
    assert {n.split(".")[-1] for n in told(tmp_path / "q")["ignore"]} == {"lm_head", "down_proj"}
    gptq = weighbridge.convert(folder_of("llama"), tmp_path / "g", scheme="gptq", q_group_size=64)
    assert gptq.notes
    assert {k.split(".")[-1].rstrip("$") for k in told(tmp_path / "g")["dynamic"]} == {"down_proj"}


# ------------------------------------------------------------------------------------------------ moved

WAYS: dict[str, tuple[str, ...]] = {
    "gptq4": ("w4a16", "awq"), "gptq4-zeros": ("w4a16", "awq"), "gptq3": ("w3a16",), "gptq8": ("w8a16",),
    "awq": ("w4a16", "gptq"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), [(s, t) for s, ts in WAYS.items() for t in ts])
def test_every_move_keeps_codes_and_values(source: str, target: str, folder_of: Maker, tmp_path: Path) -> None:
    """There, and back to the very words, scales and zero points."""
    folder, values = packed_folder(folder_of("llama3-v4"), tmp_path / "s", source)
    result = weighbridge.convert(folder, tmp_path / "t", scheme=target, inexact="refuse")
    assert {(m.target, m.kind) for m in result.moves} == {(target, "exact")}
    found = floats(tmp_path / "t")
    for name, want in values.items():
        np.testing.assert_array_equal(found[name], want, err_msg=name)
    home = "awq" if source == "awq" else "gptq"
    weighbridge.convert(tmp_path / "t", tmp_path / "back", scheme=home, inexact="refuse")
    original, back = stored(folder), stored(tmp_path / "back")
    assert sorted(original) == sorted(back)
    zeros = source in ("gptq4-zeros", "gptq3")  # come back in format 2, whose zeros are one more
    for name, tensor in original.items():
        if not (zeros and name.endswith("qzeros")):
            np.testing.assert_array_equal(back[name].float().numpy(), tensor.float().numpy(), err_msg=name)


def test_mlx_goes_back_where_its_biases_are_whole(folder_of: Maker, tmp_path: Path) -> None:
    folder, values = packed_folder(folder_of("llama3-v4"), tmp_path / "s", "gptq4")
    weighbridge.convert(folder, tmp_path / "mlx", to="mlx", inexact="refuse")
    weighbridge.convert(tmp_path / "mlx", tmp_path / "t", scheme="gptq", inexact="refuse")
    back, original = stored(tmp_path / "t"), stored(folder)
    for name in original:
        np.testing.assert_array_equal(back[name].float().numpy(), original[name].float().numpy(), err_msg=name)
    assert values


def test_mlx_of_its_own_has_no_whole_biases(folder_of: Maker, tmp_path: Path) -> None:
    mlx = models.quantize_mlx(folder_of("llama3-v4"), tmp_path / "mlx", bits=4, group=32)
    with pytest.raises(RefusedError, match="are rounded"):
        weighbridge.plan_convert(mlx, tmp_path / "t", scheme="gptq", inexact="refuse")
    plan = weighbridge.plan_convert(mlx, tmp_path / "t", scheme="gptq", allow_requantize=True)
    assert any("second time" in loss.message for loss in plan.losses)


def test_a_gguf_keeps_its_codes(folder_of: Maker, tmp_path: Path) -> None:
    gguf = ours.to_gguf(folder_of("llama3-v4"), tmp_path / "q.gguf", "q8_0", pre=CASES["llama3-v4"].pre)
    result = weighbridge.convert(gguf, tmp_path / "t", scheme="w8a16", dtype="f32", inexact="refuse")
    assert ("Q8_0", "w8a16", "exact") in {(m.source, m.target, m.kind) for m in result.moves}
    with weighbridge.open(gguf, names="canonical") as a, weighbridge.open(tmp_path / "t", names="canonical") as b:
        for name in a:
            np.testing.assert_array_equal(b[name].numpy(dtype="f32"), a[name].numpy(dtype="f32"), err_msg=name)


def test_what_does_not_fit_is_told_rounded_or_refused(folder_of: Maker, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder, _ = packed_folder(folder_of("llama3-v4"), tmp_path / "s", "gptq4")
    with pytest.raises(RefusedError, match="it has 4 bits"):
        weighbridge.plan_convert(folder, tmp_path / "t", scheme="gptq", q_bits=8, inexact="refuse")
    with pytest.raises(RefusedError, match="groups of 32"):
        weighbridge.plan_convert(folder, tmp_path / "t", scheme="w4a16", q_group_size=64, inexact="refuse")
    other = tmp_path / "f32"
    shutil.copytree(folder, other)
    tensors = load_file(other / "model.safetensors")
    scales = {n: t.astype(np.float32) * np.float32(1.0001) for n, t in tensors.items() if n.endswith(".scales")}
    save_file(tensors | scales, other / "model.safetensors", {"format": "pt"})
    exact = weighbridge.plan_convert(other, tmp_path / "t", scheme="w4a16", inexact="refuse")
    assert {m.kind for m in exact.moves} == {"exact"}  # compressed-tensors has scales of F32
    near = weighbridge.plan_convert(other, tmp_path / "t", scheme="awq", inexact="near")
    assert {m.kind for m in near.moves} == {"near"}
    assert all(0 < (m.relative or 0) < 1e-3 for m in near.moves)
    with pytest.raises(RefusedError, match="aren't exact in F16"):
        weighbridge.plan_convert(other, tmp_path / "t", scheme="awq", inexact="refuse")
    with pytest.raises(RefusedError, match="no linear layer"):
        weighbridge.plan_convert(other, tmp_path / "t", scheme="awq")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "int4"}, "unknown scheme"),
        ({"scheme": "w8a8", "q_group_size": 32}, "a fixed group size"),
        ({"scheme": "awq", "sym": True}, "a fixed symmetric"),
        ({"scheme": "gptq", "q_bits": 5}, "don't support 5 bits"),
        ({"scheme": "w4a16", "q_group_size": 4}, "invalid group size 4"),
        ({"scheme": "w4a16", "q_mode": "mxfp4"}, "q_mode doesn.t apply"),
        ({"scheme": "w4a16", "to": "gguf"}, "Hugging Face folder"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], words: str, folder_of: Maker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        weighbridge.plan_convert(folder_of("llama"), tmp_path / "q", **options)
