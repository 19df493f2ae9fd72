"""A bounds-checked reader that walks a source from front to back, in growing chunks, so that a header is read without
knowing its length and never further than needed. All counts are checked against the bytes left before anything is
allocated.

One buffer is refilled in place: a header of any length costs at most one chunk of memory, and its pages stay warm.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Literal

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.io.source import Source

Order = Literal["<", ">"]
#: Long headers are read in few calls, but through a buffer that still fits the second-level cache.
CHUNK_MAX = MIB
#: Of a remote file little is read beyond the header, since it is transferred. The source decides how much it requests.
REMOTE_CHUNK = 24 << 10


@cache
def _codec(order: str, codes: str) -> struct.Struct:
    return struct.Struct(order + codes)


class Cursor:
    """Reads numbers of byte order `order` at `offset`; every short read is a FormatError that names the field."""

    def __init__(self, source: Source, offset: int = 0, order: Order = "<", chunk: int = MIB // 16) -> None:
        self.source, self.offset, self.order = source, offset, order
        self.buffer = bytearray()  # its first `filled` bytes are bytes [start, start + filled) of the source
        self.start = offset
        self.filled = 0
        self.chunk = REMOTE_CHUNK if source.remote else chunk

    @property
    def left(self) -> int:
        """Bytes from here to the end of the source."""
        return self.source.size - self.offset

    def need(self, count: int, field: str) -> None:
        """FormatError unless `count` more bytes exist."""
        if count < 0 or count > self.left:
            raise FormatError(
                "the file ends inside a field", path=self.source.name, offset=self.offset, field=field,
                expected=f"{count} bytes", found=f"{max(self.left, 0)} left",
            )  # fmt: skip

    def fill(self, count: int, field: str) -> int:
        """Make `count` bytes at `offset` present in `buffer`; their index in it."""
        at = self.offset - self.start
        if at >= 0 and at + count <= self.filled and count >= 0:
            return at
        self.need(count, field)
        self.start, self.filled = self.offset, min(max(count, self.chunk), self.left)
        if len(self.buffer) < self.filled:
            self.buffer = bytearray(self.filled)
        self.source.readinto(self.offset, memoryview(self.buffer)[: self.filled])
        if not self.source.remote:
            self.chunk = max(self.chunk, min(self.chunk * 4, CHUNK_MAX))
        return 0

    def recall(self, start: int, end: int) -> bytes | None:
        """Bytes [start, end) of the source if `buffer` still contains them."""
        if self.start <= start and end <= self.start + self.filled:
            return bytes(self.buffer[start - self.start : end - self.start])
        return None

    def take(self, count: int, field: str) -> bytes:
        """`count` bytes, and step over them."""
        if count > CHUNK_MAX:  # a long value is read straight into its own bytes
            self.need(count, field)
            self.offset += count
            return self.source.read(self.offset - count, count)
        at = self.fill(count, field)
        self.offset += count
        return bytes(self.buffer[at : at + count])

    def skip(self, count: int, field: str) -> None:
        """Step over `count` bytes without reading them."""
        self.need(count, field)
        self.offset += count

    def numbers(self, codes: str, field: str) -> tuple[int, ...]:
        """Numbers of `struct` codes B b H h I i Q q, packed without gaps in the cursor's byte order."""
        codec = _codec(self.order, codes)
        at = self.fill(codec.size, field)
        self.offset += codec.size
        return codec.unpack_from(self.buffer, at)

    def number(self, code: str, field: str) -> int:
        """One such number."""
        return self.numbers(code, field)[0]
