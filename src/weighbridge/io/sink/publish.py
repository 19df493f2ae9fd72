"""Publishes staged files by one rename, and never replaces anything without permission."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path

from weighbridge.io.sink.files import CANNOT, sync_file

# renameat2(2), renamex_np(2): fail if the target exists; swap the two.
_NOREPLACE = {"linux": 1, "darwin": 4}
_EXCHANGE = {"linux": 2, "darwin": 2}


def publish_file(stage: Path, target: Path, *, overwrite: bool) -> None:
    """Publishes the staged file under its name. FileExistsError if something is there that must not be replaced."""
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
    """Links the file under its final name, which fails if the name is taken, then removes the first name."""
    try:
        os.link(stage, target)
    except OSError as error:
        if error.errno not in {*CANNOT, errno.EMLINK}:
            raise
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.rename(stage, target)  # a file system without links: the best it can do
    else:
        stage.unlink()


def publish_folder(stage: Path, target: Path, *, overwrite: bool) -> None:
    """Publishes the staged folder under its name. FileExistsError if a folder with files is there that must not be
    replaced. If the system can, old and new folder are exchanged in one step; otherwise the old one is renamed
    first, to a name that is never cleaned up automatically, and deleted after the new one is in place."""
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
    """A rename with a flag, as one system call; False if the system lacks it. OSError if it fails."""
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
    except (OSError, AttributeError, TypeError):  # the function is missing (musl, an old glibc)
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
            sync_file(fd)
    finally:
        os.close(fd)
