"""Links to targets outside a model's folder, which name a different file on every machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from weighbridge.base.errors import RefusedError

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


def check_link(path: Path, folder: Path) -> None:
    """RefusedError where `path` in a model's folder is a link to something that isn't the model's own."""
    if path.is_symlink() and not is_inside(str(path), own_folders(str(folder))):
        words = f"{path} is a link to {os.readlink(path)}, outside the model's folder"
        raise RefusedError(words, hint="copy the file into the folder if it belongs to the model")
