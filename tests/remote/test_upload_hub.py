"""Targets on the Hub: staged, then shown by one commit; huggingface_hub is the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.remote.hub_repository import WritableHub
from tests.reports.makers import llama_folder

import weighbridge as wb
from weighbridge.adapters.remote import hub_upload
from weighbridge.base.errors import RefusedError, RemoteError, UsageError
from weighbridge.cli.main import main

huggingface_hub = pytest.importorskip("huggingface_hub")
# huggingface_hub passes a stream to its client under an older name.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    """A Hub where the repository isn't there yet."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with WritableHub().running() as hub:
        connect(hub, token="hf_token")
        yield hub


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return llama_folder(tmp_path / "model")


def staged() -> list[Path]:
    folder = hub_upload.staging_folder()
    return list(folder.rglob("*")) if folder.exists() else []


def local(source: Path, target: Path) -> dict[str, bytes]:
    wb.convert(source, target, to="hf", dtype="f16")
    return {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()}


def test_a_folder_becomes_one_commit_of_a_private_repository(hub: WritableHub, source: Path, tmp_path: Path) -> None:
    expected = local(source, tmp_path / "local")
    result = wb.convert(source, "hf://org/model", to="hf", dtype="f16")
    assert result.target == "hf://org/model"
    assert hub.files == expected
    assert hub.private is True
    assert len(hub.commits) == 2
    assert staged() == []


def test_a_file_in_a_repository_that_is_there(hub: WritableHub, source: Path, tmp_path: Path) -> None:
    hub.commits.append("a" * 40)
    hub.files["README.md"] = b"mine"
    wb.convert(source, tmp_path / "m.gguf", dtype="f16", tokenizer=False)
    wb.convert(source, "hf://org/model/gguf/m.gguf", dtype="f16", tokenizer=False)
    assert hub.files == {"README.md": b"mine", "gguf/m.gguf": (tmp_path / "m.gguf").read_bytes()}
    with pytest.raises(RefusedError, match="overwrite=True"):
        wb.convert(source, "hf://org/model/gguf/m.gguf", dtype="f32", tokenizer=False)
    wb.convert(source, "hf://org/model/gguf/m.gguf", dtype="f32", tokenizer=False, overwrite=True)
    assert hub.files["gguf/m.gguf"] != (tmp_path / "m.gguf").read_bytes()


def test_a_commit_that_fails_is_resumed_from_what_is_staged(
    hub: WritableHub, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = local(source, tmp_path / "local")
    hub.commits.append("a" * 40)
    hub.fail_commits = 2
    with pytest.raises(RemoteError, match="org/model"):
        wb.convert(source, "hf://org/model", to="hf", dtype="f16")
    assert staged() == []
    with pytest.raises(RemoteError, match="org/model"):
        wb.convert(source, "hf://org/model", to="hf", dtype="f16", resume=True)
    assert staged()
    assert hub.files == {}
    result = wb.convert(source, "hf://org/model", to="hf", dtype="f16", resume=True)
    assert any("kept from an interrupted run" in note for note in result.notes)
    assert hub.files == expected
    assert staged() == []


def test_a_commit_of_others_is_not_overwritten(hub: WritableHub, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commits.append("a" * 40)
    real = hub._preupload

    def meanwhile(path: str, body: bytes) -> Any:
        hub.commits.append("b" * 40)
        return real(path, body)

    monkeypatch.setattr(hub, "_preupload", meanwhile)
    with pytest.raises(RefusedError, match="another commit meanwhile"):
        wb.convert(source, "hf://org/model", to="hf", dtype="f16")
    assert hub.files == {}


def test_what_stands_in_the_way(hub: WritableHub, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="replace_folder=True"):
        wb.convert(source, "hf://org/model", to="hf", replace_folder=True)
    assert main(["convert", str(source), "hf://org/model", "--to", "gguf", "--no-tokenizer"]) == 2
    assert "name the file" in capsys.readouterr().err
    assert main(["convert", str(source), "hf://org/model", "--to", "hf", "--dry-run"]) == 0
    assert "this machine's disk" in " ".join(capsys.readouterr().err.split())
    hub.commits.append("a" * 40)
    hub.files["config.json"] = b"{}"
    with pytest.raises(RefusedError, match=r"config\.json already"):
        wb.convert(source, "hf://org/model", to="hf")
