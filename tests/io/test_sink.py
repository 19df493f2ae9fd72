"""Writing: all or nothing, and nothing that existed is harmed."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.system import posix_only

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.io.sink import InPlace, Sink, files, is_alive, publish, write_file
from weighbridge.io.source import FileSource


@posix_only
def test_a_file_appears_whole_with_the_mode_of_any_file(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_file(tmp_path / "a", b"hello")
    finally:
        os.umask(old)
    assert (tmp_path / "a").read_bytes() == b"hello"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@posix_only
def test_an_existing_file_is_refused_and_named_option_allows_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o600)
    with pytest.raises(RefusedError, match="overwrite=True"):
        write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    write_file(tmp_path / "a", b"new", overwrite=True)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600  # an existing file keeps its mode


@posix_only
def test_a_symlink_stays_one_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"new", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


class _Boom(Exception):
    pass


def _half_written(target: Path, folder: bool) -> None:
    with Sink(target, folder=folder, size=10, overwrite=True, names=["model.safetensors"]) as sink:
        sink.create("model.safetensors", 10).write(0, b"new")
        raise _Boom


@pytest.mark.parametrize("folder", [False, True])
def test_an_error_leaves_nothing_behind_and_the_old_unharmed(tmp_path: Path, folder: bool) -> None:
    target = tmp_path / "t"
    if folder:
        target.mkdir()
        (target / "model.safetensors").write_bytes(b"old")
    else:
        target.write_bytes(b"old")
    with pytest.raises(_Boom):
        _half_written(target, folder)
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert (target / "model.safetensors" if folder else target).read_bytes() == b"old"


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole(tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:  # as on a system that can't swap two names in one step
        monkeypatch.setattr(publish, "_rename", lambda a, b, flags: False)
    target = tmp_path / "t"
    target.mkdir()
    (target / "old.safetensors").write_bytes(b"old")
    with Sink(target, folder=True, replace_folder=True) as sink:
        sink.create("new.safetensors", 3).write(0, b"new")
    assert [p.name for p in target.iterdir()] == ["new.safetensors"]
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def _no_flag(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publish, "_rename", lambda a, b, flags: False)


def _no_link(patch: pytest.MonkeyPatch) -> None:
    def refuse(a: object, b: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    _no_flag(patch)
    patch.setattr(os, "link", refuse)


def _overtaken(target: Path, folder: bool) -> None:
    """A write to `target`, in the middle of which another one is done."""
    with Sink(target, folder=folder) as sink:
        sink.create("model.gguf", 3).write(0, b"two")
        if folder:
            target.mkdir()
        (target / "model.gguf" if folder else target).write_bytes(b"one")


@pytest.mark.parametrize("system", [lambda patch: None, _no_flag, _no_link], ids=["flag", "link", "neither"])
@pytest.mark.parametrize("folder", [False, True])
def test_what_came_into_being_in_the_meantime_is_kept(
    tmp_path: Path, folder: bool, system: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two writes to one target without --overwrite, one succeeds."""
    system(monkeypatch)
    target = tmp_path / "t"
    with pytest.raises(RefusedError, match="has been created in the meantime"):
        _overtaken(target, folder)
    assert (target / "model.gguf" if folder else target).read_bytes() == b"one"
    assert {p.name for p in tmp_path.iterdir()} <= {"t"}


@pytest.mark.parametrize("system", [lambda patch: None, _no_flag, _no_link], ids=["flag", "link", "neither"])
def test_a_new_file_is_published_on_any_system(
    tmp_path: Path, system: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    system(monkeypatch)
    write_file(tmp_path / "t", b"one")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("t", b"one")]


@pytest.mark.parametrize("stray", ["thesis.txt", "src/train.py", "other.gguf", "sub/notes.doc"])
def test_overwriting_a_folder_replaces_only_files_that_are_written(tmp_path: Path, stray: str) -> None:
    target = tmp_path / "t"
    (target / stray).parent.mkdir(parents=True, exist_ok=True)
    (target / stray).write_bytes(b"mine")
    (target / "config.json").write_bytes(b"old")
    with pytest.raises(RefusedError, match=f"would be deleted: {stray}\n.*replace_folder=True"):
        Sink(target, folder=True, overwrite=True, names=["config.json"])
    with Sink(target, folder=True, overwrite=True, names=["config.json", stray]) as sink:
        sink.create("config.json", 3).write(0, b"new")
        sink.create(stray, 3).write(0, b"new")
    assert {p.read_bytes() for p in target.rglob("*") if p.is_file()} == {b"new"}


def test_files_that_come_while_a_folder_is_written_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.mkdir()
    (target / "a").write_bytes(b"old")
    with pytest.raises(RefusedError, match="would be deleted: thesis"):
        _with_thesis(target)
    assert {p.name: p.read_bytes() for p in target.iterdir()} == {"a": b"old", "thesis": b"mine"}


def _with_thesis(target: Path) -> None:
    with Sink(target, folder=True, overwrite=True, names=["a"]) as sink:
        sink.create("a", 3).write(0, b"new")
        (target / "thesis").write_bytes(b"mine")


