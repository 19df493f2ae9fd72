"""Keeps a file to one process while it is changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from weighbridge.base.errors import RefusedError
from weighbridge.io.sink.partials import is_alive

_WAIT = "wait until it is done"


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
