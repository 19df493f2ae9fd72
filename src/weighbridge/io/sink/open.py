"""The sink of a target, wherever it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from weighbridge.io.location import RemotePath
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
