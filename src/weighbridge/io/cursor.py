"""A bounds-checked reader that walks a source from front to back, in growing chunks, so that a header is read without
knowing its length and never further than needed. All counts are checked against the bytes left before anything is
allocated.
"""

from __future__ import annotations

import struct
from typing import Literal

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.io.source import Source

Order = Literal["<", ">"]


class Cursor:
    """Reads numbers of byte order `order` at `offset`; every short read is a FormatError that names the field."""

    def __init__(self, source: Source, offset: int = 0, order: Order = "<", chunk: int = MIB // 4) -> None:
        self.source, self.offset, self.order = source, offset, order
        self.buffer = b""  # bytes [start, start + len(buffer)) of the source
        self.start = offset
        self.chunk = chunk

    @property
    def left(self) -> int:
        """Bytes from here to the end of the source."""
        return self.source.size - self.offset

    def need(self, count: int, field: str) -> None:
        """FormatError unless `count` more bytes exist."""
        if count < 0 or count > self.left:
            raise FormatError(
                "the file ends inside a field", path=self.source.name, offset=self.offset, field=field,
                expected=f"{count} bytes", found=f"{self.left} left",
            )  # fmt: skip

    def fill(self, count: int, field: str) -> int:
        """Make `count` bytes at `offset` present in `buffer`; their index in it."""
        self.need(count, field)
        at = self.offset - self.start
        if at < 0 or at + count > len(self.buffer):
            self.start, at = self.offset, 0
            self.buffer = self.source.read(self.offset, min(max(count, self.chunk), self.left))
            self.chunk = min(self.chunk * 2, 16 * MIB)  # long headers are read in few calls
        return at

    def take(self, count: int, field: str) -> bytes:
        """`count` bytes, and step over them."""
        at = self.fill(count, field)
        self.offset += count
        return self.buffer[at : at + count]

    def skip(self, count: int, field: str) -> None:
        """Step over `count` bytes without reading them."""
        self.need(count, field)
        self.offset += count

    def number(self, code: str, field: str) -> int:
        """One integer of `struct` code B b H h I i Q q in the cursor's byte order."""
        size = struct.calcsize(code)
        at = self.fill(size, field)
        self.offset += size
        value: int = struct.unpack_from(self.order + code, self.buffer, at)[0]
        return value
