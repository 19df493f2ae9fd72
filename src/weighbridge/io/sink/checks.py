"""Checks of a target before any work: whether it exists, and whether it may be written.

A plan needs no more of the sinks, so their code is imported when it runs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.io.file_names import check_name
from weighbridge.io.location import RemotePath, is_remote

_LISTED: Final = 8  # names in a message


def check_target(
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    parents: bool = False,
    folder: bool | None = None,
    resume: bool = False,
) -> None:
    """Runs the sink's check of a target before any work. `resume`: existing remote objects may be this run's. Raises
    UsageError for a URL without a resolved path, which would be written as a local file."""
    if isinstance(target, RemotePath):
        tree, name = target.place
        if parents:
            raise UsageError(f"--parents doesn't apply to {target}", hint="a name elsewhere has no folders to make")
        tree.check(name, overwrite=overwrite or resume, folder=folder)
        return
    if is_remote(target):
        raise UsageError(f"{os.fspath(target)} is elsewhere, and this is written to this machine", hint="name a path")
    check_local_target(target, overwrite=overwrite, parents=parents, folder=folder)


def check_local_target(
    target: str | os.PathLike[str], *, overwrite: bool = False, parents: bool = False, folder: bool | None = None
) -> None:
    """Checks for obstacles to a write that don't depend on the content, before any work. `folder`: whether the target
    will be a folder; None: unknown. Raises RefusedError if the target exists, or if more than one parent folder is
    missing without `parents`; UsageError for a file whose name ends in a slash; PermissionError."""
    path = Path(target)
    check_name(path.name)
    real = resolved(path)
    if folder is False and os.fspath(target).endswith(("/", os.sep)):
        raise UsageError(f"{os.fspath(target)} names a folder, but a file is written", hint=f"write {path}")
    if path.is_symlink() and not real.exists():
        words = f"{path} is a link to {os.readlink(path)}, which doesn't exist"
        raise RefusedError(words, hint="remove the link, or name the file itself")
    if real.exists() and not (real.is_dir() or real.is_file()):
        # A rename would put a file in the place of /dev/null.
        raise RefusedError(f"{path} is a device, a pipe or a socket", hint="choose another target")
    if not overwrite and (any(real.iterdir()) if real.is_dir() else real.exists()):
        linked = f"{path} is a link to {real}, which exists already"
        raise RefusedError(linked if path.is_symlink() else f"{path} exists already", option="--overwrite")
    above = next((p for p in real.parents if p.exists()), None)
    if above is None:  # a drive of Windows
        raise UsageError(f"{real.anchor or real} doesn't exist", hint="choose another target")
    missing = [p for p in real.parents if not p.exists()]
    if len(missing) > 1 and not parents:
        words = f"{missing[-1]} doesn't exist, so {path} would need {len(missing)} new folders above it"
        raise RefusedError(words, option="--parents")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(above))


def disk_needed(target: Path, size: int, late: int) -> int:
    """Bytes of this machine's disk that writing `size` bytes to a target elsewhere takes; 0 for one that is here."""
    if not isinstance(target, RemotePath):
        return 0
    tree, _ = target.place
    return tree.staged(size, late)


def link_notes(target: Path) -> list[str]:
    """Returns a note if the target is a link: the file that it names is replaced."""
    real = resolved(target)
    return [f"{target} is a link: {real} is replaced"] if target.is_symlink() and real.exists() else []


def partial_of(target: str | os.PathLike[str]) -> Path:
    """The staging path of a write with a journal."""
    real = resolved(Path(target))
    return real.with_name(real.name + ".partial")


def foreign_files(folder: Path, names: Collection[str]) -> list[str]:
    """Returns the files below a folder that aren't in `names`, as relative paths; none if the folder is missing."""
    if not folder.is_dir():
        return []
    there = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
    return sorted(set(there) - set(names))


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def resolved(path: Path) -> Path:
    """Returns the path that is written: the target of a symlink."""
    return path.resolve() if path.is_symlink() else path.absolute()
