"""Limits of the file system at a path that can be determined without writing."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import Final

# The largest file of file systems that models outgrow. FAT32 keeps a file's size in 32 bits (Microsoft's FAT
# specification, DIR_FileSize); the others that Linux mounts today hold more than any model has.
_LARGEST: Final = MappingProxyType({"vfat": 2**32 - 1, "msdos": 2**32 - 1, "fat": 2**32 - 1, "minix": 2**31 - 1})
_MOUNTS: Final = Path("/proc/self/mounts")


def largest_file(path: str | os.PathLike[str]) -> int | None:
    """The largest possible file at `path` in bytes; None if it is irrelevant or unknown."""
    kind = _kind(os.path.realpath(path))
    return _LARGEST.get(kind) if kind else None


def _kind(path: str) -> str | None:
    """The type of the file system that is mounted nearest above `path` (proc_mounts(5)); None off Linux."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    found: tuple[str, str | None] = ("", None)
    for line in lines:
        _, point, kind, *_ = [*line.split(" "), "", "", ""]
        point = point.replace("\\040", " ")
        is_above = point == "/" or path == point or path.startswith(point + "/")
        if is_above and len(point) >= len(found[0]):  # of two mounts at one place the later one is visible
            found = (point, kind)
    return found[1]
