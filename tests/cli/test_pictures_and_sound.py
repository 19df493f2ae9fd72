"""Files of image, video, and speech models, and of towers, with the commands that are for language models."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.containers import whisper_files
from tests.models.projector_cases import golden, write_folder
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.containers.sniff.diffusion import architectures


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("all models")  # a space, as in many users' folders
    pictures.save(folder / "flux.safetensors", pictures.values(pictures.flux(), "bfloat16"))
    wb.convert(folder / "flux.safetensors", folder / "flux.gguf")
    whisper_files.folder(folder / "whisper")
    wb.convert(folder / "whisper", folder / "ggml-tiny.bin")
    return folder


@pytest.mark.parametrize("program", ["ollama", "lmstudio"])
@pytest.mark.parametrize("extra", [[], ["--type", "Q8_0"]])
def test_programs_on_llama_cpp_get_no_image_model(
    models: Path, tmp_path: Path, program: str, extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    words = ["ship", program, str(models / "flux.safetensors"), "me/x", "--store", str(store), *extra]
    assert main(words) == 2
    assert "ComfyUI-GGUF" in capsys.readouterr().err
    assert not store.exists()
    assert "flux" in architectures()


@pytest.mark.parametrize("extra", [["convert", "--to", "gguf"], ["quantize", "Q8_0"]])
def test_an_image_model_has_no_second_gguf(
    models: Path, tmp_path: Path, extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = extra
    assert main([command, str(models / "flux.safetensors"), f"{tmp_path}/both/", *rest, "--with-mmproj"]) == 2
    assert "no towers for an mmproj file" in capsys.readouterr().err
    assert not (tmp_path / "both").exists()


def test_ollama_gets_no_gguf_of_an_image_model(models: Path, tmp_path: Path) -> None:
    assert main(["ship", "ollama", str(models / "flux.gguf"), "me/x", "--store", str(tmp_path / "store")]) == 2
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "command"),
    [("whisper", "wb convert {} ggml-NAME.bin"), ("ggml-tiny.bin", "whisper-cli -m {}"), ("flux.safetensors", "")],
)
def test_llama_server_s_refusal_names_the_program_that_runs_it(
    models: Path, name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ship", "llama-server", str(models / name), "--dry-run"]) == 2
    hint = capsys.readouterr().err.split("hint:")[1]
    assert command.format(shlex.quote(str(models / name))) in hint
    assert ("ComfyUI-GGUF" in hint) == (name == "flux.safetensors")


def test_the_layers_of_a_tower_are_not_cut_by_the_length_of_an_array(tmp_path: Path) -> None:
    """A tower of three layers: the mean of its images has three entries too."""
    write_folder(golden()["gemma3"], tmp_path / "model")
    wb.convert(tmp_path / "model", tmp_path / "mmproj.gguf", mmproj=True)
    assert len(wb.open(tmp_path / "mmproj.gguf").metadata["clip.vision.image_mean"]) == 3
    with pytest.raises(UsageError, match=r"no clip\.block_count"):
        wb.slice(tmp_path / "mmproj.gguf", tmp_path / "cut.gguf", layers="0")
    assert not (tmp_path / "cut.gguf").exists()


def test_a_whisper_is_sent_to_whisper_cpp(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        wb.convert(models / "whisper", tmp_path / "x.gguf")
    assert "ggml-NAME.bin" in str(caught.value.hint)


def test_a_pipeline_names_its_models_so_that_they_open(models: Path, tmp_path: Path) -> None:
    part = tmp_path / "pipe" / "transformer"
    part.mkdir(parents=True)
    (part.parent / "model_index.json").write_text("{}")
    (part / "config.json").write_text("{}")
    (part / "diffusion_pytorch_model.safetensors").write_bytes((models / "flux.safetensors").read_bytes())
    with pytest.raises(WeighbridgeError) as caught:
        wb.inspect(part.parent)
    named = str(caught.value.hint).rsplit("name one of ", 1)[1]
    assert wb.inspect(named).tensors


@pytest.mark.slow
def test_a_file_without_a_config_is_said_to_have_none(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(models / "flux.safetensors"), str(tmp_path / "x.gguf"), "--mmproj"]) == 2
    assert "no config.json names the model's class" in capsys.readouterr().err
    assert main(["arch", "check", str(models / "ggml-tiny.bin")]) == 1
    assert "The model names no architecture. The nearest is" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["flux.safetensors", "flux.gguf", "checkpoint.safetensors"])
def test_commands_for_language_models_refuse_a_picture_s(models: Path, name: str, tmp_path: Path) -> None:
    """A checkpoint's VAE has an encoder and a decoder, which aren't sides of a language model."""
    parts = {"model.diffusion_model.": "sd1", "first_stage_model.": "vae"}
    whole = {start + n: t for start, part in parts.items() for n, t in pictures.values(pictures.MODELS[part]()).items()}
    source = models / name
    if name == "checkpoint.safetensors":
        source = pictures.save(tmp_path / name, whole)
    with pytest.raises(UnsupportedError, match="no single stack of layers"):
        wb.slice(source, tmp_path / "cut.safetensors", layers="0-1")
    with pytest.raises(UnsupportedError, match="answers for language models"):
        wb.choose(source)


def test_an_mmproj_file_alone_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(golden()["gemma3"], tmp_path / "model")
    path = tmp_path / "mmproj.gguf"
    wb.convert(tmp_path / "model", path, mmproj=True)
    commands = {"--projector": ["convert", path, tmp_path / "out", "--to", "hf"], "--mmproj": ["fit", path]}
    for hint, command in commands.items():
        assert main([str(word) for word in command]) == 2
        error = capsys.readouterr().err
        assert "its language model is another file" in error
        assert hint in error
    assert not (tmp_path / "out").exists()
