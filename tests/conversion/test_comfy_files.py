"""ComfyUI's files of 8-bit floats as targets: judged by comfy-kitchen's formula in torch, and by our own reader."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden_files import tensor_bytes
from tests.oracles import pictures, pipelines

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.conversion import comfy
from weighbridge.conversion.option_groups import COMFY_FORMATS
from weighbridge.conversion.quantize import diffusion_types

torch = pytest.importorskip("torch")
MODELS = {"flux": "flux", "sd1": "sd1", "sdxl": "sdxl", "sd3": "sd3", "wan": "wan", "qwen-image": "qwen_image"}
TYPES = {"fp8_scaled": "float8_e4m3fn", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}
SCALES = {"fp8_scaled": ".scale_weight", "float8_e4m3fn": ".weight_scale", "float8_e5m2": ".weight_scale"}
PREFIX = "model.diffusion_model."


def load(path: Path) -> dict[str, Any]:
    return dict(pytest.importorskip("safetensors.torch").load_file(path))


def rounded(weight: Any, form: str) -> tuple[Any, Any]:
    """comfy-kitchen's codes and scale of a weight in F32 (backends/eager/quantization.py, quantize_per_tensor_fp8)."""
    dtype = getattr(torch, TYPES[form])
    most = torch.finfo(dtype).max
    scale = weight.abs().max() / most
    return torch.clamp(weight * (1.0 / scale), -most, most).to(dtype), scale


def chosen(architecture: str, tensors: dict[str, Any]) -> set[str]:
    """The matrices that ComfyUI-GGUF's lists don't keep."""
    rules = diffusion_types.table().architectures[architecture]
    return {
        name for name, t in tensors.items()
        if t.dim() == 2 and name.endswith(".weight") and t.shape[0] > 1
        and name not in rules.keep_names and not any(part in name for part in rules.keep)
    }  # fmt: skip


def convicts(folder: Path, model: str, form: str, dtype: str, prefix: str = "") -> str | None:
    tensors = pictures.values(pictures.MODELS[model](), dtype)
    base = pictures.save(folder / "base.safetensors", {prefix + name: t for name, t in tensors.items()})
    wb.convert(base, folder / "q.safetensors", comfy_quant=form, overwrite=True)
    found = load(folder / "q.safetensors")
    matrices = chosen(MODELS[model], tensors)
    expected: dict[str, Any] = {f"{prefix}scaled_fp8": torch.zeros(2)} if form == "fp8_scaled" else {}
    for name, tensor in tensors.items():
        if name not in matrices:
            expected[prefix + name] = tensor
            continue
        module = prefix + name.removesuffix(".weight")
        expected[prefix + name], expected[module + SCALES[form]] = rounded(tensor.float(), form)
        if form != "fp8_scaled":
            settings = {"format": form, "full_precision_matrix_mult": True}
            stored = found.get(f"{module}.comfy_quant")
            if stored is None or json.loads(stored.numpy().tobytes()) != settings:
                return f"{module}.comfy_quant"
            expected[f"{module}.comfy_quant"] = found[f"{module}.comfy_quant"]
    if set(found) != set(expected):
        return f"names: {sorted(set(found) ^ set(expected))[0]}"
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape or not torch.equal(found[name].float(), tensor.float()):
            return name
        if name.removeprefix(prefix) in matrices and found[name].dtype != getattr(torch, TYPES[form]):
            return f"type of {name}"
    return None


@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize("model", MODELS)
def test_the_codes_are_comfy_kitchen_s(model: str, form: str, tmp_path: Path) -> None:
    assert convicts(tmp_path, model, form, "float32") is None


@pytest.mark.parametrize("prefix", ["", PREFIX])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_types_and_the_prefix_of_a_checkpoint(dtype: str, prefix: str, tmp_path: Path) -> None:
    assert convicts(tmp_path, "flux", "fp8_scaled", dtype, prefix) is None


