"""Several processes at one file: which are alive, what killed ones left, and a lock."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weighbridge.base.errors import RefusedError

_WAIT = "wait until it is done"
_PARTIAL = re.compile(r"\.(\d+)\.partial\Z")


def remove_stale(target: Path) -> None:
    """The staged files that killed processes left for this target."""
    prefix, staged = f".{target.name}.", []
    with contextlib.suppress(OSError):
        staged = [p for p in target.parent.iterdir() if p.name.startswith(prefix) and p.name.endswith(".partial")]
    for stale in staged:
        match = _PARTIAL.search(stale.name)
        if match and not is_alive(int(match[1])):
            if stale.is_dir() and not stale.is_symlink():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    if not 0 < pid < 1 << 31:  # 0 and less mean groups of processes; more isn't a valid process number
        return False
    if sys.platform == "win32":
        return _alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _alive_on_windows(pid: int) -> bool:
    """Windows has no signal 0: `os.kill` would terminate the process there."""
    import ctypes

    kernel: Any = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return bool(kernel.GetLastError() == 5)  # ERROR_ACCESS_DENIED: it runs under another user
    try:
        code = ctypes.c_ulong()
        kernel.GetExitCodeProcess(ctypes.c_void_p(handle), ctypes.byref(code))
        return code.value == 259  # STILL_ACTIVE
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


@contextlib.contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[None]:
    """Nobody else changes the file at `path` inside this block, as far as they ask here too: a `flock` on the file, and
    on file systems and systems without one a file `.NAME.lock`. RefusedError where another process has it."""
    real = Path(path).resolve()
    fd = os.open(real, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        with contextlib.ExitStack() as stack:
            if not _flock(fd, path):
                stack.enter_context(_lock_file(real.with_name(f".{real.name}.lock"), path))
            if not os.path.samestat(os.fstat(fd), os.stat(real)):
                raise RefusedError(f"{os.fspath(path)} has been replaced by another process", hint="try again")
            yield
    finally:
        os.close(fd)


def _flock(fd: int, path: str | os.PathLike[str]) -> bool:
    """Locks an open file; returns False on file systems without locks."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RefusedError(f"{os.fspath(path)} is being changed by another process", hint=_WAIT) from None
    except (ImportError, OSError):
        return False
    return True


@contextlib.contextmanager
def _lock_file(lock: Path, path: str | os.PathLike[str]) -> Iterator[None]:
    """A file that only one process can create, with its number. That of a process that is gone counts for nothing."""
    with contextlib.suppress(OSError, ValueError):
        if not is_alive(int(lock.read_text("ascii"))):
            lock.unlink(missing_ok=True)
    try:
        fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        words = f"{os.fspath(path)} is being changed by another process"
        raise RefusedError(words, hint=f"{_WAIT}; if it is gone, remove {lock}") from None
    try:
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)
        yield
    finally:
        lock.unlink(missing_ok=True)
