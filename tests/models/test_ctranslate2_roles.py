"""Models of CTranslate2 and of transformers become each other: the tensors that transformers saved, and the bytes that
CTranslate2's own converter wrote (`record_ctranslate2.py`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.golden_files import extracted, tensor_bytes

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.models.ctranslate2_roles import role_table

GOLDEN = Path(__file__).with_name("golden") / "ctranslate2.zip"
CASES = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "bert")
TYPES = ("float32", "int8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extracted(GOLDEN, tmp_path_factory.mktemp("ctranslate2"))


def test_each_family_of_the_table_is_compared(root: Path) -> None:
    found = set()
    for case in CASES:
        with wb.open(root / case / "hf") as model:
            found.add(model.source.family.name)
    assert found == role_table().families


@pytest.mark.parametrize("case", [*CASES, "whisper"])
def test_a_folder_has_the_tensors_that_transformers_saved(case: str, root: Path, tmp_path: Path) -> None:
    result = wb.convert(root / case / "float32", tmp_path / "out", to="hf", config=root / case / "hf")
    assert tensor_bytes(tmp_path / "out") == tensor_bytes(root / case / "hf")
    assert any("CTranslate2's names are replaced" in note for note in result.notes)


@pytest.mark.parametrize("case", CASES)
def test_a_gguf_is_that_of_the_folder(case: str, root: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tokenizer": False, "name": "x"}
    wb.convert(root / case / "hf", tmp_path / "theirs.gguf", **options)
    wb.convert(root / case / "float32", tmp_path / "mine.gguf", config=root / case / "hf", **options)
    assert tensor_bytes(tmp_path / "mine.gguf") == tensor_bytes(tmp_path / "theirs.gguf")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("case", [*CASES, "whisper"])
def test_a_model_with_a_graph_has_the_converter_s_bytes(case: str, kind: str, root: Path, tmp_path: Path) -> None:
    graph = root / case / f"{kind}-other"  # of other weights
    assert (graph / "model.bin").read_bytes() != (root / case / kind / "model.bin").read_bytes()
    result = wb.convert(root / case / "hf", f"{tmp_path}/out/", graph=graph)
    assert (tmp_path / "out" / "model.bin").read_bytes() == (root / case / kind / "model.bin").read_bytes()
    assert (tmp_path / "out" / "config.json").read_bytes() == (graph / "config.json").read_bytes()
    assert not result.losses


def test_a_gguf_becomes_a_model_of_ctranslate2(root: Path, tmp_path: Path) -> None:
    wb.convert(root / "llama" / "hf", tmp_path / "m.gguf", tokenizer=False, dtype="f32")
    wb.convert(tmp_path / "m.gguf", f"{tmp_path}/out/", graph=root / "llama" / "float32-other")
    assert (tmp_path / "out" / "model.bin").read_bytes() == (root / "llama" / "float32" / "model.bin").read_bytes()


def test_settings_are_listed_as_left_out(root: Path) -> None:
    with wb.plan_convert(root / "llama" / "float32", "out.gguf", config=root / "llama" / "hf", tokenizer=False) as plan:
        losses = {loss.message for loss in plan.losses}
    assert any("decoder/num_heads" in text or "setting of CTranslate2" in text for text in losses), losses


@pytest.mark.parametrize("case", ["llama", "whisper"])
def test_an_int8_model_isnt_decoded(case: str, root: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="codes of int8"):
        wb.convert(root / case / "int8", tmp_path / "out", to="hf", config=root / case / "hf")


def test_a_whisper_of_another_size_names_the_variable(root: Path, tmp_path: Path) -> None:
    config = json.loads((root / "whisper" / "hf" / "config.json").read_text())
    for change, words in (({"decoder_layers": 3}, "layer_2.*missing"), ({"max_source_positions": 9}, "encodings")):
        with pytest.raises(FormatError, match=words):
            wb.convert(root / "whisper" / "float32", tmp_path / "o", to="hf", config=config | change)


def test_a_key_of_a_whisper_has_no_bias(root: Path, tmp_path: Path) -> None:
    with wb.open(root / "whisper" / "float32") as model:
        arrays = {name: np.array(model[name].numpy()) for name in model}
    arrays["encoder/layer_0/self_attention/linear_0/bias"][8:16] = 1  # the rows of the key
    save_file(arrays, tmp_path / "edited.safetensors")
    wb.convert(tmp_path / "edited.safetensors", f"{tmp_path}/edited/", graph=root / "whisper" / "float32")
    with pytest.raises(FormatError, match="a key with a bias"):
        wb.convert(tmp_path / "edited", tmp_path / "o", to="hf", config=root / "whisper" / "hf")


def test_another_models_config_names_the_variable(root: Path, tmp_path: Path) -> None:
    config = json.loads((root / "llama" / "hf" / "config.json").read_text())
    with pytest.raises(FormatError, match=r"decoder/layer_0/ffn.*differs from config\.json's"):
        wb.convert(root / "llama" / "float32", tmp_path / "o", to="hf", config=config | {"intermediate_size": 16})


def test_a_graph_of_another_size_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in the graph"):
        wb.convert(root / "llama" / "hf", f"{tmp_path}/out/", graph=root / "qwen3" / "float32")


def test_a_tensor_without_a_place_is_a_loss(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "gpt2" / "hf", tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    del weights["transformer.ln_f.bias"]
    save_file(weights, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    with pytest.raises(FormatError, match=r"ln_f\.bias"):
        wb.convert(tmp_path / "m", f"{tmp_path}/out/", graph=root / "gpt2" / "float32")
    save_file({"own.weight": np.ones((2, 2), np.float32)}, tmp_path / "own.safetensors")
    with pytest.raises(UsageError, match="no tensor has the name"):
        wb.convert(tmp_path / "own.safetensors", f"{tmp_path}/out/", graph=root / "gpt2" / "float32")
