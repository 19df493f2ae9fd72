"""Where a file system keeps a file's bytes: two files at the same places share their space."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

# FS_IOC_FIEMAP (linux/fiemap.h): the extents of a file; a header, then one record an extent.
_FIEMAP: Final = 0xC020660B
_HEADER: Final = struct.Struct("=QQIIII")
_EXTENT: Final = struct.Struct("=QQQQQIIII")
_AT_ONCE: Final = 512
_MOST: Final = 1 << 16  # extents of one file; a file in more pieces isn't compared
_LAST: Final = 0x1
# Extents without a known, exclusive place: unknown, delayed, encoded, inline, packed tail.
_NO_PLACE: Final = 0x2 | 0x4 | 0x8 | 0x200 | 0x400


class FileExtent(NamedTuple):
    """`length` bytes at `start` of a file, at `place` of the device."""

    start: int
    place: int
    length: int


def extents(path: Path) -> tuple[FileExtent, ...] | None:
    """Returns a file's extents on the disk, adjacent ones joined; None if the system can't list them. Raises OSError if
    the file can't be opened."""
    if sys.platform != "linux":
        return None
    import fcntl

    found: list[FileExtent] = []
    file = os.open(path, os.O_RDONLY)
    try:
        while len(found) < _MOST:
            start = found[-1].start + found[-1].length if found else 0
            request = bytearray(_HEADER.pack(start, (1 << 64) - 1 - start, 0, 0, _AT_ONCE, 0))
            request += bytes(_AT_ONCE * _EXTENT.size)
            try:
                fcntl.ioctl(file, _FIEMAP, request)
            except OSError:
                return None
            count = _HEADER.unpack_from(request)[3]
            for number in range(count):
                start, place, length, _, _, flags, *_ = _EXTENT.unpack_from(
                    request, _HEADER.size + number * _EXTENT.size
                )
                if flags & _NO_PLACE:
                    return None
                extent = FileExtent(start, place, length)
                last = found[-1] if found else None
                if last and last.start + last.length == extent.start and last.place + last.length == extent.place:
                    found[-1] = FileExtent(last.start, last.place, last.length + extent.length)
                else:
                    found.append(extent)
                if flags & _LAST:
                    return tuple(found)
            if not count:
                return tuple(found) or None
    finally:
        os.close(file)
    return None
