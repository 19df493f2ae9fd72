"""The files below the paths of a scan, and which are passed over. A link that leads out of the folder that is scanned
is never followed: what it names is another file on every machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.io.links import is_inside, own_folders
from weighbridge.io.location import is_remote, walk
from weighbridge.reports.scan.model import ScanRule, ScanVerdict

RULES: Final = MappingProxyType(
    {
        "scan/link-outside": ScanRule(
            ScanVerdict.MALFORMED, "link that leads out of the folder, to files that are not its own"
        )
    }
)
OUTSIDE: Final = "scan/link-outside"
CONSEQUENCE: Final = "Whoever loads, copies or packs the folder takes a file from elsewhere on the system with it."
_GIT: Final = ".git"
GIT_HISTORY: Final = "the history of git"


class Met(NamedTuple):
    """A file, or a folder that is not entered. `why`: it is passed over for this reason; `rule`: which is a finding."""

    path: str
    why: str | None = None
    rule: str | None = None


def files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Met]:
    """Every file below the paths, in order. Of a folder only its names are kept. FileNotFoundError where a path of the
    call itself is none."""
    for path in [os.fspath(p) for p in paths]:
        if is_remote(path):
            yield from _elsewhere(resolve_path(path))
        elif os.path.isdir(path):
            yield from _below(path)
        else:
            os.lstat(path)
            yield Met(path)


def _elsewhere(path: Path) -> Iterator[Met]:
    """A file, or those of a folder, that lie elsewhere: nothing there is a link."""
    if path.is_file():
        yield Met(str(path))
        return
    for base, _, names in walk(path):
        yield from (Met(str(base / name)) for name in names)


def _below(root: str) -> Iterator[Met]:
    own = own_folders(root)
    for base, folders, names in os.walk(root, onerror=None):
        folders.sort()
        if _GIT in folders:
            folders.remove(_GIT)
            yield Met(os.path.join(base, _GIT), GIT_HISTORY)
        for folder in list(folders):
            path = os.path.join(base, folder)
            if os.path.islink(path):
                folders.remove(folder)
                yield from _linked_folder(path, own)
            elif not os.access(path, os.R_OK | os.X_OK):
                folders.remove(folder)
                yield Met(path, "the folder may not be read")
        names.sort()
        links = _links(base)
        yield from (_file(os.path.join(base, name), name in links, own) for name in names)


def _links(folder: str) -> set[str]:
    """The names in a folder that are links: one look at the folder, none at each file."""
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_symlink()}


def _file(path: str, link: bool, own: tuple[str, ...]) -> Met:
    return _outside(path) if link and not is_inside(path, own) else Met(path)


def _linked_folder(path: str, own: tuple[str, ...]) -> Iterator[Met]:
    """A link to a folder inside is met there under its own name; no other is entered."""
    if not is_inside(path, own):
        yield _outside(path)


def _outside(path: str) -> Met:
    return Met(path, f"a link to {os.readlink(path)}, outside the folder: it is not followed", OUTSIDE)
