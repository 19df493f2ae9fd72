"""A folder whose files are computed on the fly, through FUSE (mfusepy, libfuse). Read-only."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.serving.ending import ended_by_signals
from weighbridge.base.errors import UnsupportedError, UsageError

_INSTALL: Final = "Debian: apt-get install fuse3; Fedora: dnf install fuse3 fuse3-libs; macOS: macFUSE or FUSE-T"
_PAUSE: Final = 0.1  # seconds between two attempts to unmount
_GRACE: Final = 1.5  # seconds for files that are still being read
_IDLE_THREADS: Final = 10
#: Lazy: a file that is open somewhere doesn't keep the folder mounted. Only root may use the last one.
_UNMOUNT: Final = (("fusermount3", "-u", "-z"), ("fusermount", "-u", "-z"), ("umount", "-l"))


class MountedFile(Protocol):
    """A file of the mounted folder."""

    size: int

    def read(self, offset: int, length: int) -> bytes: ...


def check_mountable(point: Path) -> None:
    """Raises UsageError if nothing can be mounted at `point`, UnsupportedError if FUSE isn't installed."""
    if os.path.ismount(point):
        raise UsageError(f"{point} is a mount point already", hint=f"fusermount3 -u {point}")
    if not point.is_dir():
        raise UsageError(f"{point} is no folder", hint=f"mkdir {point}")
    if any(point.iterdir()):
        raise UsageError(f"the folder {point} isn't empty", hint="choose an empty one")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise UnsupportedError("FUSE isn't available (/dev/fuse)", hint="wb serve gives the same files over HTTP")
    _fuse()


def mount(files: Mapping[str, MountedFile], point: Path, started: Callable[[], None] = lambda: None) -> None:
    """Serves `files`, by their paths, at the folder `point` until it is unmounted, Ctrl-C or SIGTERM. Calls `started`
    once it is mounted.

    libfuse's own signal handlers only set a flag that its waiting threads don't see, so libfuse runs in a thread, and
    the main thread unmounts. libfuse also changes the working directory to `/`; paths of the model and of the mount
    point may be relative, so `init` restores it."""
    check_mountable(point)
    point, fuse = point.absolute(), _fuse()
    failed, mounted, ended = list[RuntimeError | OSError](), threading.Event(), threading.Event()
    folder = Path.cwd()

    def init() -> None:
        os.chdir(folder)
        mounted.set()
        started()

    def serve() -> None:
        try:
            # libfuse 3.12 to 3.14 warn about their own default of `max_idle_threads`; libfuse 2 has no such option.
            idle = {"max_idle_threads": _IDLE_THREADS} if fuse.fuse_version_major >= 3 else {}
            operations = _operations(fuse, files, init)
            fuse.FUSE(operations, str(point), foreground=True, ro=True, fsname="weighbridge", **idle)
        except (RuntimeError, OSError) as error:
            failed.append(error)
        finally:
            ended.set()

    with ended_by_signals():
        threading.Thread(target=serve, name="weighbridge-mount", daemon=True).start()
        try:
            ended.wait()
        except KeyboardInterrupt:
            _unmount(point, mounted, ended)
    if failed:
        raise UnsupportedError(f"{point} couldn't be mounted (libfuse: {failed[0]})", hint=_INSTALL)


def _unmount(point: Path, mounted: threading.Event, ended: threading.Event) -> None:
    """Unmounts, even if files are open, and gives their readers `_GRACE` seconds: the end of the process ends what they
    still read."""
    command = next((words for words in _UNMOUNT if shutil.which(words[0])), _UNMOUNT[0])
    while not ended.wait(_PAUSE):
        if mounted.is_set() and subprocess.run([*command, str(point)], check=False).returncode == 0:
            ended.wait(_GRACE)
            return


def _fuse() -> Any:
    try:
        return package("mfusepy", "mounting", "mount")
    except OSError as error:  # the package without the library
        raise UnsupportedError(f"libfuse isn't installed ({error})", hint=_INSTALL) from None


def _operations(fuse: Any, files: Mapping[str, MountedFile], started: Callable[[], None]) -> Any:
    folders: dict[str, set[str]] = {"/": set()}
    for name in files:
        parts = name.split("/")
        for depth, part in enumerate(parts):
            folders.setdefault("/" + "/".join(parts[:depth]), set()).add(part)

    class Operations(fuse.Operations):  # type: ignore[misc]
        use_ns = True

        def init(self, path: str) -> None:
            started()

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            own = {"st_uid": os.getuid(), "st_gid": os.getgid(), "st_mtime": 0, "st_atime": 0, "st_ctime": 0}
            if path in folders:
                return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, "st_size": 0, **own}
            return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": self._file(path).size, **own}

        def readdir(self, path: str, fh: int) -> list[str]:
            if path not in folders:
                raise fuse.FuseOSError(errno.ENOENT)
            return [".", "..", *sorted(folders[path])]

        def open(self, path: str, flags: int) -> int:
            self._file(path)
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise fuse.FuseOSError(errno.EROFS)
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return self._file(path).read(offset, size)

        def _file(self, path: str) -> MountedFile:
            if (found := files.get(path[1:])) is None:
                raise fuse.FuseOSError(errno.ENOENT)
            return found

    return Operations()
