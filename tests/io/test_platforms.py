"""What other systems do differently, by doubles: docs/platforms.md lists each point with its test here or elsewhere."""

from __future__ import annotations

import ast
import errno
import io
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.architecture import house
from tests.system import posix_only

from weighbridge.adapters.chat import worker
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.cli.habits import next_step
from weighbridge.cli.main import main
from weighbridge.io.file_names import windows_fault
from weighbridge.io.sink import InPlace, Sink, check_target, files, share, store, target, write_file
from weighbridge.io.sink.processes import exclusive
from weighbridge.io.source import FileSource
from weighbridge.reports.stores import places

PAGE = house.ROOT / "docs" / "platforms.md"


def test_every_proven_point_names_a_test() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        tests = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)\)", row)
        named = re.findall(r"`(test_\w+)`", row)
        assert named or "unproven" in row, row
        texts = "".join((house.ROOT / path).read_text("utf-8") for path in tests)
        assert [name for name in named if f"def {name}(" not in texts] == [], row


# ------------------------------------------------------------------------------------------------ names

DEVICES = ["CON", "nul.gguf", "Aux.tar.gz", "COM1", "lpt9.safetensors", "com\u00b2.bin", "CONOUT$", "prn .x"]
OTHERS = ["a:b.gguf", "a?.gguf", "a*", 'a"b', "a<b", "a|b", "a\\b", "a\x07", "model.", "model ", "model.gguf:q8"]
FINE = ["console.gguf", "model.gguf", "com10.gguf", "nul-model.gguf", "auxiliary", ".hidden", "a b.gguf", "cömputer"]


