"""Finds the files that a delta refers to. A packed file has their names, but no path in a file is ever opened: the user
names the place in WEIGHBRIDGE_BASE."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.io.source import FileSource

ENVIRONMENT: Final = "WEIGHBRIDGE_BASE"


def open_base(packed: str, name: str, size: int) -> FileSource:
    """Opens the base `name` of `size` bytes: a file in WEIGHBRIDGE_BASE, or a file of a folder there. UnsupportedError
    if there is none."""
    for place in map(Path, filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep))):
        path = place / name if place.is_dir() else place
        if path.name == name and path.is_file() and path.stat().st_size == size:
            return FileSource(path)
    raise UnsupportedError(
        f"{packed} is a delta to {name} ({size:,} bytes)",
        hint=f"set {ENVIRONMENT} to that file or its folder, or wb unpack --base MODEL",
    )
