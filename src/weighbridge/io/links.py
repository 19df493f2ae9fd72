"""Links that lead out of a model's folder: what they name is another file on every machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from weighbridge.base.errors import RefusedError

# In the cache of huggingface_hub a snapshot's files are links to the blobs beside all snapshots.
_SNAPSHOT: Final = re.compile(r"(.+)[/\\]snapshots(?:[/\\].*)?")


def own_folders(root: str) -> tuple[str, ...]:
    """The folders that count as the folder `root`: itself; of a snapshot in the Hub's cache also the blobs."""
    real = os.path.realpath(root)
    cached = _SNAPSHOT.fullmatch(real)
    return (real, os.path.join(cached[1], "blobs")) if cached else (real,)


def is_inside(path: str, own: tuple[str, ...]) -> bool:
    """Whether a path, its links followed, lies in one of the folders."""
    real = os.path.realpath(path)
    return any(real == folder or real.startswith(os.path.join(folder, "")) for folder in own)


def check_link(path: Path, folder: Path) -> None:
    """RefusedError where `path` in a model's folder is a link to something that isn't the model's own."""
    if path.is_symlink() and not is_inside(str(path), own_folders(str(folder))):
        words = f"{path} is a link to {os.readlink(path)}, outside the model's folder"
        raise RefusedError(words, hint="copy the file into the folder if it belongs to the model")
