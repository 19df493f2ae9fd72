"""Files of the same bytes that share their space, with nothing lost whatever happens in between."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.io.sink.files import CANNOT
from weighbridge.io.sink.publish import sync_folder

# FIDEDUPERANGE (linux/fs.h): the kernel compares two ranges and lets them share their blocks if they are equal.
_FIDEDUPERANGE: Final = 0xC0189436
_RANGE: Final = 16 * MIB  # that one call takes
_DIFFERS: Final = 1
_CHUNK: Final = MIB


@dataclass(frozen=True, slots=True)
class SharedFile:
    """What became of `path`: "reflink" (its blocks are those of `same_as`), "hard link" (it is that file), or "not
    shared" with the reason in `why`."""

    path: str
    same_as: str
    bytes: int
    how: str
    why: str = ""


def share(first: Path, other: Path, *, hard_link: bool, dry_run: bool) -> SharedFile:
    """Let `other` share the space of `first` after comparing their bytes."""
    size = other.stat().st_size

    def result(how: str, why: str = "") -> SharedFile:
        return SharedFile(str(other), str(first), size, how, why)

    if first.stat().st_dev != other.stat().st_dev:
        return result("not shared", "it is on a different file system")
    if dry_run:
        return result("hard link") if hard_link else result("reflink", "if the file system shares blocks")
    try:
        if _reflink(first, other, size):
            return result("reflink")
        if not hard_link:
            return result("not shared", "the file system can't share blocks; --hard-link links them to one file")
        return result("hard link") if _link(first, other) else result("not shared", "the bytes differ")
    except OSError as error:
        return result("not shared", error.strerror or str(error))


def _reflink(first: Path, other: Path, size: int) -> bool:
    """Shares the blocks of equal files. Returns False if the file system can't; raises OSError if the bytes differ."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    source = os.open(first, os.O_RDONLY)
    try:
        target = os.open(other, os.O_RDWR)
        try:
            for at in range(0, size, _RANGE):
                if not _shared_range(fcntl.ioctl, source, target, at, min(_RANGE, size - at)):
                    return False
        finally:
            os.close(target)
    finally:
        os.close(source)
    return True


def _shared_range(ioctl: Callable[..., Any], source: int, target: int, start: int, length: int) -> bool:
    done = 0
    while done < length:
        wanted = (start + done, length - done, 1, 0, 0, target, start + done, 0, 0, 0)
        request = bytearray(struct.pack("=QQHHIqQQiI", *wanted))
        try:
            ioctl(source, _FIDEDUPERANGE, request)
        except OSError as error:
            if error.errno in CANNOT or error.errno == errno.ENOTTY:
                return False
            raise
        shared, status = struct.unpack_from("=Qi", request, 24 + 16)
        if status == _DIFFERS:
            raise OSError(errno.EIO, "the bytes differ")
        if status < 0:
            if -status in CANNOT:
                return False
            raise OSError(-status, os.strerror(-status))
        if shared == 0:
            return False
        done += shared
    return True


def _link(first: Path, other: Path) -> bool:
    """Makes `other` a hard link to `first`'s file, by a temporary link and one rename. Returns False if the bytes
    differ."""
    if not _same(first, other):
        return False
    stage = other.with_name(f".{other.name}.{os.getpid()}.partial")
    os.link(first, stage)
    try:
        os.replace(stage, other)
    finally:
        stage.unlink(missing_ok=True)  # a rename of two names of one file leaves both
    sync_folder(other.parent)
    return True


def _same(first: Path, other: Path) -> bool:
    with first.open("rb") as a, other.open("rb") as b:
        while True:
            x, y = a.read(_CHUNK), b.read(_CHUNK)
            if x != y:
                return False
            if not x:
                return True
