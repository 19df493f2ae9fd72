"""Lists the files below the paths of a scan, and those that are skipped. A link that leads out of the scanned folder is
never followed: its target differs from machine to machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.io.filesystem import is_inside, own_folders
from weighbridge.io.location import is_remote, walk

OUTSIDE: Final = "scan/link-outside"
CONSEQUENCE: Final = "Whoever loads, copies or packs the folder includes a file from elsewhere on the system."
GIT_HISTORY: Final = "the history of git"


class WalkedPath(NamedTuple):
    """A file, or a path that isn't followed. `reason`: why it is skipped; `rule`: the finding that this is."""

    path: str
    reason: str | None = None
    rule: str | None = None


def files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[WalkedPath]:
    """Every file below the paths, in order, keeping only the names of one folder in memory. Raises FileNotFoundError if
    one of `paths` doesn't exist."""
    for path in [os.fspath(p) for p in paths]:
        if is_remote(path):
            remote = resolve_path(path)
            if remote.is_file():
                yield WalkedPath(str(remote))
                continue
            for base, _, names in walk(remote):  # nothing remote is a link
                yield from (WalkedPath(str(base / name)) for name in names)
        elif os.path.isdir(path):
            yield from _walk_folder(path)
        else:
            os.lstat(path)
            yield WalkedPath(path)


def _walk_folder(root: str) -> Iterator[WalkedPath]:
    inner = own_folders(root)
    for base, folders, names in os.walk(root, onerror=None):
        folders.sort()
        if ".git" in folders:
            folders.remove(".git")
            yield WalkedPath(os.path.join(base, ".git"), GIT_HISTORY)
        for folder in list(folders):
            path = os.path.join(base, folder)
            if os.path.islink(path):  # the target of a link inside is listed under its own name
                folders.remove(folder)
                yield from [] if is_inside(path, inner) else [_outside(path)]
            elif not os.access(path, os.R_OK | os.X_OK):
                folders.remove(folder)
                yield WalkedPath(path, "no permission to read the folder")
        with os.scandir(base) as entries:  # one system call for the folder, none for each file
            links = {entry.name for entry in entries if entry.is_symlink()}
        for name in sorted(names):
            path = os.path.join(base, name)
            yield _outside(path) if name in links and not is_inside(path, inner) else WalkedPath(path)


def _outside(path: str) -> WalkedPath:
    return WalkedPath(path, f"a link to {os.readlink(path)}, outside the folder: not followed", OUTSIDE)
