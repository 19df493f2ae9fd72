"""The only code that writes. Nothing that existed is harmed, nothing half-written is left behind.

A file goes to a temporary sibling (space checked, preallocated), then fsync, then one rename. A folder is staged beside
its place and exchanged by one rename. On any error the staging is removed; after `kill -9` a stale sibling stays, named
`.NAME.PID.partial`, and the next write to the same target removes it if that process is gone.

A write with a journal (`io/journal.py`) is staged as `NAME.partial` instead, stays there when it is interrupted, and is
gone on with the next time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.io.source import FileSource

if TYPE_CHECKING:
    from weighbridge.io.journal import Journal, Piece

_PARTIAL = re.compile(r"\.(\d+)\.partial\Z")
# What a system call says where the file system or the kernel has no such service: do it the ordinary way.
_CANNOT = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ETXTBSY, errno.EPERM})
_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
_WORTH_BEGINNING = 1 << 20  # bytes: fewer aren't worth a system call
_COPY_CHUNK = 32 << 20  # one copy_file_range call: long enough to cost nothing, short enough for progress


class OutFile:
    """One file being written by position, from any thread."""

    def __init__(self, path: Path, size: int, *, again: bool = False) -> None:
        """`again`: a file that is there already, of that size, is written on."""
        self.path, self.size = path, size
        kind = os.O_RDWR | (getattr(os, "O_NOFOLLOW", 0) if again else os.O_CREAT | os.O_EXCL)
        flags = kind | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, 0o666)  # mode as any normal file: the umask decides
        self._lock = threading.Lock()
        try:
            _preallocate(self._fd, size)
        except BaseException:
            self.close()
            raise

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """All of `data` at `offset`."""
        view = memoryview(data).cast("B")
        if offset < 0 or offset + len(view) > self.size:
            raise UsageError(f"a write of {len(view)} bytes at {offset} into a file of {self.size}")
        start, size = offset, len(view)
        while len(view):
            done = self._pwrite(view, offset)
            view, offset = view[done:], offset + done
        _begin_to_disk(self._fd, start, size)

    def _pwrite(self, view: memoryview, offset: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._fd, view, offset)
        with self._lock:
            os.lseek(self._fd, offset, os.SEEK_SET)
            return os.write(self._fd, view)

    def copy(self, source: FileSource, start: int, offset: int, size: int) -> bool:
        """Copy bytes inside the kernel; False where that can't be done (then nothing is assumed written)."""
        if not hasattr(os, "copy_file_range") or start + size > source.size:
            return False
        done = 0
        while done < size:
            try:
                got = os.copy_file_range(
                    source.fileno(), self._fd, min(size - done, _COPY_CHUNK), start + done, offset + done
                )
            except OSError as error:
                if error.errno in _CANNOT:
                    return False
                raise
            if got == 0:  # the source became shorter: the ordinary read says so in the right words
                return False
            _begin_to_disk(self._fd, offset + done, got)
            done += got
        return True

    def sync(self) -> None:
        os.fsync(self._fd)

    def sync_data(self) -> None:
        """The bytes, and what it takes to find them again; not the times."""
        getattr(os, "fdatasync", os.fsync)(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _begin_to_disk(fd: int, offset: int, size: int) -> None:
    """Let the disk begin with bytes that were just written, where the system can be told so (sync_file_range(2)): else
    it may idle until the sync at the end. Nothing is promised: what goes wrong on the way, that sync tells."""
    if size >= _WORTH_BEGINNING and (call := _sync_file_range()) is not None:
        call(fd, offset, size, 2)  # SYNC_FILE_RANGE_WRITE


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
    """Give the file its size, and its blocks where the system can, so that a full disk is told before the work."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
    os.ftruncate(fd, size)


class Sink:
    """Files to be written under one target: a single file, or a folder of them. Use as a context manager; leaving it
    without an error publishes everything at once. `key`: all that the bytes depend on, of a write that may be
    interrupted and gone on with; the pieces it has `finished` before are in `done`."""

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        folder: bool,
        size: int = 0,
        overwrite: bool = False,
        key: Mapping[str, str] | None = None,
    ) -> None:
        self.target = Path(target)
        self.folder, self.overwrite = folder, overwrite
        self._key = key
        self._journal: Journal | None = None
        self._real = _resolve(self.target)  # a symlink stays one: what it points to is replaced
        mine = self._real.with_name(f".{self._real.name}.{os.getpid()}.partial")
        self._stage = mine if key is None else partial_of(target)
        self._open: list[OutFile] = []
        self._made: list[Path] = []
        self._check(size)

    def _check(self, size: int) -> None:
        if self._real.exists() and not (self._real.is_dir() or self._real.is_file()):
            # A rename would put a file in the place of /dev/null.
            raise RefusedError(f"{self.target} is a device, a pipe or a socket", hint="choose another target")
        if self._exists() and not self.overwrite:
            raise RefusedError(f"{self.target} exists already", option="--overwrite")
        if self._real.is_dir() != self.folder and self._real.exists():
            kind = "a folder" if self._real.is_dir() else "a file"
            raise RefusedError(f"{self.target} is {kind}", hint="choose another target")
        if self.folder and self._exists():
            _check_expendable(self._real)
        _remove_stale(self._real)
        above = next(p for p in self._real.parents if p.exists())
        free = shutil.disk_usage(above).free + (_allocated(self._stage) if self._key is not None else 0)
        if size > free:
            raise OSError(errno.ENOSPC, f"not enough space: {size} bytes needed, {free} free", str(above))

    def _exists(self) -> bool:
        if self.folder and self._real.is_dir():
            return any(self._real.iterdir())
        return self._real.exists()

    def __enter__(self) -> Sink:
        self._made = [p for p in self._real.parents if not p.exists()]
        self._real.parent.mkdir(parents=True, exist_ok=True)
        if self._key is not None:
            from weighbridge.io.journal import Journal

            self._journal = Journal(self._stage, self._key, overwrite=self.overwrite)
            if not self._journal.done:
                self._discard()
        if self.folder:
            self._stage.mkdir(exist_ok=self._journal is not None)
            if self._journal is not None:
                _sync_folder(self._stage.parent)
        return self

    @property
    def done(self) -> Mapping[Piece, int]:
        """The pieces that are on the disk from before, with the crc32 that they were noted with."""
        return {} if self._journal is None else self._journal.done

    def finished(self, piece: Piece, crc: int) -> None:
        """Note a piece of a file as written. It counts, after an interrupt, once its bytes have been synced."""
        if self._journal is not None and self._journal.add(piece, crc):
            self._note()

    def _note(self) -> None:
        if self._journal is not None and self._journal.waiting:
            try:
                for number in self._journal.waiting:
                    self._open[number].sync_data()
            except OSError:
                self._journal.drop()  # a sync that failed once may say nothing the next time, and the bytes are lost
                raise
            self._journal.write()

    def create(self, name: str, size: int) -> OutFile:
        """A file of `size` bytes: `name` inside the folder (or `sub/name`), or the target itself where it is a file."""
        path = self._inside(name) if self.folder else self._stage
        path.parent.mkdir(exist_ok=True)
        out = OutFile(path, size, again=self._journal is not None and self._again(path, size))
        self._open.append(out)
        if self._journal is not None:  # records of a file count for nothing without its name
            _sync_folder(path.parent)
        return out

    def _again(self, path: Path, size: int) -> bool:
        """Whether the file is there from before. Where it isn't as it was, nothing that was noted counts."""
        if path.is_file() and not path.is_symlink() and path.stat().st_size == size:
            return True
        if self._journal is not None and self._journal.done:
            self._journal.forget()
        path.unlink(missing_ok=True)
        return False

    def _inside(self, name: str) -> Path:
        parts = name.split("/")
        if len(parts) > 2 or any(part in ("", ".", "..") or Path(part).name != part for part in parts):
            raise UsageError(f"{name!r} is not a plain file name")
        return self._stage.joinpath(*parts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
            elif isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
                error.filename = str(self.target)  # a call that took a number and no name can't say it
        except BaseException as failure:
            error = failure
            raise
        finally:
            kept = error is not None and self._keeps(error)
            for out in self._open:
                out.close()
            if self._journal is not None:
                self._journal.close(remove=not kept)
            if not kept:
                self._discard()
            if not self._real.exists():
                for parent in self._made:  # deepest first
                    with contextlib.suppress(OSError):
                        parent.rmdir()

    def _keeps(self, error: BaseException) -> bool:
        """Whether there is something to go on with: what is done is noted, as far as the disk still takes it."""
        with contextlib.suppress(OSError):
            self._note()
        if not self.done or not self._stage.exists():
            return False
        error.add_note(f"what is done is kept in {self._stage}: the same command, with --resume, goes on from there")
        return True

    def _publish(self) -> None:
        self._note()
        for out in self._open:
            out.sync()
            out.close()
        if self.folder:
            if self._journal is not None and self._real.exists():
                self._journal.forget()  # the old folder may be in the place of the staged one for a moment
            _replace_folder(self._stage, self._real)
        else:
            if self._real.exists():
                shutil.copymode(self._real, self._stage)
            os.replace(self._stage, self._real)
        _sync_folder(self._real.parent)

    def _discard(self) -> None:
        if self._stage.is_dir():
            shutil.rmtree(self._stage, ignore_errors=True)
        else:
            self._stage.unlink(missing_ok=True)


def partial_of(target: str | os.PathLike[str]) -> Path:
    """Where a write with a journal is staged."""
    real = _resolve(Path(target))
    return real.with_name(real.name + ".partial")


def _allocated(stage: Path) -> int:
    """Bytes of the disk that a file, or a folder's files, take."""
    files = stage.rglob("*") if stage.is_dir() else [stage] if stage.is_file() else []
    return sum(getattr(p.stat(), "st_blocks", 0) * 512 for p in files)


def _resolve(path: Path) -> Path:
    return path.resolve() if path.is_symlink() else path.absolute()


# What a model folder holds. A folder with anything else in it is not replaced, whatever the caller says.
_MODEL_SUFFIXES = frozenset(
    {".safetensors", ".gguf", ".json", ".model", ".txt", ".md", ".jinja", ".bin", ".npz", ".npy", ".py"}
    | {".gitattributes", ".gitignore"}
)


def _check_expendable(folder: Path) -> None:
    for path in folder.rglob("*"):
        if not path.is_dir() and (path.suffix or path.name) not in _MODEL_SUFFIXES:
            raise RefusedError(
                f"{folder} holds {path.name!r}, which no model folder has; replacing the folder would delete it",
                hint="choose another target, or empty the folder yourself",
            )


def _replace_folder(stage: Path, target: Path) -> None:
    """Put the staged folder in its place. Where the system can, old and new change places in one step; elsewhere the
    old one steps aside first, under a name that is never cleaned up by itself, and goes after the new one stands."""
    if not target.exists():
        os.rename(stage, target)
    elif _exchange(stage, target):
        shutil.rmtree(stage, ignore_errors=True)
    else:
        old = target.with_name(f".{target.name}.{os.getpid()}.old")
        os.rename(target, old)
        try:
            os.rename(stage, target)
        except BaseException:
            os.rename(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders by one system call: renameat2(2) with RENAME_EXCHANGE, on macOS renamex_np with RENAME_SWAP."""
    import ctypes  # only here, and seldom

    try:
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return bool(libc.renamex_np(os.fsencode(a), os.fsencode(b), 2) == 0)
        here = -100  # AT_FDCWD
        return bool(libc.renameat2(here, os.fsencode(a), here, os.fsencode(b), 2) == 0)
    except (OSError, AttributeError, TypeError):  # no such function here (Windows, musl, an old glibc)
        return False


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse; the data itself is already safe
            os.fsync(fd)
    finally:
        os.close(fd)


def _remove_stale(target: Path) -> None:
    """Staging of killed processes for this very target."""
    for stale in _partials(target):
        match = _PARTIAL.search(stale.name)
        if match and not alive(int(match[1])):
            if stale.is_dir() and not stale.is_symlink():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)


def _partials(target: Path) -> Iterator[Path]:
    prefix = f".{target.name}."
    with contextlib.suppress(OSError):
        yield from [p for p in target.parent.iterdir() if p.name.startswith(prefix) and p.name.endswith(".partial")]


def alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    if not 0 < pid < 1 << 31:  # 0 and less mean groups of processes, more is no number of a process
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
    """Windows has no signal 0: there `os.kill` would interrupt the process instead of asking for it."""
    import ctypes

    kernel: Any = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return bool(kernel.GetLastError() == 5)  # ERROR_ACCESS_DENIED: it runs and is somebody else's
    try:
        code = ctypes.c_ulong()
        kernel.GetExitCodeProcess(ctypes.c_void_p(handle), ctypes.byref(code))
        return code.value == 259  # STILL_ACTIVE
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


class InPlace:
    """Bytes of an existing file changed where they lie, for edits that fit. The caller has made sure that the file is
    nobody else's (no hard link, no store's blob)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise UsageError(f"{os.fspath(path)} is not a regular file")

    def lock(self) -> bool:
        """Keep the file to this process until it is closed; false where another has it. A file system without locks
        keeps nobody off, nor does a system without `flock`."""
        try:
            import fcntl

            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except (ImportError, OSError):
            pass
        return True

    def cut(self, size: int) -> None:
        """Leave the first `size` bytes only, on disk when this returns."""
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)

    def write(self, offset: int, data: bytes) -> None:
        """One positioned write, on disk when this returns."""
        if hasattr(os, "pwrite"):
            done = os.pwrite(self._fd, data, offset)
        else:
            os.lseek(self._fd, offset, os.SEEK_SET)
            done = os.write(self._fd, data)
        if done != len(data):
            raise OSError(errno.EIO, f"only {done} of {len(data)} bytes were written at {offset}")
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> InPlace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_file(target: str | os.PathLike[str], data: bytes, *, overwrite: bool = False) -> None:
    """A whole small file at once, as safely as any other."""
    with Sink(target, folder=False, size=len(data), overwrite=overwrite) as sink:
        sink.create("", len(data)).write(0, data)
