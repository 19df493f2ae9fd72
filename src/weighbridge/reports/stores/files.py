"""The files of stores: each once, however many links and names lead to it, and which of them share their space."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from weighbridge.base.limits import MIB
from weighbridge.io.digest import digest_of
from weighbridge.io.extents import extents
from weighbridge.io.location import open_source
from weighbridge.reports.stores.places import StorePlace, not_readable

#: Shorter files aren't worth a comparison.
LEAST: Final = MIB
_BLOB: Final = re.compile(r"(?:sha256-)?([0-9a-f]{64})\Z")
#: What tools call a download that isn't finished.
UNFINISHED: Final = re.compile(r".*(\.incomplete|-partial(-\d+)?|\.downloadInProgress|\.part|\.partial)\Z")


class StoreFile:
    """A regular file of a store, by where it really is. `space`: the same for files that lie in the same space."""

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
        """SHA-256: by the name that the store gave it, else of the bytes."""
        if (named := _BLOB.fullmatch(self.path.name)) and self.path.parent.name == "blobs":
            return named[1]
        with open_source(self.path) as source:
            return digest_of(source, "sha256")


def store_files(roots: Sequence[StorePlace], unreadable: list[str]) -> list[StoreFile]:
    """Every regular file below the roots once. `unreadable`: gets the folders that can't be read."""
    files = list(_walk(roots, unreadable))
    for group in same_size(files):
        for file in group:
            try:
                found = extents(file.path)
            except OSError:  # said where its bytes are compared
                continue
            if found is not None:
                file.space = (file.stat.st_dev, *found)
    return files


def _walk(roots: Sequence[StorePlace], unreadable: list[str]) -> Iterator[StoreFile]:
    seen, places = set(), {place.root for place in roots}

    def failed(error: OSError) -> None:
        unreadable.append(not_readable(error))

    for place in roots:
        for base, folders, names in os.walk(place.root, onerror=failed):
            folders[:] = sorted(f for f in folders if f not in (".locks", ".git") and Path(base, f) not in places)
            for name in sorted(names):
                path = Path(base, name)
                if not path.is_symlink() and path.is_file() and path not in seen:
                    seen.add(path)
                    yield StoreFile(place.store, path.resolve())


def same_size(files: Iterable[StoreFile]) -> list[list[StoreFile]]:
    """Groups of several inodes of one size that may have the same bytes."""
    by_inode = {f.inode: f for f in files if f.stat.st_size >= LEAST and not f.is_unfinished}
    ordered = sorted(by_inode.values(), key=lambda f: f.stat.st_size)
    groups = [list(g) for _, g in groupby(ordered, key=lambda f: f.stat.st_size)]
    return [g for g in groups if len(g) > 1]


def total(files: Iterable[StoreFile]) -> tuple[int, int]:
    """Bytes and number of the files, each inode once; those that share their space count once in the bytes."""
    inodes, spaces = set(), {}
    for file in files:
        inodes.add(file.inode)
        spaces[file.space] = file.stat.st_size
    return sum(spaces.values()), len(inodes)
