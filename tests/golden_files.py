"""Recorded files in archives next to the tests."""

from __future__ import annotations

import zipfile
from pathlib import Path

import weighbridge as wb


def extracted(archive: Path, folder: Path) -> Path:
    """Extracts a zip into a folder, and returns the folder."""
    with zipfile.ZipFile(archive) as files:
        files.extractall(folder)
    return folder


def tensor_bytes(path: Path) -> dict[str, bytes]:
    """The bytes of a model's tensors by name."""
    with wb.open(path) as model:
        return {name: model[name].numpy().tobytes() for name in model}
