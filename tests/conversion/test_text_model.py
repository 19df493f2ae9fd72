"""Ultravox, whose language model is another model: both files in one command, each that of a command of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.projector_cases import golden, write_folder
from tests.oracles import models
from tests.oracles.families.drafts import TARGETS

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.cli.main import main

PRE = TARGETS["llama"].pre
RUNS: dict[str, Callable[..., Any]] = {
    "convert": lambda source, out, **options: wb.convert(source, out, dtype="f16", **options),
    "quantize": lambda source, out, **options: wb.quantize(source, out, "Q8_0", **options),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders `ultravox` and `text`."""
    root: Path = tmp_path_factory.mktemp("folders")
    write_folder(golden()["ultravox"], root / "ultravox")
    models.build(TARGETS["llama"], root / "text")
    return root


@pytest.mark.parametrize("op", RUNS)
def test_both_files_are_those_of_a_command_for_each(op: str, folders: Path, tmp_path: Path) -> None:
    RUNS[op](folders / "text", tmp_path / "text.gguf", pre=PRE)
    wb.convert(folders / "ultravox", tmp_path / "mmproj.gguf", mmproj=True)
    both = {"with_mmproj": True, "text_model": folders / "text", "pre": PRE}
    RUNS[op](folders / "ultravox", f"{tmp_path}/both/", **both)
    written = {path.name: path.read_bytes() for path in (tmp_path / "both").iterdir()}
    assert written.keys() == {"both.gguf", "mmproj-Ultravox-F16.gguf"}
    assert written["both.gguf"] == (tmp_path / "text.gguf").read_bytes()
    assert written["mmproj-Ultravox-F16.gguf"] == (tmp_path / "mmproj.gguf").read_bytes()
    with wb.plan_ship("llama-server", tmp_path / "both", device="8GB") as plan:
        assert f"--mmproj {tmp_path}/both/mmproj-Ultravox-F16.gguf" in plan.report.run[0]


def test_the_language_model_may_be_a_gguf(folders: Path, tmp_path: Path) -> None:
    wb.convert(folders / "text", tmp_path / "text.gguf", dtype="q8_0", pre=PRE)
    wb.convert(folders / "ultravox", f"{tmp_path}/both/", with_mmproj=True, text_model=tmp_path / "text.gguf")
    with wb.open(tmp_path / "text.gguf") as given, wb.open(tmp_path / "both" / "both.gguf") as copied:
        assert {name: copied[name].dtype for name in copied} == {name: given[name].dtype for name in given}


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("ultravox", {}, "text_model needs with_mmproj"),
        ("text", {"with_mmproj": True}, "text_model doesn't apply to"),
        ("text", {}, "text_model doesn't apply to"),
        ("ultravox", {"to": "hf"}, "text_model doesn't apply to a Hugging Face folder"),
        ("ultravox", {"mmproj": True}, "text_model doesn't apply to an mmproj file"),
    ],
)
def test_an_option_that_does_not_apply_is_refused(
    source: str, options: dict[str, Any], reason: str, folders: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=reason):
        wb.convert(folders / source, f"{tmp_path}/out/", text_model=folders / "text", **{"to": "gguf", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("use", ["mmproj", "reranker"])
def test_a_model_that_writes_no_text_is_refused(use: str, folders: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.gguf"
    if use == "mmproj":
        wb.convert(folders / "ultravox", text, mmproj=True)
    else:
        wb.convert(folders / "text", text, pre=PRE)
        assert main(["edit", str(text), "--set", "llama.pooling_type=u32:4"]) == 0
    with pytest.raises(UsageError, match=f"isn't a language model that reads sounds, but of another use .{use}."):
        wb.convert(folders / "ultravox", f"{tmp_path}/out/", with_mmproj=True, text_model=text)
    assert not (tmp_path / "out").exists()


def test_another_language_model_is_refused_with_both_widths(folders: Path, tmp_path: Path) -> None:
    other = write_folder(json.loads(json.dumps(golden()["ultravox"])), tmp_path / "ultravox")
    arrays = load_file(other / "model.safetensors")
    arrays["multi_modal_projector.linear_2.weight"] = np.zeros((96, 48), np.float32)
    save_file(arrays, other / "model.safetensors", {"format": "pt"})
    config = json.loads((other / "config.json").read_text())
    config["text_config"]["hidden_size"] = 96
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"width 96 .* width 64"):
        wb.convert(other, f"{tmp_path}/out/", with_mmproj=True, text_model=folders / "text", pre=PRE)
    assert not (tmp_path / "out").exists()


def test_changes_of_the_language_model_are_not_lost(folders: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "ultravox"
    shutil.copytree(folders / "ultravox", tuned)
    name = "language_model.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    arrays = load_file(tuned / "model.safetensors") | {name: np.ones((2, 64), np.float32)}
    save_file(arrays, tuned / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedError, match=f"1 tensor of its language model, such as {name}"):
        wb.convert(tuned, f"{tmp_path}/out/", with_mmproj=True, text_model=folders / "text", pre=PRE)
    assert not (tmp_path / "out").exists()
