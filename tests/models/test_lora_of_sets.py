"""A LoRA merged into ComfyUI's files gives what it gives in the pipeline that they were made of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conversion import test_comfy_folders as sets
from tests.golden_files import tensor_bytes
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UnsupportedError

torch = pytest.importorskip("torch")
MODULES = ("transformer.transformer_blocks.0.attn.to_out.0", "text_encoder.text_model.encoder.layers.0.mlp.fc1")


@pytest.fixture
def flux(tmp_path: Path) -> tuple[Path, Path]:
    source = sets.write(tmp_path / "Model", "flux")
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    return source, tmp_path / "set"


def lora(source: Path, modules: tuple[str, ...] = MODULES) -> Path:
    """A LoRA with diffusers' names."""
    out: dict[str, Any] = {}
    for number, module in enumerate(modules):
        part, _, name = module.partition(".")
        (file,) = (source / part).glob("*.safetensors")
        stored = sets.load(file)
        rows, columns = stored[
            f"{name if f'{name}.weight' in stored else name.removeprefix('text_model.')}.weight"
        ].shape
        generator = torch.Generator().manual_seed(number)
        out |= {f"{module}.lora_A.weight": torch.randn(3, columns, generator=generator)}
        out |= {f"{module}.lora_B.weight": torch.randn(rows, 3, generator=generator)}
    return pictures.save(source.parent / "lora.safetensors", out)


@pytest.mark.parametrize("names", ["diffusers", "kohya", "comfy"])
def test_every_target_is_that_of_the_pipeline(names: str, flux: tuple[Path, Path], tmp_path: Path) -> None:
    source, files = flux
    adapter = lora(source)
    if names != "diffusers":
        named = tmp_path / f"{names}.safetensors"
        wb.rename(adapter, named, to_names=names, lora_base=source / "transformer")
        adapter = named
    targets: dict[str, dict[str, Any]] = {
        "folder/": {}, "one.safetensors": {}, "again/": {"comfy_folders": True},
        "ggufs/": {"to": "gguf", "dtype": "q8_0"},
    }  # fmt: skip
    for name, options in targets.items():
        for folder in (source, files):
            config = source if folder == files else None
            wb.convert(folder, f"{tmp_path / folder.name}-{name}", lora=[adapter], config=config, **options)
    for name in ("folder", "one.safetensors", "again"):
        counts = wb.diff(tmp_path / f"Model-{name}", tmp_path / f"set-{name}").counts
        assert counts["equal"] == sum(counts.values()) > 0
    gguf = "transformer/transformer.gguf"
    assert tensor_bytes(tmp_path / "set-ggufs" / gguf) == tensor_bytes(tmp_path / "Model-ggufs" / gguf)
    changed = [change for change in wb.diff(files, tmp_path / "set-again").tensors if change.kind != "equal"]
    assert len(changed) == 2


def test_what_is_refused(flux: tuple[Path, Path], tmp_path: Path) -> None:
    source, files = flux
    adapter = lora(source)
    plain = files / "diffusion_models/Model.safetensors"
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("q.safetensors", {"comfy_quant": "fp8_scaled"}, "unquantized"), ("q.gguf", {"dtype": "q8_0"}, "--config PATH"),
    ]  # fmt: skip
    for name, options, hint in cases:
        shutil.copytree(files, other := tmp_path / name / "set")
        wb.convert(plain, other / "diffusion_models" / name, **options)
        (other / "diffusion_models/Model.safetensors").unlink()
        with pytest.raises((RefusedError, UnsupportedError)) as raised:
            wb.convert(other, f"{tmp_path / 'out'}/", config=source, lora=[adapter])
        assert hint in (raised.value.hint or "")
    shutil.copytree(files, other := tmp_path / "wan")
    wan = sets.write(tmp_path / "two/Model", "wan", noise=True)
    wb.convert(wan, f"{tmp_path / 'two/set'}/", comfy_folders=True)
    other_lora = lora(wan, ("transformer.blocks.0.attn1.to_q",))
    with pytest.raises(UnsupportedError, match="several denoisers"):
        wb.convert(tmp_path / "two/set", f"{tmp_path / 'out'}/", config=wan, lora=[other_lora])
    assert not (tmp_path / "out").exists()


def test_a_lora_has_no_memory_of_its_own(flux: tuple[Path, Path], tmp_path: Path) -> None:
    source, files = flux
    adapter = lora(source)
    wb.rename(adapter, kohya := tmp_path / "kohya.safetensors", to_names="kohya", lora_base=source / "transformer")
    for file in (adapter, kohya):
        with pytest.raises(UnsupportedError, match="is a LoRA") as raised:
            wb.fit(file)
        assert "--lora FILE" in (raised.value.hint or "")
    for base in (source, files, source / "transformer"):
        with pytest.raises(UnsupportedError, match="aren't extracted"):
            wb.extract_lora(base, base, tmp_path / "adapter")
