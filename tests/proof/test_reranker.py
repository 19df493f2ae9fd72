"""A Qwen3-Reranker becomes a GGUF that ranks, as the reference converter makes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from tests.oracles import gguf_file, reference_converter
from tests.oracles.reference_converter import Job

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError

Maker = Callable[[str], Path]


def folder(source: Path, path: Path, tied: bool) -> Path:
    """A Qwen 3 with the words that a reranker answers."""
    shutil.copytree(source, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
    tensors = load_file(path / "model.safetensors")
    head = "lm_head.weight"
    tensors = {k: v for k, v in tensors.items() if k != head} | (
        {} if tied else {head: tensors.get(head, tensors["model.embed_tokens.weight"][::-1].copy())}
    )
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for word in ("no", "yes"):
        if word not in vocabulary:  # in place of what the last merge makes, which no other one uses
            merge = tokenizer["model"]["merges"].pop()
            vocabulary[word] = vocabulary.pop("".join(merge.split(" ") if isinstance(merge, str) else merge))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


@pytest.mark.parametrize("mark", ["folder", "heading", "option"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_reranker_is_written_as_the_reference_writes_it(
    mark: str, tied: bool, folder_of: Maker, tmp_path: Path
) -> None:
    source = folder(folder_of("qwen3"), tmp_path / ("Qwen3-Reranker-1M" if mark != "heading" else "mine"), tied)
    if mark == "heading":
        (source / "README.md").write_text("# Qwen3-Reranker-0.6B\n")
    reference = tmp_path / "reference.gguf"
    reference_converter.run(Job(str(source), str(reference), "f16", "qwen2"))
    ours = tmp_path / "ours.gguf"
    if mark == "option":
        source = source.rename(tmp_path / "mine")
    wb.convert(source, ours, dtype="f16", pre="qwen2", rerank=True if mark == "option" else None)
    one, other = map(gguf_file.read, (ours, reference))
    named = (
        {"general.name", "general.basename", "general.finetune", "general.size_label"} if mark == "option" else set()
    )
    assert [d for d in gguf_file.differences(one, other) if not any(key in d for key in named)] == []
    wb.convert(source, tmp_path / "plain.gguf", dtype="f16", pre="qwen2", rerank=False)
    with wb.open(tmp_path / "plain.gguf") as plain:
        assert "cls.output.weight" not in plain
    with wb.open(ours) as model:
        assert model["cls.output.weight"].shape == (2, 64)


def test_a_reranker_is_said_to_be_one(folder_of: Maker, tmp_path: Path) -> None:
    source = folder(folder_of("qwen3"), tmp_path / "Qwen3-Reranker-1M", tied=True)
    with wb.plan_convert(source, tmp_path / "m.gguf", pre="qwen2") as plan:
        assert any("--no-rerank" in note for note in plan.notes)
    with pytest.raises(UnsupportedError, match="no token is 'yes'"):
        wb.plan_convert(folder_of("qwen3"), tmp_path / "m.gguf", pre="qwen2", rerank=True)
    with pytest.raises(UnsupportedError, match="doesn't apply to gemma"):
        wb.plan_convert(folder_of("gemma"), tmp_path / "m.gguf", rerank=True)


def test_a_reranker_is_read_back_and_proven(folder_of: Maker, tmp_path: Path) -> None:
    source, gguf = folder(folder_of("qwen3"), tmp_path / "Qwen3-Reranker-1M", tied=True), tmp_path / "m.gguf"
    wb.convert(source, gguf, pre="qwen2")
    assert wb.verify(gguf).ok
    report = wb.prove(source, gguf, run=False)
    assert [c.name for c in report.checks if c.verdict == "different"] == []
    wb.convert(gguf, tmp_path / "back", to="hf")
    back, first = (load_file(path / "model.safetensors") for path in (tmp_path / "back", source))
    assert back.keys() == first.keys()


def test_a_copy_under_another_name_is_the_same_model(folder_of: Maker, tmp_path: Path) -> None:
    source = folder(folder_of("qwen3"), tmp_path / "Qwen3-Reranker-1M", tied=True)
    wb.convert(source, tmp_path / "copy", to="hf")
    report = wb.prove(source, tmp_path / "copy", run=False)
    assert {c.verdict for c in report.checks if c.name in ("settings", "tokenizer", "tensors")} == {"same"}