@pytest.mark.parametrize("name", [*DEVICES, *OTHERS])
@posix_only
def test_names_that_windows_cannot_have(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert windows_fault(name)
    check_target(tmp_path / name)  # here they are names like others
    monkeypatch.setattr("weighbridge.io.file_names.sys", SimpleNamespace(platform="win32"))
    with pytest.raises(UsageError, match="Windows"):
        check_target(tmp_path / name)
    with Sink(tmp_path / "folder", folder=True, size=1, names=["a"]) as sink:
        if "\\" not in name:
            with pytest.raises(UsageError, match="Windows"):
                sink.create(f"sub/{name}", 1)
        sink.create("a", 1).write(0, b"x")


@pytest.mark.parametrize("name", FINE)
def test_names_that_windows_can_have(name: str) -> None:
    assert windows_fault(name) is None


def test_names_that_differ_by_case_never_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FoldedPath(type(tmp_path)):  # type: ignore[misc] # as those of Windows
        def __eq__(self, other: object) -> bool:
            return str(self).casefold() == str(other).casefold()

        __hash__ = None  # type: ignore[assignment]

    class Folded(files.OutFile):  # a file system that ignores case
        def __init__(self, path: Path, size: int, **options: Any) -> None:
            super().__init__(path.with_name(path.name.lower()), size, **options)
            self.path = FoldedPath(path)

    monkeypatch.setattr(target, "OutFile", Folded)
    with Sink(tmp_path / "t", folder=True, size=2, names=["A.gguf", "a.gguf"]) as sink:
        sink.create("A.gguf", 1).write(0, b"x")
        with pytest.raises(RefusedError, match=r"a\.gguf and A\.gguf are one name"):
            sink.create("a.gguf", 1)


def test_a_drive_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """`a:b.gguf` names a drive of Windows: then not even the root exists."""
    monkeypatch.setattr(Path, "exists", lambda *_, **__: False)
    with pytest.raises(UsageError, match="doesn't exist"):
        check_target("b.gguf")


# ------------------------------------------------------------------------------------------------ missing calls


def test_without_fcntl_a_lock_is_a_file_and_nothing_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x" * 4096)
    (tmp_path / "b").write_bytes(b"x" * 4096)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with exclusive(tmp_path / "a"):
        assert (tmp_path / ".a.lock").exists()
        with pytest.raises(RefusedError, match="being changed"), exclusive(tmp_path / "a"):
            pass
    assert not (tmp_path / ".a.lock").exists()
    with InPlace(tmp_path / "a") as file:
        assert file.lock()
    with FileSource(tmp_path / "a") as source:
        assert not store._cloned(source, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert not share._reflink(tmp_path / "a", tmp_path / "b", 4096)


@pytest.mark.parametrize("missing", ["pwrite", "fdatasync", "posix_fallocate", "copy_file_range", "chown"])
@posix_only
def test_a_file_is_written_without_a_call_of_posix(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, missing)
    (tmp_path / "a").write_bytes(b"old")
    write_file(tmp_path / "a", b"new", overwrite=True)
    assert (tmp_path / "a").read_bytes() == b"new"
    with InPlace(tmp_path / "a") as file:
        file.write(1, b"E")
    assert (tmp_path / "a").read_bytes() == b"nEw"


@pytest.mark.parametrize("refused", [False, True])
def test_on_macos_the_disk_empties_its_cache(refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def control(fd: int, command: int) -> None:
        calls.append(command)
        if refused:
            raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setitem(sys.modules, "fcntl", SimpleNamespace(fcntl=control, F_FULLFSYNC=51))
    monkeypatch.setattr(files, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    write_file(tmp_path / "a", b"new")
    assert calls
    assert {"fsync" in calls, 51 in calls} == ({True} if refused else {True, False})
    assert calls[0] == 51


def test_a_target_that_another_program_has_open_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses to replace a file that is open or mapped."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "The process cannot access the file", "a")

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_file(tmp_path / "a", b"new", overwrite=True)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_a_limit_of_memory_that_macos_refuses(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    done = []

    def limit(which: int, values: tuple[int, int]) -> None:
        if which == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        done.append(which)

    monkeypatch.setattr(resource, "setrlimit", limit)
    monkeypatch.setattr(worker, "sys", SimpleNamespace(platform=platform))
    if platform == "darwin":
        worker.confine(1, 1)
        assert resource.RLIMIT_CPU in done
    else:
        with pytest.raises(ValueError, match="maximum limit"):
            worker.confine(1, 1)


# ------------------------------------------------------------------------------------------------ places and texts


@posix_only
def test_long_paths_have_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file", "x" * 300)
    assert next_step(error) is None
    monkeypatch.setattr("weighbridge.cli.habits.sys", SimpleNamespace(platform="win32"))
    assert "enable long paths" in (next_step(error) or "")
    assert next_step(FileNotFoundError(errno.ENOENT, "No such file", "x")) is None


@pytest.mark.parametrize("value", [None, "", "there"])
def test_llama_cpps_folder_on_windows(value: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    if value is not None:
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path) if value else "")
    monkeypatch.setattr(places, "sys", SimpleNamespace(platform="win32"))
    assert places.llama_cpp_root() == (tmp_path if value else Path.home()) / "llama.cpp"


@pytest.mark.parametrize("page", ["cp437", "cp1252", "cp932", "ascii"])
def test_a_console_may_lack_the_characters(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gewicht-重み-\U0001f9f1.bin"
    path.write_bytes(b"\0" * 100)
    screen = io.TextIOWrapper(io.BytesIO(), encoding=page)
    monkeypatch.setattr("sys.stdout", screen)
    assert main(["identify", str(path)]) in (0, 1)
    screen.flush()
    shown = screen.buffer.getvalue().decode(page)
    assert "gewicht-" in shown
    assert "\\U0001f9f1" in shown


def calls_of(*names: str) -> list[tuple[str, ast.Call]]:
    """Calls of functions with these names, in the package."""
    paths = [path for path in house.modules() if any(name in path.read_text("utf-8") for name in names)]
    trees = [(house.short(path), house.tree(path)) for path in paths]  # few: parsing all takes long
    nodes = [(short, node) for short, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(short, n) for short, n in nodes if ast.unparse(n.func).rpartition(".")[2] in names]


def test_processes_are_spawned_as_everywhere() -> None:
    """Windows has no fork, and macOS no safe one."""
    assert [short for short, _ in calls_of("fork", "forkpty")] == []
    methods = {ast.unparse(call.args[0]) for _, call in calls_of("get_context") if call.args}
    assert methods == {"'spawn'"}
    assert all(len(call.args) > 1 for _, call in calls_of("ProcessPoolExecutor"))


def test_texts_name_their_encoding() -> None:
    """The default is the code page on Windows. Files of Linux alone are the exception."""
    bare = {short for short, call in calls_of("read_text") if not call.args and not call.keywords}
    bare |= {short for short, call in calls_of("write_text") if len(call.args) < 2 and not call.keywords}
    assert bare <= {"tensors/memory.py", "adapters/chat/worker.py"}