def test_a_file_is_not_replaced_by_the_option_for_folders(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"old")
    with pytest.raises(RefusedError, match="exists already"):
        Sink(tmp_path / "t", folder=False, replace_folder=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("folder", [False, True])
def test_what_is_no_file_is_never_replaced(tmp_path: Path, folder: bool) -> None:
    """Not a pipe, and so not /dev/null, whatever the caller says."""
    target = tmp_path / "pipe"
    os.mkfifo(target)
    with pytest.raises(RefusedError, match="device, a pipe"):
        Sink(target, folder=folder, overwrite=True)
    assert stat.S_ISFIFO(target.stat().st_mode)


def test_an_empty_folder_may_be_the_target(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with Sink(tmp_path / "t", folder=True) as sink:
        sink.create("a", 1).write(0, b"x")
    assert (tmp_path / "t" / "a").read_bytes() == b"x"


def test_not_enough_space_is_told_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not enough space") as caught:
        Sink(tmp_path / "t", folder=False, size=1 << 60)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@posix_only
def test_a_full_disk_while_preallocating_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "t", b"data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_names_the_target(tmp_path: Path, number: int) -> None:
    """The call that fails knows a number and no name."""
    with pytest.raises(OSError) as caught, Sink(tmp_path / "t", folder=False):
        raise OSError(number, os.strerror(number))
    assert caught.value.filename == str(tmp_path / "t")


def test_missing_parents_are_made_and_unmade_where_nothing_comes_of_it(tmp_path: Path) -> None:
    write_file(tmp_path / "a" / "t", b"x")
    assert (tmp_path / "a" / "t").read_bytes() == b"x"
    with pytest.raises(_Boom), Sink(tmp_path / "c" / "d" / "t", folder=True, parents=True):
        raise _Boom
    with pytest.raises(RefusedError, match="would need 2 new folders"):
        Sink(tmp_path / "c" / "d" / "t", folder=True)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["../a", "a/../b", "/".join("a" * 17), "", ".", "..", "/abs"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError), Sink(tmp_path / "t", folder=True) as sink:
        sink.create(name, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_write_outside_the_file_is_refused(tmp_path: Path) -> None:
    for offset in (-1, 3, 100):
        with pytest.raises(UsageError), Sink(tmp_path / "t", folder=False) as sink:
            sink.create("", 4).write(offset, b"xy")


@posix_only
def test_a_killed_process_harms_nothing_and_its_rest_is_removed_next_time(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.write_bytes(b"old")
    code = f"""
        import os, signal
        from weighbridge.io.sink import Sink
        with Sink({str(target)!r}, folder=False, size=100, overwrite=True) as sink:
            sink.create("", 100).write(0, b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2  # the old one and the killed process's staging
    write_file(target, b"new", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert target.read_bytes() == b"new"


@posix_only
def test_staging_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / f".t.{os.getppid()}.partial"
    other.write_bytes(b"busy")
    write_file(tmp_path / "t", b"x")
    assert other.exists()


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 10**30])
def test_a_number_that_no_process_has_is_nobody_alive(pid: int) -> None:
    assert not is_alive(pid)  # and os.kill, to which 0 and -1 mean many processes, isn't asked


def test_windows_is_asked_without_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """There `os.kill(pid, 0)` would interrupt the process."""

    class Kernel:
        exit_codes: ClassVar = {7: 259, 8: 1}

        def __init__(self) -> None:
            self.OpenProcess = lambda *args: self.open(*args)
            self.closed: list[int] = []

        def open(self, access: int, inherit: bool, pid: int) -> int:
            return pid if pid in self.exit_codes else 0

        def GetLastError(self) -> int:
            return 87  # ERROR_INVALID_PARAMETER: no such process

        def GetExitCodeProcess(self, handle: ctypes.c_void_p, code: Any) -> None:
            code._obj.value = self.exit_codes[handle.value or 0]

        def CloseHandle(self, handle: ctypes.c_void_p) -> None:
            self.closed.append(handle.value or 0)

    kernel = Kernel()
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    assert [is_alive(pid) for pid in (7, 8, 9)] == [True, False, False]
    assert kernel.closed == [7, 8]


def test_copy_inside_the_kernel_equals_the_bytes(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "src").write_bytes(data)
    with FileSource(tmp_path / "src") as source, Sink(tmp_path / "t", folder=False) as sink:
        out = sink.create("", 200_000)
        if out.copy(source, 1234, 5, 100_000):
            done = (tmp_path / f".t.{os.getpid()}.partial").read_bytes()
            assert done[5:100_005] == data[1234:101_234]
        assert not out.copy(source, 299_999, 0, 2)  # reaches beyond the source: the ordinary way has to tell it


def test_the_disk_begins_with_what_was_written_while_the_rest_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int, int]] = []
    monkeypatch.setattr(files, "_sync_file_range", lambda: lambda fd, at, size, flag: begun.append((at, size, flag)))
    monkeypatch.setattr(files, "_WORTH_BEGINNING", 1 << 20)
    (tmp_path / "source").write_bytes(bytes(range(256)) * (8 << 10))
    with FileSource(tmp_path / "source") as source, Sink(tmp_path / "out", folder=False) as whole:
        out = whole.create("", 4 << 20)
        calls = []
        for at in range(8):  # slabs of a quantized tensor are a quarter of a megabyte
            out.write(at << 18, bytes(1 << 18))
            calls.append(len(begun))
        copied = out.copy(source, 0, 2 << 20, 2 << 20)
    assert calls == [0, 0, 0, 1, 1, 1, 1, 2]
    assert begun == [(0, 0, 2)] * (3 if copied else 2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has the call")
def test_the_call_that_begins_is_the_systems_own(tmp_path: Path) -> None:
    call = files._sync_file_range()
    if call is None:
        pytest.skip("a C library without it")
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(5000))
        file.flush()
        assert call(file.fileno(), 10, 4000, 2) == 0
        assert call(file.fileno(), 10, 4000, 1 << 9) == -1  # no such flag: the arguments are where they belong


def test_in_place_changes_only_what_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"0123456789")
    with InPlace(tmp_path / "t") as file:
        file.write(3, b"xyz")
    assert (tmp_path / "t").read_bytes() == b"012xyz6789"
    with pytest.raises((UsageError, OSError)):
        InPlace(tmp_path)
