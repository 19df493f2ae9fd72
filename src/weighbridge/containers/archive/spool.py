"""Data that can only be decoded forwards, as a source that is read in any order.

Decoded bytes are kept in a temporary file without a name, as far as they were requested: the header of a large archive
member costs no more than its bytes. WEIGHBRIDGE_SPOOL limits the file's size.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import IO, Final

from weighbridge.base.errors import FormatError, RefusedError, UsageError
from weighbridge.base.limits import GIB, MIB, SPOOL
from weighbridge.io.source import Source

ENVIRONMENT: Final = "WEIGHBRIDGE_SPOOL"


def spool_limit() -> int:
    """Returns the most bytes that one file may unpack to. Raises UsageError for an invalid WEIGHBRIDGE_SPOOL."""
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return SPOOL
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UsageError(f"{ENVIRONMENT}={text!r} isn't a number of GiB", hint=f"write it like {ENVIRONMENT}=200")
    return int(text) * GIB


def check_space(name: str, size: int, used: int = 0) -> None:
    """Raises RefusedError if `size` bytes are more than the limit, or than the disk has, `used` of them already
    taken."""
    folder, limit = tempfile.gettempdir(), spool_limit()
    free = shutil.disk_usage(folder).free + used
    if size > min(limit, free):
        reason = f"{ENVIRONMENT} allows {limit // GIB} GiB" if size > limit else f"{folder} has {free:,}"
        raise RefusedError(
            f"{name} unpacks to {size:,} bytes or more, and {reason}",
            hint=f"set {ENVIRONMENT} to more GiB, and TMPDIR to a larger disk; or unpack it first",
        )


class SpooledSource(Source):
    """The bytes of `pieces`, `size` of them; if the size is unknown, all are decoded at once. FormatError if there are
    fewer, RefusedError beyond the limit. `memory`: keep them in memory."""

    def __init__(self, pieces: Iterator[bytes], size: int | None, name: str, *, memory: bool = False) -> None:
        self.name, self._pieces = name, pieces
        self._lock = threading.Lock()
        self._end = 0
        if not memory:
            check_space(name, size or 0)
        self._file: IO[bytes] = io.BytesIO() if memory else tempfile.TemporaryFile(prefix="weighbridge-")  # noqa: SIM115
        if size is None:
            self._decode(None)
        self.size = self._end if size is None else size

    def _decode(self, end: int | None) -> None:
        """Decodes up to byte `end`, or everything."""
        while end is None or self._end < end:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self.write(piece)

    def write(self, piece: bytes) -> None:
        """Appends decoded bytes."""
        end = self._end + len(piece)
        if end // (64 * MIB) != self._end // (64 * MIB):
            check_space(self.name, end, self._end)
        self._file.seek(self._end)
        self._file.write(piece)
        self._end = end

    def _readinto(self, offset: int, out: memoryview) -> int:
        with self._lock:
            self._decode(offset + len(out))
            if self._end < offset + len(out):
                raise FormatError("the packed data ends too early", path=self.name, offset=self._end,
                                  expected=f"{self.size} bytes", found=self._end)  # fmt: skip
            self._file.seek(offset)
            return self._file.readinto(out)  # type: ignore[attr-defined, no-any-return]  # both kinds have it

    def close(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    __del__ = close
