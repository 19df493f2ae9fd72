"""A folder and its mmproj file, compared: only the towers count."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from tests.models.projector_cases import golden, write_folder

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.models.llamacpp.towers import towers_of
from weighbridge.models.open import open_model

#: Cases that llama.cpp computes otherwise, and the key of their config.
DEVIATES = {
    "internvl-silu": "vision_config.hidden_size", "lfm2-audio": "encoder.d_model",
    "meralion2": "speech_mlp_scale_factor", "d1-omni": "audio_config.d_model", "qwen3-omni": "vision_config.model_type",
}  # fmt: skip


@pytest.mark.parametrize("name", golden())
def test_the_towers_of_a_folder_equal_those_of_its_file(name: str, tmp_path: Path) -> None:
    folder, towers = write_folder(golden()[name], tmp_path / "model"), tmp_path / "mmproj.gguf"
    wb.convert(folder, towers, mmproj=True, dtype="f32")
    for first, second in ((folder, towers), (towers, folder)):
        report = wb.diff(first, second, tolerance=1e-2)
        assert report.names == "canonical"
        assert {kind for kind, count in report.counts.items() if count} <= {"equal", "type"}
    wb.quantize(towers, tmp_path / "small.gguf", "Q4_0")
    assert wb.diff(folder, tmp_path / "small.gguf").counts["values"]


@pytest.mark.parametrize("name", golden())
def test_a_file_is_proved_to_have_the_towers_of_its_folder(name: str, tmp_path: Path) -> None:
    """By its keys and its tensors. Another number in either is seen."""
    folder, small, exact = write_folder(golden()[name], tmp_path / "model"), tmp_path / "q8.gguf", tmp_path / "f32.gguf"
    wb.convert(folder, small, mmproj=True, dtype="q8_0")
    wb.convert(folder, exact, mmproj=True, dtype="f32")
    for first, second in ((folder, small), (folder, exact), (exact, exact)):
        report = wb.prove(first, second, run=False)
        deviation = DEVIATES.get(name) if first != second else None
        assert report.verdict == ("different" if deviation else "same"), report
        assert all(str(deviation) in line for check in report.checks for line in check.details)
        assert [check.name for check in report.checks] == ["settings", "tensors"]
    key = next(key for key in wb.inspect(small).metadata if key.endswith("layer_norm_epsilon"))
    wb.edit(small, set={key: 0.5})
    settings, tensors = wb.prove(folder, small, run=False).checks
    assert (settings.verdict, tensors.verdict) == ("different", "same")
    assert settings.details[0].startswith(f"{key}: ")
    stored = load_file(folder / "model.safetensors")
    with open_model(folder) as model:
        changed = min(name for name, node in towers_of(model).resolved.tensors.items() if len(node.spec.shape) == 2)
    stored[changed] = stored[changed] + 1
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    settings, tensors = wb.prove(folder, exact, run=False).checks
    assert (tensors.verdict, len(tensors.details)) == ("different", 1)


def test_a_proof_of_towers_says_what_it_did_not_check(tmp_path: Path) -> None:
    folder, towers = write_folder(golden()["gemma3"], tmp_path / "model"), tmp_path / "mmproj.gguf"
    wb.convert(folder, towers, mmproj=True)
    wb.convert(folder, tmp_path / "text.gguf", tokenizer=False)
    report = wb.prove(folder, towers)
    assert report.verdict == "incomplete"
    assert [check.name for check in report.checks if check.verdict == "not-checked"] == ["run"]
    with pytest.raises(UsageError, match=r"text\.gguf is a language model's GGUF"):
        wb.prove(tmp_path / "text.gguf", towers)
    wb.edit(towers, set={"clip.use_silu": True})
    loads = wb.prove(folder, towers, static=True).checks[0]
    assert (loads.name, loads.verdict) == ("loads", "different")
