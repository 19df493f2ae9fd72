"""A deflated stretch of a file as a source: its bytes come in order, going back costs a start from the front.

Memory is bounded by the request and one chunk of input, whatever the stream claims. Where the whole stream has been
read, its length and CRC-32 have been checked on the way.
"""

from __future__ import annotations

import threading
import zlib
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.io.source import Source

_CHUNK: Final = 1 << 16
# One deflate block can't expand its input further (258 bytes for two bits): a larger claim is a lie.
MAX_RATIO: Final = 1032


class InflateSource(Source):
    """`size` bytes that raw deflate data at [offset, offset + packed) of `parent` unpacks to."""

    sequential = True

    def __init__(
        self, parent: Source, offset: int, packed: int, size: int, name: str | None = None, crc: int | None = None
    ) -> None:
        self.parent, self.offset, self.packed, self.size = parent, offset, packed, size
        self.name, self.crc = name or parent.name, crc
        parent.check(offset, packed)
        if size > packed * MAX_RATIO:
            raise self._broken("deflate can't make so much of so little", 0, f"<= {packed * MAX_RATIO}", size)
        self._lock = threading.Lock()
        self._restart()

    def _broken(self, reason: str, taken: int, expected: object = None, found: object = None) -> FormatError:
        return FormatError(reason, path=self.name, offset=self.offset + taken, expected=expected, found=found)

    def _restart(self) -> None:
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._taken = 0  # packed bytes handed to zlib
        self._at = 0  # unpacked bytes got from it
        self._sum = 0

    def _readinto(self, offset: int, out: memoryview) -> int:
        with self._lock:
            if offset < self._at:
                self._restart()
            while self._at < offset:
                self._next(min(offset - self._at, _CHUNK))
            done = 0
            while done < len(out):
                piece = self._next(len(out) - done)
                out[done : done + len(piece)] = piece
                done += len(piece)
        return done

    def _next(self, most: int) -> bytes:
        """One to `most` more bytes."""
        while True:
            packed = self._inflater.unconsumed_tail
            if not packed and self._taken < self.packed and not self._inflater.eof:
                packed = self.parent.read(self.offset + self._taken, min(_CHUNK, self.packed - self._taken))
                self._taken += len(packed)
            try:
                piece = self._inflater.decompress(packed, most)
            except zlib.error as error:
                raise self._broken(f"the compressed data is damaged: {error}", self._taken) from None
            if piece:
                self._at += len(piece)
                self._sum = zlib.crc32(piece, self._sum)
                if self._at == self.size:
                    self._check_end()
                return piece
            if self._inflater.eof or (not packed and self._taken == self.packed):
                raise self._broken("the compressed data ends too early", self._taken, f"{self.size} bytes", self._at)

    def _check_end(self) -> None:
        # A copy: the look beyond the end must not disturb this stream.
        rest = self._inflater.copy()
        tail = self._inflater.unconsumed_tail + self.parent.read(
            self.offset + self._taken, min(_CHUNK, self.packed - self._taken)
        )
        if rest.decompress(tail, 1):
            raise self._broken("the compressed data is longer than stated", self._taken, f"{self.size} bytes")
        if self.crc is not None and self._sum != self.crc:
            raise self._broken("the checksum is wrong", 0, f"CRC-32 {self.crc:08x}", f"{self._sum:08x}")
