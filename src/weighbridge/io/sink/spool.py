"""A stream as a file that can be read in any order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from weighbridge.base.limits import MIB


@contextmanager
def spooled(stream: BinaryIO, name: str) -> Iterator[Path]:
    """The bytes of `stream` in a temporary file called `name`, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as folder:
        path = Path(folder) / name
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file, MIB)
        yield path
