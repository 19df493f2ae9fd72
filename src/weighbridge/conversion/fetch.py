"""Fetching: the files of a place elsewhere written into a folder as they are, each compared with the digest that the
place lists. It is a plan like any other, so it streams, resumes and is all or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from weighbridge.base.errors import UsageError
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.model import Plan, PlannedFile
from weighbridge.io.location import RemotePath, walk


def plan_fetch(
    src: Path,
    target: Path,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    write: WriteOptions = WriteOptions(),
) -> Plan:
    """The plan of fetching `src`, a folder or a file elsewhere, into the folder `target`. UsageError where `src` is on
    this machine, or no file is left."""
    if not isinstance(src, RemotePath):
        raise UsageError(
            f"{src} is on this machine", hint="fetch takes an address: hf://ORG/NAME, https://..., s3://..."
        )
    root = src if src.is_dir() else src.parent
    found = [name for name in _names(src, root) if _chosen(name, include, exclude)]
    if not found:
        raise UsageError(f"{src} has no file that --include and --exclude leave", hint="wb fetch SRC DIR --dry-run")
    files = tuple(_planned(root, name) for name in found)
    unchecked = [file.name for file in files if file.digest is None]
    notes = (f"{len(unchecked):,} files have no digest to compare with: {src} lists none",) if unchecked else ()
    return Plan(
        str(src), target, "files", True, files, notes=notes, write=replace(write, resume=True),
        sources=tuple(state_of(root / name) for name in found),
    )  # fmt: skip


def _names(src: RemotePath, root: RemotePath) -> Iterator[str]:
    """The files below `src`, as paths inside the folder."""
    if src.is_file():
        yield src.name
        return
    for base, _, files in walk(root):
        yield from ((base / name).relative_to(root).as_posix() for name in files)


def _chosen(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return (not include or matches(include)) and not matches(exclude)


def _planned(root: RemotePath, name: str) -> PlannedFile:
    path = root / name
    return replace(writers.raw(name, path.open_source()), digest=path.digest)
