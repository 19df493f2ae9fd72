"""Puts what was staged in its place by one rename, and never over something that nobody asked to replace."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path

from weighbridge.io.sink.files import CANNOT

# renameat2(2), renamex_np(2): fail where the target exists; swap the two.
_NOREPLACE = {"linux": 1, "darwin": 4}
_EXCHANGE = {"linux": 2, "darwin": 2}


def publish_file(stage: Path, target: Path, *, overwrite: bool) -> None:
    """The staged file under its name. FileExistsError where something else is there that shall not be replaced."""
    if overwrite:
        if target.exists():
            _keep_owner(target, stage)
            shutil.copymode(target, stage)
        os.replace(stage, target)
    elif not _rename(stage, target, _NOREPLACE):
        _link(stage, target)


def _keep_owner(target: Path, stage: Path) -> None:
    """Give the new file the owner and group of the old one, where we may."""
    if hasattr(os, "chown"):
        old = target.stat()
        for owner, group in ((old.st_uid, -1), (-1, old.st_gid)):
            with contextlib.suppress(OSError):
                os.chown(stage, owner, group)


def _link(stage: Path, target: Path) -> None:
    """A second name, which fails where the name is taken, then no longer the first one."""
    try:
        os.link(stage, target)
    except OSError as error:
        if error.errno not in {*CANNOT, errno.EMLINK}:
            raise
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.rename(stage, target)  # a file system without links: all that it can do
    else:
        stage.unlink()


def publish_folder(stage: Path, target: Path, *, overwrite: bool) -> None:
    """The staged folder under its name. FileExistsError where a folder with files is there that shall not be replaced.

    Where the system can, old and new change places in one step; elsewhere the old one steps aside first, under a name
    that is never cleaned up by itself, and goes after the new one stands."""
    if not overwrite or not target.exists():
        _rename_folder(stage, target)
    elif _rename(stage, target, _EXCHANGE):
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


def _rename_folder(stage: Path, target: Path) -> None:
    """A rename, which replaces an empty folder and no other."""
    try:
        if sys.platform == "win32" and target.is_dir():
            target.rmdir()
        os.rename(stage, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        raise


def _rename(a: Path, b: Path, flags: dict[str, int]) -> bool:
    """A rename with a flag, by one system call; False where the system has none. OSError where it fails."""
    import ctypes  # only here, and seldom

    flag = flags.get(sys.platform)
    if flag is None:
        return False
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = libc.renamex_np(os.fsencode(a), os.fsencode(b), flag)
        else:
            here = -100  # AT_FDCWD
            failed = libc.renameat2(here, os.fsencode(a), here, os.fsencode(b), flag)
    except (OSError, AttributeError, TypeError):  # no such function here (musl, an old glibc)
        return False
    if failed and ctypes.get_errno() not in CANNOT:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(b))
    return not failed


def sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse; the data itself is already safe
            os.fsync(fd)
    finally:
        os.close(fd)