@pytest.mark.mutation
@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize("field", ["dtype", "largest", "scale", "settings"])
def test_every_column_is_seen(form: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, wrong = comfy.FORMATS[form], comfy.FORMATS["float8_e5m2" if form != "float8_e5m2" else "fp8_scaled"]
    assert isinstance(row, comfy.ComfyFormat)
    assert isinstance(wrong, comfy.ComfyFormat)
    other: dict[str, Any] = {
        "dtype": wrong.dtype,
        "largest": row.largest / 2, "scale": ".scale", "settings": ".x" if row.settings else ".comfy_quant",
    }  # fmt: skip
    monkeypatch.setattr(comfy, "FORMATS", {**comfy.FORMATS, form: row._replace(**{field: other[field]})})
    assert convicts(tmp_path, "flux", form, "float32") is not None


@pytest.mark.parametrize("form", TYPES)
def test_there_and_back_by_our_reader(form: str, tmp_path: Path) -> None:
    tensors = pictures.values(pictures.flux())
    base = pictures.save(tmp_path / "base.safetensors", tensors)
    wb.convert(base, tmp_path / "q.safetensors", comfy_quant=form)
    assert wb.verify(tmp_path / "q.safetensors").ok
    report = wb.inspect(tmp_path / "q.safetensors")
    marker = 2 if form == "fp8_scaled" else 0
    assert report.parameters == wb.inspect(base).parameters + marker
    wb.convert(tmp_path / "q.safetensors", tmp_path / "back.safetensors", dtype="f32")
    back = load(tmp_path / "back.safetensors")
    matrices = chosen("flux", tensors)
    assert set(tensors) <= set(back)
    for name, tensor in tensors.items():
        codes, scale = rounded(tensor, form)
        wanted = codes.float() * scale if name in matrices else tensor
        assert torch.equal(back[name], wanted), name
    wb.convert(tmp_path / "q.safetensors", tmp_path / "twice.safetensors", comfy_quant=form)
    assert (tmp_path / "twice.safetensors").read_bytes() == (tmp_path / "q.safetensors").read_bytes()
    with pytest.raises(RefusedError, match="is quantized already"):
        wb.convert(tmp_path / "q.safetensors", tmp_path / "other.safetensors", comfy_quant="mxfp8")
    assert not (tmp_path / "other.safetensors").exists()


BLOCKS = [form for form in comfy.FORMATS if form not in TYPES]


@pytest.mark.parametrize("form", BLOCKS)
@pytest.mark.parametrize(
    "model",
    [("flux", pictures.flux(64, 32, 1)), ("flux", pictures.flux(256, 64, 1)), ("wan", pictures.wan())],
    ids=["flux", "flux-wide", "wan"],
)
def test_formats_with_several_scales(model: tuple[str, pictures.Shapes], form: str, tmp_path: Path) -> None:
    """Which matrices, what else, and there and back; tests/packings/test_comfy.py judges the bytes of a matrix."""
    row = comfy.FORMATS[form]
    tensors = pictures.values(model[1], "bfloat16")
    base = pictures.save(tmp_path / "base.safetensors", tensors)
    matrices = {
        name for name in chosen(model[0], tensors)
        if not any(size % each for size, each in zip(tensors[name].shape, row.multiple, strict=True))
    }  # fmt: skip
    left = chosen(model[0], tensors) - matrices
    if not matrices:
        with pytest.raises(UnsupportedError, match="multiples of"):
            wb.convert(base, tmp_path / "q.safetensors", comfy_quant=form)
        return
    result = wb.convert(base, tmp_path / "q.safetensors", comfy_quant=form)
    found = load(tmp_path / "q.safetensors")
    assert any(note.startswith("not quantized") for note in result.notes) == bool(left)
    modules = {name.removesuffix(".weight") for name in matrices}
    scales = {f"{module}.{end}" for module in modules for end in ("weight_scale", "comfy_quant")}
    scales |= {f"{module}.weight_scale_2" for module in modules} if form == "nvfp4" else set()
    assert set(found) == set(tensors) | scales
    for name in set(tensors) - matrices:
        assert torch.equal(found[name], tensors[name])
    for module in modules:
        assert json.loads(found[f"{module}.comfy_quant"].numpy().tobytes()) == row.config(form)
    assert wb.verify(tmp_path / "q.safetensors").ok
    assert wb.inspect(tmp_path / "q.safetensors").parameters == wb.inspect(base).parameters
    wb.convert(tmp_path / "q.safetensors", tmp_path / "back.safetensors", dtype="f32")
    back = load(tmp_path / "back.safetensors")
    bound = {"nvfp4": 0.3, "mxfp8": 0.07}.get(form, 0.02)
    for name in matrices:
        error = (back[name] - tensors[name].float()).norm() / tensors[name].float().norm()
        assert error < bound, name
    wb.convert(tmp_path / "q.safetensors", tmp_path / "twice.safetensors", comfy_quant=form)
    assert tensor_bytes(tmp_path / "twice.safetensors") == tensor_bytes(tmp_path / "q.safetensors")
    wb.convert(tmp_path / "q.safetensors", tmp_path / "q.gguf", dtype="f16")
    assert wb.verify(tmp_path / "q.gguf").ok


def test_every_form_is_an_option() -> None:
    assert tuple(comfy.FORMATS) == COMFY_FORMATS


def test_a_matrix_of_zeros(tmp_path: Path) -> None:
    tensors = pictures.values(pictures.flux())
    name = "double_blocks.0.img_mlp.0.weight"
    tensors[name] = torch.zeros_like(tensors[name])
    base = pictures.save(tmp_path / "base.safetensors", tensors)
    wb.convert(base, tmp_path / "q.safetensors", comfy_quant="fp8_scaled")
    found = load(tmp_path / "q.safetensors")
    assert not found[name].float().any()
    assert found[name.replace(".weight", ".scale_weight")] > 0


def test_a_pipeline(tmp_path: Path) -> None:
    """One file: the denoiser quantized, the other parts unchanged."""
    folder = pipelines.write(tmp_path / "p", pipelines.PIPELINES["flux"]())
    wb.convert(folder, tmp_path / "plain.safetensors")
    wb.convert(folder, tmp_path / "q.safetensors", comfy_quant="fp8_scaled")
    plain, found = load(tmp_path / "plain.safetensors"), load(tmp_path / "q.safetensors")
    matrices = {PREFIX + name for name in chosen("flux", {n.removeprefix(PREFIX): t for n, t in plain.items()})}
    mine = {name for name in plain if name.startswith(PREFIX) and name in matrices}
    assert mine
    for name, tensor in plain.items():
        assert torch.equal(found[name].float(), (rounded(tensor, "fp8_scaled")[0] if name in mine else tensor).float())
    scales = {name.replace(".weight", ".scale_weight") for name in mine}
    assert set(found) == set(plain) | scales | {f"{PREFIX}scaled_fp8"}


def test_what_is_refused(tmp_path: Path) -> None:
    base = pictures.save(tmp_path / "vae.safetensors", pictures.values(pictures.vae()))
    with pytest.raises(UnsupportedError, match="no image or video model"):
        wb.convert(base, tmp_path / "q.safetensors", comfy_quant="fp8_scaled")
    flux = pictures.save(tmp_path / "flux.safetensors", pictures.values(pictures.flux()))
    for target in ("q.gguf", "q.npz"):
        with pytest.raises(UsageError, match=r"comfy.quant"):
            wb.convert(flux, f"{tmp_path}/{target}", comfy_quant="fp8_scaled")
    with pytest.raises(UsageError):
        wb.convert(flux, tmp_path / "q.safetensors", comfy_quant="svdquant_w4a4")
    assert not list(tmp_path.glob("q*"))


SVD = ("double_blocks.0.img_mlp.0", "double_blocks.0.txt_mlp.0")


def svdquant(path: Path, **settings: Any) -> dict[str, Any]:
    """Saves a FLUX with random parameters of svdquant_w4a4 in two layers, the second in tiles; returns their values by
    comfy-kitchen's formula in F32 (backends/eager/svdquant.py)."""
    tensors, rng, out = pictures.values(pictures.flux(64, 32, 1), "bfloat16"), np.random.default_rng(1), {}
    for module, names, tiles in zip(SVD, (".weight_", "."), (None, 128), strict=True):
        rows, columns = tensors[f"{module}.weight"].shape
        codes = torch.from_numpy(rng.integers(-8, 8, (rows, columns)).astype(np.int8))
        scale, up, down = (
            torch.from_numpy(rng.normal(size=size)).bfloat16() for size in ((rows, 1), (rows, 4), (columns, 4))
        )
        smooth = torch.from_numpy(2 ** rng.uniform(-2, 2, columns)).bfloat16()
        out[f"{module}.weight"] = codes.float() * scale.float() / smooth.float() + up.float() @ down.float().T
        packed = (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
        stored = {".weight": packed, ".weight_scale": scale.T, f"{names}proj_up": up}
        if tiles:
            stored[".weight"] = packed.reshape(-1, 1, 32, 128)
            stored[".weight_scale"] = scale.reshape(-1, 1, 128)
            stored[f"{names}proj_up"] = up.reshape(-1, tiles, 4).transpose(1, 2)
        text = json.dumps({"format": "svdquant_w4a4", **settings}).encode()
        stored |= {f"{names}proj_down": down, f"{names}smooth_factor": smooth, ".comfy_quant": torch.tensor(list(text))}
        stored[".comfy_quant"] = stored[".comfy_quant"].to(torch.uint8)
        tensors |= {f"{module}{ending}": tensor.contiguous() for ending, tensor in stored.items()}
    pictures.save(path, tensors)
    return out


def test_svdquant_becomes_a_plain_file_and_a_gguf(tmp_path: Path) -> None:
    source = tmp_path / "q.safetensors"
    expected = svdquant(source)
    assert wb.verify(source).ok
    report = wb.inspect(source)
    assert (4, 64, 2) in {(row.bits, row.group, row.weights) for row in report.schemes}
    assert report.parameters == sum(math.prod(shape) for shape in pictures.flux(64, 32, 1).values())
    for target in ("b.safetensors", "b.gguf"):
        wb.convert(source, tmp_path / target, dtype="bf16")
        changes = [change for change in wb.diff(source, tmp_path / target).tensors if change.kind != "type"]
        assert {change.name for change in changes} == set(expected), target
        assert all(change.nmse is not None and change.nmse < 1e-5 for change in changes), target
    plain = load(tmp_path / "b.safetensors")
    assert not [name for name in plain if "proj_" in name or "smooth" in name or "comfy" in name]
    for name, values in expected.items():
        bound = 2.0**-8 * values.abs() + 1e-5 * values.abs().max()
        assert ((plain[name].float() - values).abs() <= bound).all(), name
        torch.testing.assert_close(torch.from_numpy(wb.get(f"{source}::{name}").copy()), values, rtol=1e-5, atol=1e-4)


def test_svdquant_of_unsigned_inputs_is_counted_and_refused_by_name(tmp_path: Path) -> None:
    svdquant(tmp_path / "q.safetensors", act_unsigned=True)
    assert (4, 64, 2) in {(row.bits, row.group, row.weights) for row in wb.inspect(tmp_path / "q.safetensors").schemes}
    with pytest.raises(UnsupportedError, match=rf"{SVD[0]} is quantized .* with a shifted bias"):
        wb.convert(tmp_path / "q.safetensors", tmp_path / "b.safetensors", dtype="bf16")
    assert not (tmp_path / "b.safetensors").exists()
    found = wb.verify(tmp_path / "q.safetensors").findings
    assert [finding.rule for finding in found] == ["config/packing-unread"] * 2


@pytest.mark.parametrize("part", ["weight_proj_down", "weight_proj_up", "weight_smooth_factor", "weight_scale"])
def test_verify_names_a_part_of_another_shape_whatever_the_file_s_name(part: str, tmp_path: Path) -> None:
    svdquant(tmp_path / "q.safetensors")
    tensors = load(tmp_path / "q.safetensors")
    tensors[f"{SVD[0]}.{part}"] = tensors[f"{SVD[0]}.{part}"][1:].contiguous()
    (finding,) = wb.verify(pictures.save(tmp_path / "q.safetensors", tensors)).findings
    assert finding.rule == "config/packing"
    assert SVD[0] in finding.message
