"""Models that speak: their GGUFs are the reference converter's byte for byte, llama.cpp loads them, and folders come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.oracles import gguf_file, models, reference_converter
from tests.oracles.families.speech import CASES
from tests.oracles.llama_loads import Judge

import weighbridge as wb
from weighbridge.base.errors import UsageError

VOCODERS = ("wavtokenizer", "lfm2-vocoder")


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("name", VOCODERS)
def test_a_vocoder_is_written_as_the_reference_writes_it(name: str, dtype: str, tmp_path: Path, judge: Judge) -> None:
    folder = models.build(CASES[name], tmp_path / name)
    ours = wb.convert(folder, tmp_path / "ours.gguf", dtype=dtype).target
    theirs = reference_converter.convert(folder, tmp_path / "theirs.gguf", dtype)
    assert gguf_file.differences(gguf_file.read(Path(ours)), gguf_file.read(theirs)) == []
    assert judge.refusal(tmp_path / "ours.gguf") is None


@pytest.mark.parametrize("name", VOCODERS)
def test_a_vocoder_s_gguf_is_a_folder_again(name: str, tmp_path: Path) -> None:
    folder = models.build(CASES[name], tmp_path / name)
    wb.convert(folder, tmp_path / "a.gguf", dtype="f32")
    with wb.plan_convert(tmp_path / "a.gguf", tmp_path / "back", to="hf") as plan:
        assert plan.losses == ()
        plan.run()
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    assert not list((tmp_path / "back").glob("tokenizer*"))
    wb.convert(tmp_path / "back", tmp_path / "b.gguf", dtype="f32")
    first, again = (gguf_file.read(tmp_path / f"{x}.gguf") for x in "ab")
    assert first.fields == again.fields  # in whatever order
    assert gguf_file.differences(gguf_file.File({}, first.tensors), gguf_file.File({}, again.tensors)) == []


def test_the_config_of_llama_cpp_s_script_names_no_type(tmp_path: Path) -> None:
    folder = models.build(CASES["wavtokenizer"], tmp_path / "w")
    wb.convert(folder, tmp_path / "a.gguf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "model_type"}))
    wb.convert(folder, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_vocoder_has_no_tokenizer(tmp_path: Path) -> None:
    folder = models.build(CASES["wavtokenizer"], tmp_path / "w")
    with pytest.raises(UsageError, match="pre llama-bpe doesn't apply: the model has no tokenizer"):
        wb.convert(folder, tmp_path / "a.gguf", pre="llama-bpe")
    assert not (tmp_path / "a.gguf").exists()
    with wb.plan_convert(folder, tmp_path / "a.gguf", dtype="f32") as plan:
        assert not [loss for loss in plan.losses if "tokenizer" in loss.message]
