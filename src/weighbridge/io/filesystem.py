"""Limits of a file system, and links that lead outside a model's folder: facts about paths, found without writing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import RefusedError

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


# In huggingface_hub's cache a snapshot's files are links to a folder of blobs next to the snapshots.
_SNAPSHOT: Final = re.compile(r"(.+)[/\\]snapshots(?:[/\\].*)?")


def own_folders(root: str) -> tuple[str, ...]:
    """The folders that count as the folder `root`: itself; of a snapshot in the Hub's cache also the blobs."""
    real = os.path.realpath(root)
    cached = _SNAPSHOT.fullmatch(real)
    return (real, os.path.join(cached[1], "blobs")) if cached else (real,)


def cached_repository(folder: str | os.PathLike[str]) -> str | None:
    """Returns the Hub repository (org/name) of the cached snapshot that contains a folder."""
    cached = _SNAPSHOT.fullmatch(os.path.realpath(folder))
    name = os.path.basename(cached[1]) if cached else ""
    return name.removeprefix("models--").replace("--", "/", 1) if name.startswith("models--") else None


def is_inside(path: str, own: tuple[str, ...]) -> bool:
    """Whether the target of a path is inside one of the folders."""
    real = os.path.realpath(path)
    return any(real == folder or real.startswith(os.path.join(folder, "")) for folder in own)


class LinkOutsideError(RefusedError):
    """A file of a checkpoint is a link to something outside of its folder."""


def check_inside(paths: Iterable[Path], folder: Path) -> None:
    """Raises LinkOutsideError if one of a checkpoint's files, or a folder above it, is a link out of `folder`."""
    own = own_folders(str(folder))
    for path in paths:
        if not is_inside(str(path), own):
            words = f"{path} leads to {os.path.realpath(path)}, outside the checkpoint's folder"
            raise LinkOutsideError(words, hint="copy the files into the folder if they belong to the checkpoint")


def check_link(path: Path, folder: Path) -> None:
    """RefusedError where `path` in a model's folder is a link to something that isn't the model's own."""
    if path.is_symlink() and not is_inside(str(path), own_folders(str(folder))):
        words = f"{path} is a link to {os.readlink(path)}, outside the model's folder"
        raise RefusedError(words, hint="copy the file into the folder if it belongs to the model")
