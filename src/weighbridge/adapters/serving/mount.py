"""A folder whose files are computed where they are read, through FUSE (mfusepy, libfuse). Read-only."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.serving.ending import ended_by_signals
from weighbridge.base.errors import UnsupportedError, UsageError

_PAUSE: Final = 0.2  # seconds between two attempts to unmount


class MountedFile(Protocol):
    """A file of the mounted folder."""

    size: int

    def read(self, offset: int, length: int) -> bytes: ...


def check_mount_point(point: Path) -> None:
    """UsageError where nothing can be mounted there."""
    if os.path.ismount(point):
        raise UsageError(f"{point} is a mount point already", hint=f"fusermount3 -u {point}")
    if not point.is_dir():
        raise UsageError(f"{point} is no folder", hint=f"mkdir {point}")
    if any(point.iterdir()):
        raise UsageError(f"the folder {point} isn't empty", hint="choose an empty one")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise UnsupportedError("there is no FUSE here (/dev/fuse)", hint="wb serve gives the same files over HTTP")


def mount(files: Mapping[str, MountedFile], point: Path) -> None:
    """Serve `files`, by their paths, at the folder `point` until it is unmounted, Ctrl-C or SIGTERM. UnsupportedError
    where FUSE isn't installed.

    libfuse's own handlers of signals only set a flag that its waiting threads don't see. So it runs in a thread, and
    the main one unmounts."""
    check_mount_point(point)
    fuse, failed, ended = _fuse(), list[RuntimeError | OSError](), threading.Event()

    def serve() -> None:
        try:
            fuse.FUSE(_operations(fuse, files), str(point), foreground=True, ro=True, fsname="weighbridge")
        except (RuntimeError, OSError) as error:
            failed.append(error)
        finally:
            ended.set()

    with ended_by_signals():
        threading.Thread(target=serve, name="weighbridge-mount", daemon=True).start()
        try:
            ended.wait()
        except KeyboardInterrupt:
            _unmount(point, ended)
    if failed:
        raise UnsupportedError(f"{point} couldn't be mounted (libfuse: {failed[0]})", hint="is fuse3 installed?")


def _unmount(point: Path, ended: threading.Event) -> None:
    """Unmount, even where a file is still open, and wait for whoever reads it; a further signal doesn't wait."""
    tool = shutil.which("fusermount3") or shutil.which("fusermount") or "fusermount3"
    while not ended.wait(_PAUSE):
        if os.path.ismount(point):  # not yet where the signal came very early
            subprocess.run([tool, "-u", "-z", str(point)], check=False)


def _fuse() -> Any:
    try:
        return package("mfusepy", "mounting", "mount")
    except OSError as error:  # the package without the library
        raise UnsupportedError(f"libfuse isn't installed ({error})", hint="apt-get install fuse3 libfuse3-3") from None


def _operations(fuse: Any, files: Mapping[str, MountedFile]) -> Any:
    folders: dict[str, set[str]] = {"/": set()}
    for name in files:
        parts = name.split("/")
        for depth, part in enumerate(parts):
            folders.setdefault("/" + "/".join(parts[:depth]), set()).add(part)

    class Operations(fuse.Operations):  # type: ignore[misc]
        use_ns = True

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
