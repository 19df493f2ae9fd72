"""A deflated stretch of a file as a source: reading on is cheap, going back means to start over.

Threads that read slabs of one tensor go back all the time, by a little. So the decoder is remembered at the last few
places, and a step back starts at the nearest of them instead of the front. Memory is bounded by the request and these,
whatever the stream claims. Where the end is reached, length and CRC-32 of all before it have been checked on the way.
"""

from __future__ import annotations

import threading
import zlib
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.io.source import Source

_CHUNK: Final = 1 << 16
# One deflate block expands its input at most this much (258 bytes for two bits): a larger claim is false.
MAX_RATIO: Final = 1032
# A remembered decoder takes some 45 kB, 32 of them its window. Slabs come out of order by a pool's width at most.
_KEPT: Final = 8
_APART: Final = MIB


class _State(NamedTuple):
    """A decoder after `taken` packed bytes and `at` unpacked ones, whose CRC-32 is `crc`."""

    decoder: Any  # zlib's class has no public name
    taken: int = 0
    at: int = 0
    crc: int = 0

    def copy(self) -> _State:
        return self._replace(decoder=self.decoder.copy())


class InflateSource(Source):
    """`size` bytes that raw deflate data at [offset, offset + packed) of `parent` unpacks to. Closing it leaves
    `parent` open."""

    sequential = True

    def __init__(
        self, parent: Source, offset: int, packed: int, size: int, name: str | None = None, crc: int | None = None
    ) -> None:
        self.parent, self.offset, self.packed, self.size = parent, offset, packed, size
        self.name, self.crc = name or parent.name, crc
        parent.check(offset, packed)
        if size > packed * MAX_RATIO:
            raise self._broken("deflate can't expand its input this much", 0, f"<= {packed * MAX_RATIO}", size)
        self._lock = threading.Lock()
        self.rewind()

    def rewind(self) -> None:
        """Forget the decoders: an archive may have many members, each read once, or only its first bytes."""
        with self._lock:
            self._forget()

    def close(self) -> None:
        self.rewind()

    def _forget(self) -> None:
        self._now: _State | None = None
        self._past: tuple[_State, ...] = ()
        self._left = self.size  # bytes still to be handed out before all has been read once

    def _broken(self, reason: str, taken: int, expected: object = None, found: object = None) -> FormatError:
        return FormatError(reason, path=self.name, offset=self.offset + taken, expected=expected, found=found)

    # ---- reading

    def _readinto(self, offset: int, out: memoryview) -> int:
        with self._lock:
            if out:
                state = self._nearest(offset)
                while state.at < offset:
                    self._remember(state)
                    state = self._fill(state, memoryview(bytearray(min(_APART, offset - state.at))))
                self._remember(state)
                self._now = self._fill(state, out)
                self._left -= len(out)
                if self._left <= 0:
                    self._forget()
        return len(out)

    def _nearest(self, offset: int) -> _State:
        now, self._now = self._now, None  # on an error, no half-used decoder remains
        past = max((s for s in self._past if s.at <= offset), key=lambda s: s.at, default=None)
        if now is not None and (past.at if past else 0) <= now.at <= offset:
            return now
        return past.copy() if past else _State(zlib.decompressobj(-zlib.MAX_WBITS))

    def _remember(self, state: _State) -> None:
        if state.at and all(abs(state.at - s.at) >= _APART for s in self._past):
            self._past = (*self._past[1 - _KEPT :], state.copy())

    def _fill(self, state: _State, out: memoryview) -> _State:
        """Fills `out` with the next bytes."""
        done = 0
        while done < len(out):
            piece, state = self._next(state, min(len(out) - done, _CHUNK))
            out[done : done + len(piece)] = piece
            done += len(piece)
            if not piece and self._dry(state):
                found = f"{state.at} bytes"
                raise self._broken("the compressed data ends too early", state.taken, f"{self.size} bytes", found)
        if state.at == self.size:
            self._check_end(state.copy())
        return state

    def _next(self, state: _State, most: int) -> tuple[bytes, _State]:
        """Up to `most` bytes, and the decoder after them; possibly none yet."""
        packed, taken = state.decoder.unconsumed_tail, state.taken
        if not packed:
            packed = self.parent.read(self.offset + taken, min(_CHUNK, self.packed - taken))
            taken += len(packed)
        try:
            piece: bytes = state.decoder.decompress(packed, most)
        except zlib.error as error:
            raise self._broken(f"the compressed data is damaged: {error}", taken) from None
        return piece, _State(state.decoder, taken, state.at + len(piece), zlib.crc32(piece, state.crc))

    def _dry(self, state: _State) -> bool:
        """Whether the stream is finished."""
        return state.decoder.eof or (state.taken == self.packed and not state.decoder.unconsumed_tail)

    def _check_end(self, state: _State) -> None:
        """FormatError unless the stream ends here, with the last packed byte and the right sum. Uses `state` up."""
        if self.crc is not None and state.crc != self.crc:
            raise self._broken("the checksum is wrong", 0, f"CRC-32 {self.crc:08x}", f"{state.crc:08x}")
        rest, piece = state, b""
        while not piece and not rest.decoder.eof:
            before = rest
            piece, rest = self._next(rest, 1)
            if not piece and self._dry(before) and not rest.decoder.eof:
                raise self._broken("the compressed data has no end", rest.taken)
        if piece:
            raise self._broken("the compressed data is longer than stated", rest.taken, f"{self.size} bytes")
        left = self.packed - rest.taken + len(rest.decoder.unused_data)
        if left:
            raise self._broken(f"{left} bytes follow the compressed data", self.packed - left)
