"""Commands over a model that sees, in each of its forms: a folder, a folder of mlx-vlm, and a pair of GGUFs."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.containers import whisper_files
from tests.models.projector_cases import golden, write_folder
from tests.remote.test_towers import words

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.cli.main import main
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.config.losses import unread

TEXT = ["--context", "16", "--chunks", "2"]


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders `model`, `tuned` (all weights times 1.25), `mlx`, `pair` and `adapter` (of a layer and of towers)."""
    root: Path = tmp_path_factory.mktemp("forms")
    words(write_folder(golden()["smolvlm"], root / "model"))
    shutil.copytree(root / "model", root / "tuned")
    arrays = tensors(root / "model")
    save_file({name: array * np.float32(1.25) for name, array in arrays.items()}, root / "tuned" / "model.safetensors")
    wb.convert(root / "model", root / "mlx", to="mlx", towers=True)
    wb.convert(root / "model", f"{root}/pair/", to="gguf", with_mmproj=True)
    (root / "adapter").mkdir()
    random = np.random.default_rng(0)
    pairs = {}
    for name in (name.removesuffix(".weight") for name in arrays if name.endswith("q_proj.weight")):
        rows, columns = arrays[f"{name}.weight"].shape
        for part, shape in (("lora_A", (4, columns)), ("lora_B", (rows, 4))):
            pairs[f"base_model.model.{name}.{part}.weight"] = random.normal(0, 0.1, shape).astype(np.float32)
    save_file(pairs, root / "adapter" / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (root / "adapter" / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": "org/model"})
    )
    (root / "text.txt").write_text("t0 x1 x2 x3 " * 90)
    return root


def tensors(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {name: array for path in folder.glob("*.safetensors") for name, array in load_file(path).items()}


def equal(a: dict[str, np.ndarray[Any, Any]], b: dict[str, np.ndarray[Any, Any]]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", ["smolvlm", "qwen3-vl", "granite-speech", "step3-vl", "lfm2-audio"])
def test_a_setting_of_the_towers_is_not_lost_by_the_language_model(name: str) -> None:
    config = golden()[name]["config"]
    family = family_of_hf(config)
    towers = {"scale_factor", "window_size", "understand_projector_stride", "encoder", "vision_config"}
    assert not towers & {key.partition(".")[0] for key, _ in unread(config, family)}
    assert [key for key, _ in unread({**config, "scale_factors": 2}, family) if key == "scale_factors"]


def test_a_command_for_a_folder_that_ranks_cannot_share_names_it(
    forms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["split", str(forms / "mlx"), str(tmp_path / "ranks"), "--tp", "2"]) == 2
    (command,) = (line for line in capsys.readouterr().err.splitlines() if "hint:" in line)
    assert command.endswith(f"wb arch check {forms / 'mlx'}")
    assert main(["arch", "check", str(forms / "mlx")]) in (0, 1)


def test_both_ggufs_are_the_folder(forms: Path) -> None:
    for folder in ("model", "mlx"):
        for gguf in (forms / "pair").iterdir():
            report = wb.prove(forms / folder, gguf, run=False)
            assert {check.verdict for check in report.checks} <= {"same", "not-checked"}, (folder, gguf, report)


@pytest.mark.parametrize("folder", ["model", "mlx"])
def test_a_text_passes_through_the_language_model_only(folder: str, forms: Path, tmp_path: Path) -> None:
    entries = []
    for source in (forms / folder, forms / "pair"):
        target = tmp_path / f"{source.name}.gguf"
        assert main(["imatrix", str(source), str(target), "--text", str(forms / "text.txt"), *TEXT]) == 0
        with wb.open(target) as made:
            entries.append({name: np.asarray(made[name]) for name in made if name.endswith("in_sum2")})
    assert entries[0].keys() == entries[1].keys() != set()
    assert all(np.allclose(entries[0][name], entries[1][name], rtol=1e-2) for name in entries[0])


def test_a_folder_of_mlx_vlm_is_changed_as_the_folder_is(forms: Path, tmp_path: Path) -> None:
    """Its names aren't those of the family's table, and are read as Hugging Face's."""
    model, mlx, tuned = (str(forms / name) for name in ("model", "mlx", "tuned"))
    commands = {
        "rename": "rename {source} {target} --to-names canonical",
        "slice": "slice {source} {target} --layers 0",
        "merge": "merge {source} {tuned} {target} --method linear",
        "lora": "convert {source} {target} --to hf --lora {adapter}",
    }
    for name, command in commands.items():
        for source in (model, mlx):
            places = {"source": source, "target": tmp_path / f"{name}-{Path(source).name}", "tuned": tuned}
            line = [word.format(**places, adapter=forms / "adapter") for word in command.split()]
            assert main(line) == 0, line
        assert equal(tensors(tmp_path / f"{name}-model"), tensors(tmp_path / f"{name}-mlx")), name
    assert wb.lineage([mlx, tuned]).pairs[0].relation == wb.lineage([model, tuned]).pairs[0].relation


@pytest.mark.parametrize("command", [["convert"], ["quantize", "Q8_0"], ["convert", "--dtype", "q4_k_m"]])
def test_a_pair_stays_a_pair(command: list[str], forms: Path, tmp_path: Path) -> None:
    """The mmproj file is copied; without one the option is refused. `--with-mmproj` alone means GGUF."""
    name, *rest = command
    (mmproj,) = (forms / "pair").glob("mmproj-*.gguf")
    for source in ("pair", "model"):
        target = tmp_path / source
        assert main([name, str(forms / source), f"{target}/", *rest, "--with-mmproj"]) == 0
        assert (target / mmproj.name).read_bytes() == mmproj.read_bytes()
        assert (target / f"{source}.gguf").exists()
    folder = wb.convert(forms / "pair", tmp_path / "hf", to="hf")
    assert any(f"--projector {mmproj}" in note for note in folder.notes)
    shutil.copy(forms / "pair" / "pair.gguf", tmp_path / "alone.gguf")
    assert main([name, str(tmp_path / "alone.gguf"), f"{tmp_path}/none/", *rest, "--with-mmproj"]) == 2
    assert not (tmp_path / "none").exists()


def test_the_command_that_runs_a_gguf_names_its_projector(
    forms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mmproj,) = (forms / "pair").glob("mmproj-*.gguf")
    for line in (["quantize", "{}", "q.gguf", "Q8_0"], ["merge", "{}", "m.gguf"], ["convert", "{}", "c.gguf"]):
        target = tmp_path / line[2]
        assert main([line[0], str(forms / "pair"), str(target), *line[3:]]) == 0
        assert f"run it: llama-server -m {target} --mmproj {mmproj}" in capsys.readouterr().err


def test_memory_of_the_projector_is_counted_or_named(forms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = forms / "pair"
    (mmproj,) = pair.glob("mmproj-*.gguf")
    fitted = wb.fit(pair, device="this", context=64, mmproj=mmproj)
    shipped = wb.ship("llama-server", pair, context=64)
    assert any(f"{fitted.needs:,} bytes" in note for note in shipped.notes)
    assert any(str(mmproj) in note for note in wb.fit(pair, device="8GB").notes)
    assert any("--mmproj" in note for note in wb.fit(forms / "model", device="8GB").notes)
    assert not any("mmproj" in note for note in wb.fit(pair, device="8GB", runtime="vllm").notes)


CHOICES: list[tuple[str, dict[str, str]]] = [
    ("model", {}), ("model", {"runtime": "mlx"}), ("model", {"purpose": "share", "runtime": "ollama"}), ("pair", {}),
    ("mlx", {"loss": "none"}), ("pair", {"purpose": "share"}), ("pair", {"purpose": "serve", "device": "rtx4090"}),
]  # fmt: skip


@pytest.mark.parametrize(("form", "answers"), CHOICES)
def test_the_commands_of_choose_run(
    form: str, answers: dict[str, str], forms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    choice = wb.choose(forms / form, trusted=True, **answers)
    for line in choice.commands[1:]:  # after wb verify
        assert main(shlex.split(line)[1:]) == 0, line
    for ggufs in tmp_path.glob("*-GGUF"):
        assert len([*ggufs.glob("mmproj-*.gguf")]) == 1
    if choice.format == "gguf":
        assert not [*tmp_path.glob("*.gguf")]


def test_choose_names_only_programs_that_run_the_model(tmp_path: Path) -> None:
    whisper_files.folder(tmp_path / "whisper")
    for answers in ({}, {"runtime": "mlx"}):
        with pytest.raises(UnsupportedError) as caught:
            wb.choose(tmp_path / "whisper", trusted=True, **answers)
        assert "ggml-NAME.bin" in str(caught.value.hint)
    served = wb.choose(tmp_path / "whisper", trusted=True, purpose="serve", device="rtx4090")
    assert served.commands[-1].startswith("wb ship vllm")
    wb.convert(tmp_path / "whisper", tmp_path / "ggml-tiny.bin")
    with pytest.raises(UnsupportedError, match="Whisper"):
        wb.choose(tmp_path / "ggml-tiny.bin")


def test_the_hub_gets_both_files_and_the_right_task(forms: Path, tmp_path: Path) -> None:
    (mmproj,) = (forms / "pair").glob("mmproj-*.gguf")
    reports = {form: wb.plan_ship("hub", forms / form, "me/eye").report for form in ("model", "mlx", "pair", "adapter")}
    assert [*reports["pair"].text.splitlines()].count('pipeline_tag: "image-text-to-text"') == 1
    assert f"| {mmproj.name} | F16 |" in reports["pair"].text
    assert 'pipeline_tag: "image-text-to-text"' in reports["model"].text
    assert reports["mlx"].run == ("mlx_vlm.chat --model me/eye",)
    assert 'base_model: "org/model"\nbase_model_relation: "adapter"' in reports["adapter"].text
    assert reports["adapter"].run == ("vllm serve org/model --enable-lora --lora-modules eye=me/eye",)
    alone = wb.plan_ship("hub", forms / "pair" / "pair.gguf", "me/eye").report
    assert any(f"{mmproj.name} isn't uploaded" in note for note in alone.notes)
    whisper_files.folder(tmp_path / "whisper")
    wb.convert(tmp_path / "whisper", tmp_path / "ggml-tiny.bin")
    heard = wb.plan_ship("hub", tmp_path / "ggml-tiny.bin", "me/ear").report
    assert 'pipeline_tag: "automatic-speech-recognition"' in heard.text
    assert heard.run[-1] == "whisper-cli -m ggml-tiny.bin -f AUDIO.wav"
    assert "divergence" not in heard.text


def test_llama_cpp_gets_an_adapter_s_changes_of_the_language_model(
    forms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are listed; a pair's GGUF doesn't take them, and a file without any of its own isn't written."""
    made = wb.convert(forms / "adapter", tmp_path / "a.gguf", base=forms / "model")
    assert [*wb.open(tmp_path / "a.gguf")] == ["blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"]
    assert any("model.vision_model.* (3)" in loss.message for loss in made.losses)
    shutil.copytree(forms / "adapter", tmp_path / "towers")
    pairs = {name: array for name, array in tensors(forms / "adapter").items() if "vision" in name}
    save_file(pairs, tmp_path / "towers" / "adapter_model.safetensors")
    with pytest.raises(UnsupportedError, match="no other part"):
        wb.convert(tmp_path / "towers", tmp_path / "b.gguf", base=forms / "model")
    for target in ("c.gguf", "hf"):
        words = ["convert", str(forms / "pair"), str(tmp_path / target), "--lora", str(forms / "adapter")]
        assert main(words) == 2
        assert "model.vision_model.*" in (error := capsys.readouterr().err)
        assert "--lora ADAPTER" in error


def test_the_forms_of_a_whisper_are_compared(tmp_path: Path) -> None:
    whisper_files.folder(tmp_path / "whisper")
    wb.convert(tmp_path / "whisper", tmp_path / "ggml-tiny.bin")
    wb.quantize(tmp_path / "whisper", tmp_path / "ggml-small.bin", "Q5_1")
    wb.convert(tmp_path / "ggml-tiny.bin", tmp_path / "back", to="hf")
    for form in ("ggml-tiny.bin", "back"):
        report = wb.diff(tmp_path / "whisper", tmp_path / form)
        assert {change.kind for change in report.tensors} <= {"equal", "type"}
        assert wb.lineage([tmp_path / "whisper", tmp_path / form]).pairs[0].relation == "same"
    assert wb.lineage([tmp_path / "whisper", tmp_path / "ggml-small.bin"]).pairs[0].relation == "quantized"
    assert wb.prove(tmp_path / "whisper", tmp_path / "ggml-tiny.bin", run=False)
    wb.slice(tmp_path / "whisper", tmp_path / "cut", layers="encoder:0")
    assert wb.diff(tmp_path / "cut", tmp_path / "ggml-tiny.bin").tensors


def test_a_modelfile_names_files_that_exist(forms: Path, tmp_path: Path) -> None:
    for form, count in (("model", 1), ("pair", 2)):
        path = tmp_path / f"{form}.Modelfile"
        wb.ship("ollama", forms / form, "eye", store=tmp_path / "store", template="none", modelfile=path)
        named = [Path(line.removeprefix("FROM ")) for line in path.read_text().splitlines() if line.startswith("FROM ")]
        assert len(named) == count
        assert all(file.exists() for file in named)
