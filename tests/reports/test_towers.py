"""A folder and its mmproj file, compared: only the towers count."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.projector_cases import golden, write_folder

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.models.llamacpp.towers import towers_of
from weighbridge.models.open import open_model

POSITIONS = "vision_config.use_absolute_position_embeddings"
#: Cases that llama.cpp computes otherwise, and the keys of their config.
DEVIATES = {
    "internvl": (POSITIONS,), "internvl-chat": (POSITIONS,), "internvl-silu": (POSITIONS, "vision_config.hidden_size"),
    "llama4": ("vision_config.pixel_shuffle_ratio",), "lfm2-audio": ("encoder.d_model",),
    "meralion2": ("speech_mlp_scale_factor",),
    "d1-omni": ("audio_config.d_model",), "qwen3-omni": ("vision_config.model_type",),
    "qwen2.5-omni": ("audio_config.n_window",),
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
        deviations = DEVIATES.get(name, ()) if first != second else ()
        assert report.verdict == ("different" if deviations else "same"), report
        lines = [line for check in report.checks for line in check.details]
        assert len(lines) == len(deviations)
        assert all(key in line for key, line in zip(deviations, lines, strict=True))
        assert [check.name for check in report.checks] == ["settings", "tensors"]
    key = next(key for key in wb.inspect(small).metadata if key.endswith("layer_norm_epsilon"))
    wb.edit(small, set={key: 0.5})
    settings, tensors = wb.prove(folder, small, run=False).checks
    assert (settings.verdict, tensors.verdict) == ("different", "same")
    assert settings.details[0].startswith(f"{key}: ")
    stored = load_file(folder / "model.safetensors")
    with open_model(folder) as model:
        towers_ = towers_of(model).resolved.tensors
    changed = min(name for name in stored if name in towers_ and len(towers_[name].spec.shape) == 2)
    stored[changed] = stored[changed] + 1
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    settings, tensors = wb.prove(folder, exact, run=False).checks
    assert (tensors.verdict, len(tensors.details)) == ("different", 1)


#: Settings of transformers' image processor of a case.
PROCESSORS: dict[str, dict[str, object]] = {
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 56, "width": 56}},
    "llava-siglip-layers": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 56, "width": 56}},
    "pixtral": {
        "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 56},
        "patch_size": {"height": 14, "width": 14},
    },
    "qwen2.5-vl": {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 313600},
    "internvl": {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 56, "width": 56}},
}  # fmt: skip


@pytest.mark.parametrize("name", PROCESSORS)
def test_both_compute_the_same_of_an_image(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder, towers = write_folder(golden()[name], tmp_path / "model"), tmp_path / "mmproj.gguf"
    prepared = {**golden()[name]["preprocessor"], **PROCESSORS[name]}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    wb.convert(folder, towers, mmproj=True, dtype="f32")
    wb.quantize(towers, small := tmp_path / "small.gguf", "Q8_0")
    expected = "different" if name in DEVIATES else "same"
    turned = [(towers, folder), (towers, small)] if name == "gemma3" else []  # a proof takes seconds
    for first, second in ((folder, towers if name in DEVIATES else small), *turned):
        image = wb.prove(first, second).checks[-1]
        assert (image.name, image.verdict, bool(image.details)) == ("image", expected, name in DEVIATES), image
    wb.edit(towers, set={"clip.vision.image_mean": [0.1, 0.2, 0.9]})
    assert wb.prove(folder, towers).checks[-1].verdict == "different"


#: Settings of transformers' feature extractor of a case, and a change that the embeddings show.
EXTRACTORS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "qwen2-audio": ({"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16}, {"n_fft": 512}),
    "audio-flamingo": ({"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16}, {"n_fft": 512}),
    "qwen2.5-omni": ({"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16}, {}),
    "gemma4-audio": ({"feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": 64}, {"mel_floor": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTRACTORS)
def test_both_compute_the_same_of_a_sound(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder, towers = write_folder(golden()[name], tmp_path / "model"), tmp_path / "mmproj.gguf"
    extractor, change = EXTRACTORS[name]
    prepared = golden()[name]["preprocessor"] | extractor
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    tensors = load_file(folder / "model.safetensors")
    for key, bound in (("put_min", -3), ("put_max", 3)):  # random ones exclude every number
        tensors |= {name: np.full_like(tensor, bound) for name, tensor in tensors.items() if name.endswith(key)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    wb.convert(folder, towers, mmproj=True, dtype="f32")
    sound = wb.prove(folder, towers).checks[-1]
    expected = "different" if name in DEVIATES else "same"
    assert (sound.name, sound.verdict, bool(sound.details)) == ("sound", expected, name in DEVIATES), sound
    if change:
        (folder / "preprocessor_config.json").write_text(json.dumps(prepared | change))
        assert wb.prove(folder, towers).checks[-1].verdict == "different"


def test_a_sound_is_run_in_llama_cpp(tmp_path: Path) -> None:
    folder, towers = write_folder(golden()["qwen2-audio"], tmp_path / "model"), tmp_path / "mmproj.gguf"
    wb.convert(folder, towers, mmproj=True, dtype="f32")
    wb.quantize(towers, tmp_path / "small.gguf", "Q8_0")
    report = wb.prove(towers, tmp_path / "small.gguf")
    assert (report.verdict, report.checks[-1].name) == ("same", "sound")
    assert wb.prove(folder, towers).checks[-1].verdict == "not-checked"


def test_a_proof_of_towers_says_what_it_did_not_check(tmp_path: Path) -> None:
    folder, towers = write_folder(golden()["gemma3"], tmp_path / "model"), tmp_path / "mmproj.gguf"
    wb.convert(folder, towers, mmproj=True)
    wb.convert(folder, tmp_path / "text.gguf", tokenizer=False)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuchProcessor"}')
    report = wb.prove(folder, towers)
    assert report.verdict in ("incomplete", "different")
    assert [check.name for check in report.checks if check.verdict == "not-checked"] == ["image"]
    with pytest.raises(UsageError, match=r"text\.gguf is a language model's GGUF"):
        wb.prove(tmp_path / "text.gguf", towers)
    wb.edit(towers, set={"clip.use_silu": True})
    loads = wb.prove(folder, towers, static=True).checks[0]
    assert (loads.name, loads.verdict) == ("loads", "different")
