"""`wb prove` of Whispers in every form: sizes, mel filters, tokens and tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.containers import whisper_files as cases

import weighbridge as wb


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model in all forms, by name."""
    base = tmp_path_factory.mktemp("whispers")
    cases.folder(base / "hf")
    for name, dtype in (("f16", None), ("q5_0", "q5_0")):
        wb.convert(base / "hf", base / f"{name}.bin", to="ggml", dtype=dtype)
    wb.convert(base / "f16.bin", base / "back", to="hf")
    wb.convert(base / "hf", base / "torch", to="torch")
    return {name: base / name for name in ("hf", "f16.bin", "q5_0.bin", "back", "torch")}


def verdicts(a: Path, b: Path) -> dict[str, str]:
    return {check.name: check.verdict for check in wb.prove(a, b, run=False).checks}


def test_all_forms_are_the_same_model(forms: dict[str, Path]) -> None:
    for (one, a), (other, b) in product(forms.items(), repeat=2):
        if "q5_0" in one and "q5_0" not in other:
            continue  # the floats aren't those of the codes
        assert verdicts(a, b) == {"settings": "same", "tokenizer": "same", "tensors": "same"}, (one, other)
    report = wb.prove(forms["hf"], forms["f16.bin"])
    assert report.verdict == "incomplete"
    assert "--no-run" in next(check.message for check in report.checks if check.name == "run")


def _size(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "decoder_attention_heads": 2}))


def _filters(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps({"mel_filters": np.ones((80, 201)).tolist()}))


def _token(folder: Path) -> None:
    path = folder / "vocab.json"
    vocabulary = {("zz" if number == 7 else text): number for text, number in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(vocabulary))


def _tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.encoder.layers.0.fc1.weight"][3] *= -1
    save_file(tensors, path, {"format": "pt"})


CHANGES: dict[str, Callable[[Path], None]] = {
    "settings": _size, "settings too": _filters, "tokenizer": _token, "tensors": _tensor,
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_makes_another_model(change: str, forms: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(forms["hf"], tmp_path / "hf"))
    CHANGES[change](folder)
    for other in ("hf", "f16.bin"):
        found = verdicts(forms[other], folder)
        assert [name for name, verdict in found.items() if verdict != "same"] == [change.split()[0]], found


def test_a_model_without_its_tokens_is_not_checked(forms: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(forms["hf"], tmp_path / "hf"))
    (folder / "vocab.json").unlink()
    assert verdicts(forms["hf"], folder)["tokenizer"] == "not-checked"
