"""The forms of an image model are compared tensor by tensor: a pipeline, ComfyUI's set, a whole checkpoint, a part."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conversion import test_comfy_folders as sets
from tests.oracles import pictures, pipelines

import weighbridge as wb
from weighbridge.base.errors import UsageError

torch = pytest.importorskip("torch")


def make(folder: Path, model: str, noise: bool = False) -> tuple[Path, Path]:
    """A pipeline and its set."""
    source = sets.write(folder / "Model", model, noise)
    wb.convert(source, f"{folder / 'set'}/", comfy_folders=True)
    return source, folder / "set"


def assert_same(first: Path, second: Path) -> None:
    report = wb.diff(first, second)
    assert report.counts["equal"] == sum(report.counts.values()) > 0
    assert not report.notes
    assert wb.prove(first, second, run=False).checks[-1].verdict == "same"


@pytest.mark.parametrize(("model", "noise"), [*((model, False) for model in sets.SETS), ("wan", True)])
def test_a_set_is_its_pipeline_and_its_checkpoint(model: str, noise: bool, tmp_path: Path) -> None:
    """Both ways, and under other names of the set's files."""
    source, files = make(tmp_path, model, noise)
    assert_same(source, files)
    shutil.copytree(files, other := tmp_path / "other")
    for path in other.glob("*/Model*"):
        path.rename(path.with_name(path.name.replace("Model", "model")))
    assert_same(other, files)
    if model in sets.ALONE and not noise:
        wb.convert(source, one := tmp_path / "one.safetensors")
        assert_same(files, one)
        assert_same(one, source)


@pytest.mark.parametrize("model", ["wan", "flux2", "hunyuan-video"])
def test_a_change_in_any_file_is_seen(model: str, tmp_path: Path) -> None:
    """A tensor of each file, the tokenizer's too."""
    source, files = make(tmp_path, model)
    unseen: list[Any] = []
    for file in files.rglob("*.safetensors"):
        stored = sets.load(file)
        tokenizer = sets.TOKENIZERS.get(model, ("",))[0]
        for name in {max(stored, key=lambda key: stored[key].numel()), tokenizer} & set(stored):
            pictures.save(file, stored | {name: stored[name] + 1})
            changes = [change for change in wb.diff(source, files).tensors if change.kind != "equal"]
            if [change.kind for change in changes] != ["values"] or not changes[0].name.endswith(name):
                unseen.append((file.name, name, changes))
            if wb.prove(source, files, run=False).checks[-1].verdict != "different":
                unseen.append((file.name, name, ["prove"]))
        pictures.save(file, stored)
    assert not unseen


def test_missing_parts_are_named(tmp_path: Path) -> None:
    source, files = make(tmp_path, "flux")
    shutil.rmtree(files / "vae")
    report = wb.diff(source, files)
    assert "set has no vae" in report.notes
    assert {change.kind for change in report.tensors if change.kind != "equal"} == {"only in a"}
    assert "set has no vae" in wb.prove(source, files, run=False).notes
    part = source / "vae"
    assert "vae has no text_encoder, text_encoder_2, transformer" in wb.diff(source, part).notes
    counts = wb.diff(part, source).counts
    assert counts["equal"] == len(sets.load(part / "diffusion_pytorch_model.safetensors"))


def test_parts_under_another_prefix(tmp_path: Path) -> None:
    """A checkpoint's parts may have the prefixes of older models, and a part's file has none."""
    source, files = make(tmp_path, "flux")
    wb.convert(source, one := tmp_path / "one.safetensors")
    stored = sets.load(one)
    older = {
        f"first_stage_model.{n.removeprefix('vae.')}" if n.startswith("vae.") else n.removeprefix("model."): t
        for n, t in stored.items()
    }
    pictures.save(tmp_path / "older.safetensors", older)
    assert_same(tmp_path / "older.safetensors", files)
    counts = wb.diff(files, files / "diffusion_models/Model.safetensors").counts
    assert (counts["equal"], counts["only in b"]) == (len(sets.denoiser("flux")), 0)


@pytest.mark.parametrize("form", ["gguf", "fp8_scaled"])
def test_a_quantized_denoiser_is_within_its_type(form: str, tmp_path: Path) -> None:
    source, files = make(tmp_path, "flux")
    plain = files / "diffusion_models/Model.safetensors"
    options: dict[str, Any] = {"dtype": "q8_0"} if form == "gguf" else {"comfy_quant": form}
    wb.convert(plain, plain.with_name(f"q.{'gguf' if form == 'gguf' else 'safetensors'}"), **options)
    plain.unlink()
    checks = wb.prove(source, files, run=False).checks
    assert [check.verdict for check in checks] == ["not-checked", "same"]
    assert wb.diff(source, files).counts["only in a"] == 0


def test_a_text_encoder_in_a_gguf(tmp_path: Path) -> None:
    source = pipelines.write(tmp_path / "Model", pipelines.PIPELINES["flux"]())
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    files = tmp_path / "set"
    (files / "text_encoders/t5xxl.safetensors").unlink()
    wb.convert(source / "text_encoder_2", files / "text_encoders/t5xxl.gguf", dtype="f32", tokenizer=False)
    assert_same(source, files)


def test_files_of_several_models_are_refused(tmp_path: Path) -> None:
    source, files = make(tmp_path, "flux")
    shutil.copy(files / "vae/Model_vae.safetensors", files / "vae/other.safetensors")
    for command in (wb.diff, wb.prove):
        with pytest.raises(UsageError, match="several VAEs") as raised:
            command(source, files)
        assert raised.value.hint
    shutil.move(files / "vae/other.safetensors", files / "text_encoders/other.safetensors")
    (other,) = {c.name.partition(".")[0] for c in wb.diff(source, files).tensors if c.kind != "equal"}
    assert other == "text_encoders/other"


def test_lineage_brings_the_forms_under_one_name(tmp_path: Path) -> None:
    source, files = make(tmp_path, "flux")
    wb.convert(source, one := tmp_path / "one.safetensors")
    wb.convert(source / "transformer", gguf := tmp_path / "d.gguf", dtype="q8_0")
    report = wb.lineage([source, files, one])
    assert [model.same_as for model in report.models] == [None, "Model", "Model"]
    assert not report.contradictions
    report = wb.lineage([source, files, source / "transformer", gguf])
    assert [model.same_as for model in report.models[:3]] == [None, "Model", "Model"]
    assert next(pair for pair in report.pairs if "d.gguf" in (pair.a, pair.b)).relation == "quantized"
    assert any("not all have them: text_encoder, text_encoder_2, vae" in note for note in report.notes)
    changed = sets.load(one)
    pictures.save(one, {name: torch.randn(t.shape) for name, t in changed.items()})
    assert wb.lineage([files, one]).pairs[0].relation == "unrelated"


def test_a_class_of_the_pipeline_decides_about_names(tmp_path: Path) -> None:
    """HunyuanVideo's LlamaModel has no tower; a tower in the set is one more part of the text encoder."""
    source, files = make(tmp_path, "hunyuan-video")
    (files / "clip_vision").mkdir()
    tower = {"multi_modal_projector.linear_1.bias": torch.ones(4)}
    pictures.save(files / "clip_vision/llava_llama3_vision.safetensors", tower)
    changes = [change for change in wb.diff(source, files).tensors if change.kind != "equal"]
    assert [(c.name, c.kind) for c in changes] == [("text_encoder.multi_modal_projector.linear_1.bias", "only in b")]
    assert json.loads((source / "model_index.json").read_text())["text_encoder"][1] != "LlavaForConditionalGeneration"
