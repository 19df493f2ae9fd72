"""Tensor data in other files, which a header names: ONNX's external data, TensorFlow's shards, OpenVINO's `.bin`.

A parser opens no file. It puts a `DataFile` for each in `Index.files`. `models/data_files.py` opens them, only in the
header's folder.
"""

from __future__ import annotations

import re
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.io.source import Source

# Separators other than "/", drive and stream colons, control characters.
_UNSAFE: Final = re.compile(r"[\\:\x00-\x1f\x7f]")
_LONGEST: Final = 1024


class DataFile(Source):
    """A file that isn't open. `name`: its path relative to the header's folder; `size`: the bytes that the header needs
    of it."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def _readinto(self, offset: int, out: memoryview) -> int:
        raise FormatError("the data is in another file, which isn't open", path=self.name, offset=offset,
                          hint="open the file by its path, so that the files next to it are found")  # fmt: skip


def check_name(name: str, path: str, offset: int | None = None) -> str:
    """Returns the name of a data file. Raises FormatError unless it leads to a file in the folder or below it."""
    parts = name.split("/")
    if _UNSAFE.search(name) or len(name) > _LONGEST or any(part in ("", ".", "..") for part in parts):
        raise FormatError(
            "the name of a data file could lead out of the folder", path=path, offset=offset, field="data file",
            found=repr(name[:80]), hint="get the model from its author again",
        )  # fmt: skip
    return name
