"""Small files that are one pickle of plain data, of which folders may hold a million: seen at one look, with the answer
that all scanners together would give."""

from __future__ import annotations

import os
import stat
from typing import Final

from weighbridge.base.limits import SCAN_PLAIN
from weighbridge.base.native import plain_pickle_end
from weighbridge.containers.archive import tar
from weighbridge.containers.archive.zip_records import END
from weighbridge.reports.scan.pickle.embedded import embedded_pickles
from weighbridge.reports.scan.pickle.plain import PLAIN_NAMES

_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_POSIX: Final = hasattr(os, "pread")
_PROTO: Final = b"\x80"


def read_pickle(path: str) -> bytes:
    """The bytes of a small file that begins as pickles do; b"" of any other."""
    if not _POSIX:
        return b""
    fd = os.open(path, _FLAGS)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not 2 < found.st_size <= SCAN_PLAIN:
            return b""
        data = os.pread(fd, found.st_size + 1, 0)
        return data if data[:1] == _PROTO and len(data) == found.st_size else b""
    finally:
        os.close(fd)


def is_plain(data: bytes) -> bool:
    """Whether it is one pickle of plain data from the first byte to the last, with no other in it, and no archive to
    anybody."""
    end, _ = plain_pickle_end(data, PLAIN_NAMES)
    if end != len(data) or END in data or (end >= tar.BLOCK and tar.is_header(data[: tar.BLOCK])):
        return False
    return next(embedded_pickles(data), None) is None
