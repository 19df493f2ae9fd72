"""`wb fetch`: the files as they lie elsewhere, compared with their digests, resumed, all or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.remote.servers import FileServer, Hub, Request
from tests.reports.makers import llama_folder

import weighbridge as wb
from weighbridge.adapters.remote import extra
from weighbridge.base.errors import RemoteError, UsageError
from weighbridge.cli.main import main

pytest.importorskip("huggingface_hub")
Connect = Callable[..., None]


@pytest.fixture
def hub(tmp_path: Path, connect: Connect) -> Iterator[Hub]:
    folder = llama_folder(tmp_path / "model")
    deep = folder / "onnx" / "fp16" / "model.onnx"
    deep.parent.mkdir(parents=True)
    deep.write_bytes(bytes(5000))
    (folder / "empty.txt").write_bytes(b"")
    with Hub(folder).running() as hub:
        connect(hub)
        yield hub


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_all_files_come_as_they_are(hub: Hub, tmp_path: Path) -> None:
    result = wb.fetch("hf://org/model", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(hub.folder)
    assert sorted(result.files) == sorted(contents(hub.folder))
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["*.json"], [], {"config.json", "generation_config.json", "model.safetensors.index.json"}),
        (["*.json"], ["model*"], {"config.json", "generation_config.json"}),
        (["onnx/*"], [], {"onnx/fp16/model.onnx"}),
        ([], ["*"], None),
    ],
)
def test_some_files(
    include: list[str], exclude: list[str], expected: set[str] | None, hub: Hub, tmp_path: Path
) -> None:  # fmt: skip
    if expected is None:
        with pytest.raises(UsageError, match="no file"):
            wb.fetch("hf://org/model", tmp_path / "out", include=include, exclude=exclude)
        return
    wb.fetch("hf://org/model", tmp_path / "out", include=include, exclude=exclude)
    assert contents(tmp_path / "out").keys() == expected


def test_one_file(hub: Hub, tmp_path: Path) -> None:
    wb.fetch("hf://org/model/config.json", tmp_path / "out")
    assert contents(tmp_path / "out").keys() == {"config.json"}


@pytest.mark.parametrize("lfs", [True, False])
def test_bytes_that_differ_from_the_digest_are_refused(lfs: bool, hub: Hub, tmp_path: Path) -> None:
    server = hub.cdn if lfs else hub.hub
    path = next(k for k, v in server.files.items() if lfs or k.endswith("/config.json"))
    found = server.files[path]
    data = found.read_bytes() if isinstance(found, Path) else found
    server.files[path] = data[:-1] + b"?"
    with pytest.raises(RemoteError, match=r"its \w+ differs"):
        wb.fetch("hf://org/model", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_what_is_done_is_not_fetched_again(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weighbridge.adapters.remote import http
    from weighbridge.io.sink import journal

    monkeypatch.setattr(journal, "_WAIT_BYTES", 1)
    fetch, name = http.HttpClient.fetch, "model-00002-of-00002.safetensors"
    add, before = journal.Journal.add, threading.Event()
    size = (hub.folder / "model-00001-of-00002.safetensors").stat().st_size

    def failing(self: http.HttpClient, file: http.HttpFile, *rest: object) -> None:
        if file.name.endswith(name):  # which is read ahead, while the other one is written
            assert before.wait(60)
            raise RemoteError("cut off", hint="later")
        fetch(self, file, *rest)  # type: ignore[arg-type]

    def noted(self: journal.Journal, piece: journal.Piece, crc: int) -> bool:
        found = add(self, piece, crc)
        if piece.size == size:
            before.set()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(http.HttpClient, "fetch", failing)
        patch.setattr(journal.Journal, "add", noted)
        assert main(["fetch", "hf://org/model", str(tmp_path / "out"), "--jobs", "1"]) == 2
    assert "out.partial" in capsys.readouterr().err
    monkeypatch.setattr("weighbridge.io.ranges.CACHED._files", {})
    hub.clear()
    assert main(["fetch", "hf://org/model", str(tmp_path / "out")]) == 0
    assert contents(tmp_path / "out") == contents(hub.folder)
    first = next(s for s in hub.siblings if s["rfilename"].startswith("model-00001"))
    assert not [r for r in hub.cdn.log if first["lfs"]["sha256"] in r.path]


def test_what_has_no_digest_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileServer({"/m/x.bin": bytes(100)}).running() as server:
        assert main(["fetch", f"{server.url}/m/x.bin", str(tmp_path / "out")]) == 0
    assert "no digest" in capsys.readouterr().err
    assert contents(tmp_path / "out") == {"x.bin": bytes(100)}


@pytest.mark.parametrize("scheme", ["hf", "http"])
def test_an_index_brings_its_set(scheme: str, hub: Hub, tmp_path: Path) -> None:
    names = {"config.json", "generation_config.json", "model.safetensors.index.json",
             *(f"model-0000{n}-of-00002.safetensors" for n in (1, 2))}  # fmt: skip
    with FileServer({f"/m/{name}": hub.folder / name for name in names}).running() as server:
        root = "hf://org/model" if scheme == "hf" else f"{server.url}/m"
        wb.fetch(f"{root}/model.safetensors.index.json", tmp_path / "out")
        assert contents(tmp_path / "out") == {name: (hub.folder / name).read_bytes() for name in names}
        wb.fetch(f"{root}/model.safetensors.index.json", tmp_path / "two", include=["*-00002-*"])
        assert contents(tmp_path / "two").keys() == {"model-00002-of-00002.safetensors"}


def test_a_part_of_a_split_gguf_brings_the_others(tmp_path: Path) -> None:
    parts = {f"/m/t-0000{n}-of-00003.gguf": b"GGUF%d" % n for n in (1, 2, 3)}
    with FileServer(dict(parts)).running() as server:
        wb.fetch(f"{server.url}/m/t-00002-of-00003.gguf", tmp_path / "out")
    assert contents(tmp_path / "out") == {name.rpartition("/")[2]: data for name, data in parts.items()}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("f1.gguf", {"f1.gguf"}),
        ("f1", {"f1/x.gguf"}),
        ("there.gguf", {"there.gguf/x.gguf"}),  # a folder that is there
        ("f1.v2", {"f1.v2/x.gguf"}),
    ],
)
def test_where_a_single_file_goes(target: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "there.gguf").mkdir()
    with FileServer({"/m/x.gguf": b"GGUF"}).running() as server:
        assert main(["fetch", f"{server.url}/m/x.gguf", str(tmp_path / target)]) == 0
        assert contents(tmp_path) == dict.fromkeys(expected, b"GGUF")
        assert main(["fetch", f"{server.url}/m/x.gguf", str(tmp_path / target)]) == 2  # it is there


@pytest.mark.costly
def test_a_file_that_changes_midway_is_not_resumed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from weighbridge.io.sink import journal

    served = tmp_path_factory.mktemp("served")
    monkeypatch.setattr(journal, "_WAIT_BYTES", 1)
    old, new = served / "old", served / "new"
    old.write_bytes(bytes(24 << 20))
    new.write_bytes(b"\1" * (24 << 20))

    def replace(handler: Any, request: Request) -> bool:
        """The second half comes once the first one is in the journal, and is of another file."""
        if int(request.headers["range"][6:].partition("-")[0]) < 12 << 20:
            return False
        if journaled.is_set():
            server.files["/m/x.gguf"] = new
            return False
        handler.reply(request, 503, b"", {"Retry-After": "1"})
        return True

    def noted(self: journal.Journal, piece: journal.Piece, crc: int) -> bool:
        found = add(self, piece, crc)
        journaled.set()
        return found

    journaled, add = threading.Event(), journal.Journal.add
    monkeypatch.setattr(journal.Journal, "add", noted)
    monkeypatch.setattr("weighbridge.conversion.plan.run._COPY", 2 << 20)
    with FileServer({"/m/x.gguf": old}, extra=replace).running() as server:
        assert main(["fetch", f"{server.url}/m/x.gguf", str(tmp_path / "out"), "--jobs", "1"]) == 2
        shown = capsys.readouterr().err
        assert "has changed on the server" in shown
        assert "run it again" in shown
        assert "--resume" not in shown
        assert not list(tmp_path.iterdir())
        extra._kept.clear()  # as a new process
        assert main(["fetch", f"{server.url}/m/x.gguf", str(tmp_path / "out")]) == 0
        assert contents(tmp_path / "out") == {"x.gguf": new.read_bytes()}


def test_what_is_here_is_not_fetched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "on this machine" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "hf://org/model", str(tmp_path / "out"), "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    assert not hub.cdn.log
