"""The sink of a target, wherever it is."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from weighbridge.base.errors import UsageError
from weighbridge.io.location import RemotePath, is_remote
from weighbridge.io.sink import target as here
from weighbridge.io.sink.upload import UploadSink

AnySink = here.Sink | UploadSink


def open_sink(
    target: Path,
    *,
    folder: bool,
    size: int,
    overwrite: bool = False,
    replace_folder: bool = False,
    parents: bool = False,
    names: Collection[str] = (),
    key: Mapping[str, str] | None = None,
    memory: int,
) -> AnySink:
    """The sink of a target here or elsewhere. `memory`: bytes that the parts of an upload may take before they wait on
    the disk; the others are as `Sink`'s."""
    how: dict[str, Any] = {"folder": folder, "overwrite": overwrite, "replace_folder": replace_folder, "names": names}
    if not isinstance(target, RemotePath):
        return here.Sink(target, size=size, parents=parents, key=key, **how)
    tree, name = target.place
    made: AnySink = tree.sink(name, size=size, key=key, memory=memory, **how)
    return made


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
    here.check_target(target, overwrite=overwrite, parents=parents, folder=folder)


def disk_needed(target: Path, size: int, late: int) -> int:
    """Bytes of this machine's disk that writing `size` bytes to a target elsewhere takes; 0 for one that is here."""
    if not isinstance(target, RemotePath):
        return 0
    tree, _ = target.place
    return tree.staged(size, late)
