"""A quick check for small files that are one pickle of plain data: folders may have a million of them. The result is
the same as that of all scanners together."""

from __future__ import annotations

import os
import stat
from typing import Final

from weighbridge.base.limits import SCAN_PLAIN
from weighbridge.base.native import plain_pickle_end
from weighbridge.reports.scan.archive.polyglots import may_be_more
from weighbridge.reports.scan.pickle.embedded import embedded_pickles
from weighbridge.reports.scan.pickle.plain import PLAIN_NAMES

_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_POSIX: Final = hasattr(os, "pread")
_PROTO: Final = b"\x80"


def read_pickle(path: str) -> bytes:
    """The bytes of a small file that starts like a pickle; b"" for any other file."""
    if not _POSIX:
        return b""
    fd = os.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or not 2 < status.st_size <= SCAN_PLAIN:
            return b""
        data = os.pread(fd, status.st_size + 1, 0)
        return data if data[:1] == _PROTO and len(data) == status.st_size else b""
    finally:
        os.close(fd)


def is_plain(data: bytes) -> bool:
    """Whether `data` is one pickle of plain data from the first byte to the last, carries no other pickle, and isn't
    another format as well."""
    end, _ = plain_pickle_end(data, PLAIN_NAMES)
    return end == len(data) and not may_be_more(data) and next(embedded_pickles(data), None) is None
