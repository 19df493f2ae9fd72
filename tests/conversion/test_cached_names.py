"""A model in the Hub's cache is called by its repository, and nothing is written into the cache unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.llama import CONFIG, llama_tensors, write

import weighbridge as wb
from weighbridge.cli.main import main
from weighbridge.conversion.forms.library import title_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A model as huggingface_hub keeps it: links to blobs."""
    repository = tmp_path / "hub" / "models--acme--Tiny-Chat"
    folder, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
    for path in (folder, blobs, repository / "refs"):
        path.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    write(blobs / "aa", llama_tensors())
    (blobs / "bb").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").symlink_to("../../blobs/aa")
    (folder / "config.json").symlink_to("../../blobs/bb")
    return folder


@pytest.mark.parametrize("way", ["folder", "file", "repository"])
def test_the_name_is_the_repositorys(way: str, snapshot: Path, tmp_path: Path) -> None:
    source = {"folder": snapshot, "file": snapshot / "model.safetensors", "repository": snapshot.parent.parent}[way]
    wb.convert(source, tmp_path / "o.gguf", tokenizer=False)
    keys = wb.open(tmp_path / "o.gguf").metadata
    assert keys["general.name"] == "Tiny Chat"
    assert COMMIT not in str(dict(keys))
    assert wb.provider(source).metadata("general.name") == "Tiny Chat"
    assert title_of(source) == "Tiny-Chat"


def test_nothing_is_written_into_the_cache(snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.joinpath("hub").rglob("*"))
    for source in (snapshot, snapshot / "model.safetensors"):
        assert main(["quantize", str(source), "Q8_0", "--no-tokenizer", "--overwrite"]) == 0
        (tmp_path / "ggml-model-Q8_0.gguf").unlink()
    assert sorted(tmp_path.joinpath("hub").rglob("*")) == before
