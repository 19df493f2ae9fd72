"""Files written by position (new ones from any thread, or bytes of existing ones in place), and streams as files."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import MIB
from weighbridge.io.digest import digest_of
from weighbridge.io.source import FileSource

# Errors of system calls that the file system or kernel doesn't support: fall back to plain writes.
CANNOT = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ETXTBSY, errno.EPERM})
_WORTH_BEGINNING = 8 << 20  # bytes: fewer aren't worth a system call
# One write. The system takes pages as large as the write; once the page cache fills the memory, it has to make them:
# 1.4 s of the processor for 1.4 GB in writes of 1 MiB, 0.7 s in these. And threads wait less for the file's lock: two
# of them write and flush 1 GiB in 0.34 s, not in 0.43 s.
_WRITE_CHUNK = MIB // 8
_COPY_CHUNK = 32 << 20  # one copy_file_range call: long enough to be cheap, short enough for progress


def sync_file(fd: int, *, times: bool = True) -> None:
    """Returns when the file is on the disk. On macOS, `fsync` leaves data in the disk's own cache; F_FULLFSYNC doesn't.
    `times`: with the file's times, which only `fsync` writes."""
    if sys.platform == "darwin":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError:  # a file system without it, such as a network's
            pass
    (os.fsync if times else getattr(os, "fdatasync", os.fsync))(fd)


class OutFile:
    """One file being written by position, from any thread."""

    def __init__(self, path: Path, size: int, *, again: bool = False, reserved: bool = True) -> None:
        """`again`: a file that is there already, of that size, is written on. `reserved`: its disk space is allocated
        first."""
        self.path, self.size = path, size
        kind = os.O_RDWR | (getattr(os, "O_NOFOLLOW", 0) if again else os.O_CREAT | os.O_EXCL)
        flags = kind | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, 0o666)  # mode as any normal file: the umask decides
        self._lock = threading.Lock()
        self._waiting = 0  # bytes written since `_begin_to_disk`, about: threads may overlook each other's
        try:
            _preallocate(self._fd, size) if reserved else os.ftruncate(self._fd, size)
        except BaseException:
            self.close()
            raise

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """All of `data` at `offset`."""
        view = memoryview(data).cast("B")
        if offset < 0 or offset + len(view) > self.size:
            raise UsageError(f"a write of {len(view)} bytes at {offset} into a file of {self.size}")
        size = len(view)
        while len(view):
            done = self._pwrite(view[:_WRITE_CHUNK], offset)
            view, offset = view[done:], offset + done
        self._begin_to_disk(size)

    def _pwrite(self, view: memoryview, offset: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._fd, view, offset)
        with self._lock:
            os.lseek(self._fd, offset, os.SEEK_SET)
            return os.write(self._fd, view)

    def copy(self, source: FileSource, start: int, offset: int, size: int) -> bool:
        """Copies bytes inside the kernel; False if that isn't possible (then nothing is assumed to be written)."""
        if not hasattr(os, "copy_file_range") or start + size > source.size:
            return False
        done = 0
        while done < size:
            step = min(size - done, _COPY_CHUNK)
            try:
                got = os.copy_file_range(source.fileno(), self._fd, step, start + done, offset + done)
            except OSError as error:
                if error.errno in CANNOT:
                    return False
                raise
            if got == 0:  # the source became shorter: the plain read reports it properly
                return False
            self._begin_to_disk(got)
            done += got
        return True

    def _begin_to_disk(self, size: int) -> None:
        """Starts writing back what was written (sync_file_range(2)), once enough has been: the disk may otherwise idle
        until the final sync. `size`: bytes that were just written. Guarantees nothing: the sync reports errors."""
        self._waiting += size
        if self._waiting >= _WORTH_BEGINNING and (call := _sync_file_range()) is not None:
            self._waiting = 0
            call(self._fd, 0, 0, 2)  # SYNC_FILE_RANGE_WRITE: all dirty pages of the file

    def adopt(self, origins: Iterable[object]) -> None:
        """Does nothing: ranges that a store would copy server-side are written through `copy` and `write`."""

    def digest(self, algo: str) -> str:
        """Returns the digest ("sha256" or "git") of the written file."""
        with FileSource(self.path) as source:
            return digest_of(source, algo)

    def shrink(self, size: int) -> None:
        """Cuts the file, whose size was a bound, to `size` bytes."""
        if not 0 <= size <= self.size:
            raise UsageError(f"a file of {self.size} bytes can't shrink to {size}")
        os.ftruncate(self._fd, size)
        self.size = size

    def fileno(self) -> int:
        """The descriptor, for calls of the system that share blocks."""
        return self._fd

    def sync(self) -> None:
        sync_file(self._fd)

    def sync_data(self) -> None:
        """Syncs the data and the metadata needed to read it, but not the times."""
        sync_file(self._fd, times=False)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):  # a C library without it
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    found: Callable[[int, int, int, int], int] = call
    return found


def _preallocate(fd: int, size: int) -> None:
    """Gives the file its size, and its blocks if the system can, so that a full disk fails before the work starts."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in CANNOT:
                raise
    os.ftruncate(fd, size)


class InPlace:
    """An existing file whose bytes are changed in place, for edits that fit. The caller has made sure that the file
    isn't shared (no hard link, no blob of a store)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise UsageError(f"{os.fspath(path)} is not a regular file")

    def lock(self) -> bool:
        """Locks the file for this process until it is closed; False if another process has it. Without `flock`, or
        on file systems without locks, nothing is locked."""
        try:
            import fcntl

            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except (ImportError, OSError):
            pass
        return True

    def truncate(self, size: int) -> None:
        """Leave the first `size` bytes only, on disk when this returns."""
        os.ftruncate(self._fd, size)
        sync_file(self._fd)

    def write(self, offset: int, data: bytes) -> None:
        """One positioned write, on disk when this returns."""
        if hasattr(os, "pwrite"):
            done = os.pwrite(self._fd, data, offset)
        else:
            os.lseek(self._fd, offset, os.SEEK_SET)
            done = os.write(self._fd, data)
        if done != len(data):
            raise OSError(errno.EIO, f"only {done} of {len(data)} bytes were written at {offset}")
        sync_file(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> InPlace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def spooled(stream: BinaryIO, name: str) -> Iterator[Path]:
    """The bytes of `stream` in a temporary file called `name`, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as folder:
        path = Path(folder) / name
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file, MIB)
        yield path
