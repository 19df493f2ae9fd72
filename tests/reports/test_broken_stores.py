"""Stores in which something is missing, cut off, dangling or locked: each answer is true, and nothing is left out in
silence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import system
from tests.remote.test_stores_of_others import SHA, store
from tests.reports.makers import llama_folder
from tests.reports.test_stores import home, hub_cache, twins

from weighbridge.cli.main import main
from weighbridge.reports.stores.duplicates import usage
from weighbridge.reports.stores.listing import list_models

__all__ = ["home"]
#: Root without the right to read everything.
PLAIN = "--bounding-set=-dac_override,-dac_read_search"


def troubles(*paths: Path) -> dict[str, str | None]:
    return {e.name: e.trouble for e in list_models(paths).entries}


def test_a_model_without_a_shard_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = llama_folder(home / "models" / "m", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors is missing" in str(troubles(home / "models")["m"])
    assert main(["ls", str(home / "models")]) == 0
    captured = capsys.readouterr()
    assert "safetensors, damaged" in captured.out
    assert "is missing" in captured.err


def test_a_blob_that_a_snapshot_leads_to_is_missing(home: Path) -> None:
    repository = hub_cache(home / ".cache" / "huggingface" / "hub")
    (link,) = (repository / "snapshots").rglob("*.safetensors")
    link.resolve().unlink()
    assert troubles() == {"org/model": "its file is missing"}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_any_link_to_a_missing_file_is_named(name: str, home: Path) -> None:
    """An interrupted download: the weights are there."""
    repository = hub_cache(home / ".cache" / "huggingface" / "hub")
    (snapshot,) = (repository / "snapshots").iterdir()
    (snapshot / name).unlink(missing_ok=True)
    (snapshot / name).symlink_to("../../blobs/absent")
    assert troubles() == {"org/model": f"links to missing files: {name}"}


@pytest.mark.parametrize(
    ("what", "expected"),
    [("blob", "its file is missing"), ("manifest", "no manifest"), ("weights", "its manifest names no weights")],
)
def test_a_broken_model_of_ollama_is_listed(what: str, expected: str, home: Path) -> None:
    folder = store(home / ".ollama" / "models")
    manifest = folder / "manifests" / "registry.ollama.ai" / "library" / "llama3.2" / "3b"
    if what == "blob":
        (folder / "blobs" / f"sha256-{SHA}").unlink()
    elif what == "manifest":
        manifest.write_text("{")
    else:
        manifest.write_text(manifest.read_text().replace("ollama.image.model", "ollama.image.other"))
    (trouble,) = troubles().values()
    assert expected in str(trouble)


def test_a_dangling_link_and_an_empty_file_among_models(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "empty.gguf").touch()
    (folder / "dangling.gguf").symlink_to(tmp_path / "none.gguf")
    (entry,) = (e for e in list_models([folder]).entries if e.name == "dangling.gguf")
    assert (entry.trouble, entry.used, entry.bytes) == ("its file is missing", None, 0)
    assert "empty" in str(troubles(folder)["empty.gguf"])


@pytest.mark.parametrize("others", [0, 1])
def test_models_beside_each_other_are_named_after_their_files(others: int, tmp_path: Path) -> None:
    from tests.conversion.test_forms import gguf

    file = gguf(tmp_path)
    for number in range(others):
        shutil.copy(file, file.with_name(f"other{number}.gguf"))
    assert "tiny.gguf" in troubles(file.parent)
    (entry,) = (e for e in list_models([file.parent]).entries if e.name == "tiny.gguf")
    assert main(["identify", entry.address]) == 0
    assert main(["ls", str(tmp_path / "tiny")]) == 0


def test_a_folder_that_is_a_model_has_its_name(tmp_path: Path) -> None:
    assert troubles(llama_folder(tmp_path / "mine", shards=1)) == {"mine": None}


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """Folders and files that can't be read between others that can."""
    if os.geteuid() == 0:
        system.require("setpriv")
    folder = tmp_path / "models"
    for name in ("a", "locked", "z"):
        llama_folder(folder / name, shards=1)
    a, b = twins(folder / "twins")
    shutil.copy(a, folder / "twins" / "c.bin")
    repository = hub_cache(folder / "hub")
    closed = (folder / "locked", b, repository / "snapshots")
    for path in closed:
        path.chmod(0)
    yield folder
    for path in closed:
        path.chmod(0o755)


def run(*words: str) -> tuple[int, Any, str]:
    prefix = (system.require("setpriv"), PLAIN) if os.geteuid() == 0 else ()
    done = subprocess.run([*prefix, sys.executable, "-m", "weighbridge", *words], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.costly
def test_what_cannot_be_read_is_named_and_hides_nothing_else(locked: Path) -> None:
    code, listed, _ = run("ls", str(locked), "--json")
    assert (code, {e["name"] for e in listed["entries"]}) == (
        0,
        {"a", "z", "twins/a.bin", "twins/b.bin", "twins/c.bin"},
    )
    assert [words.partition(": ")[2] for words in listed["unreadable"]] == ["permission denied"] * 2
    code, used, _ = run("du", str(locked), "--json")
    assert code == 0
    unreadable = " ".join(used["unreadable"])
    assert all(name in unreadable for name in ("locked", "b.bin", "snapshots"))
    assert [len(d["paths"]) for d in used["duplicates"]] == [2]
    assert used["leftovers"] == []  # what the snapshots lead to isn't known
    code, shared, _ = run("dedupe", str(locked), "--json", "--dry-run", "--hard-link")
    assert (code, len(shared["shared"])) == (0, 1)
    assert "b.bin" in " ".join(shared["unreadable"])


def test_blobs_of_datasets_are_no_orphans(home: Path) -> None:
    root = home / ".cache" / "huggingface" / "hub"
    hub_cache(root)
    (root / "models--org--model").rename(root / "datasets--org--data")
    hub_cache(root)
    assert usage().leftovers == ()


def test_models_that_cannot_be_compared_are_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        llama_folder(tmp_path / "models" / name, shards=1)
    broken = llama_folder(tmp_path / "models" / "c", shards=1) / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:2000])
    (words,) = usage([tmp_path / "models"]).uncompared
    assert words.startswith("c: ")

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("weighbridge.reports.diff.report.diff", fail)
    report = usage([tmp_path / "models"])
    assert [forms.same for forms in report.forms] == [()]
    assert any(words.startswith("a with b: ") and "nput/output" in words for words in report.uncompared)
    assert main(["du", str(tmp_path / "models")]) == 0
    assert "not compared" in capsys.readouterr().out
