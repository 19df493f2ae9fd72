"""The files of stores, each once regardless of links and names, and whether they share disk space."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from weighbridge.base.limits import MIB
from weighbridge.io.digest import digest_of
from weighbridge.io.extents import extents
from weighbridge.io.location import open_source
from weighbridge.reports.stores.places import StorePlace, describe_error

#: Smaller files aren't compared.
LEAST: Final = MIB
_BLOB: Final = re.compile(r"(?:sha256-)?([0-9a-f]{64})\Z")
#: Names of unfinished downloads.
UNFINISHED: Final = re.compile(r".*(\.incomplete|-partial(-\d+)?|\.downloadInProgress|\.part|\.partial)\Z")


class StoreFile:
    """A regular file of a store, at its resolved path. `space`: equal for files that share disk space."""

    __slots__ = ("path", "space", "stat", "store")

    def __init__(self, store: str, path: Path) -> None:
        self.store, self.path, self.stat = store, path, path.stat()
        self.space: tuple[object, ...] = self.inode

    @property
    def inode(self) -> tuple[int, int]:
        return self.stat.st_dev, self.stat.st_ino

    @property
    def is_unfinished(self) -> bool:
        return UNFINISHED.fullmatch(self.path.name) is not None

    def digest(self) -> str:
        """Returns the SHA-256 in the name of a blob, else that of the bytes."""
        if (blob := _BLOB.fullmatch(self.path.name)) and self.path.parent.name == "blobs":
            return blob[1]
        with open_source(self.path) as source:
            return digest_of(source, "sha256")


def store_files(roots: Sequence[StorePlace], unreadable: list[str]) -> list[StoreFile]:
    """Returns every regular file below the roots once. Appends folders that can't be read to `unreadable`."""
    files: dict[Path, StoreFile] = {}
    places = {place.root for place in roots}
    for place in roots:
        walked: Iterable[tuple[str, list[str], list[str]]]
        walked = os.walk(place.root, onerror=lambda e: unreadable.append(describe_error(e)))
        if place.root.is_file():
            walked = [(str(place.root.parent), [], [place.root.name])]
        for base, folders, names in walked:
            folders[:] = sorted(f for f in folders if f not in (".locks", ".git") and Path(base, f) not in places)
            for name in sorted(names):
                path = Path(base, name)
                if not path.is_symlink() and path.is_file() and path not in files:
                    files[path] = StoreFile(place.store, path.resolve())
    for group in same_size(files.values()):
        for file in group:
            try:
                blocks = extents(file.path)
            except OSError:  # reported when its bytes are compared
                continue
            if blocks is not None:
                file.space = (file.stat.st_dev, *blocks)
    return list(files.values())


def same_size(files: Iterable[StoreFile]) -> list[list[StoreFile]]:
    """Returns groups of inodes with equal sizes, whose bytes may be equal."""
    by_inode = {f.inode: f for f in files if f.stat.st_size >= LEAST and not f.is_unfinished}
    ordered = sorted(by_inode.values(), key=lambda f: f.stat.st_size)
    groups = [list(g) for _, g in groupby(ordered, key=lambda f: f.stat.st_size)]
    return [g for g in groups if len(g) > 1]


def total(files: Iterable[StoreFile]) -> tuple[int, int]:
    """Returns the bytes and the number of the files, each inode once. Shared space counts once."""
    inodes, spaces = set(), {}
    for file in files:
        inodes.add(file.inode)
        spaces[file.space] = file.stat.st_size
    return sum(spaces.values()), len(inodes)
