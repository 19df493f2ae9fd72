"""A file that is read by ranges from elsewhere: over HTTP, from a bucket. Parsers and plans read it like a local one.

`RangeSource` keeps what was read in one page cache for the process, reads ahead where bytes are read in their order,
and reads long ranges in parallel. How a range comes here is the business of a `RemoteFile` (adapters/remote).

What is in memory: at most `CACHE` bytes read ahead or kept, beside the buffers of the callers. What is on its way: at
most `CONNECTIONS` requests of at most `REQUEST` bytes.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cache
from typing import Final, Protocol

from weighbridge.base.limits import MIB
from weighbridge.io.source import Source

CACHE: Final = 64 * MIB
CONNECTIONS: Final = 32
#: A longer read is cut into requests of this size, which run at the same time.
REQUEST: Final = 4 * MIB
#: The first read of a stream, and what it grows to, four times as long each time.
FIRST: Final = 32 << 10
WINDOW: Final = 2 * MIB
#: A short read at an unforeseen place brings this much, as headers of archives follow each other.
NEAR: Final = 16 << 10
#: Announced ranges with less than this between them are one request: it is what a round trip costs at 25 Mbit/s.
GAP: Final = 64 << 10


class RemoteFile(Protocol):
    """A file elsewhere, of one version. `version`: what changes when its bytes do (an ETag, a digest)."""

    name: str
    size: int
    version: str

    def fetch(self, offset: int, out: memoryview, stopped: Callable[[], bool]) -> None:
        """Fill `out` with the bytes at `offset`, or raise; `CancelledError` soon after `stopped()` is true."""


class _Piece:
    """Bytes [start, end) of a file: here, or on their way."""

    __slots__ = ("data", "end", "future", "start", "used")

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.data = b""
        self.used = False
        self.future: Future[None] | None = None

    def __lt__(self, other: _Piece) -> bool:
        return self.start < other.start

    @property
    def size(self) -> int:
        return self.end - self.start


class RangeCache:
    """The pieces of all files, by file and version. The ones that were used longest ago go first."""

    def __init__(self, limit: int = CACHE) -> None:
        self.limit, self.bytes = limit, 0
        self.lock = threading.RLock()
        self._files: dict[tuple[str, str], list[_Piece]] = {}
        self._order: OrderedDict[_Piece, tuple[str, str]] = OrderedDict()

    def at(self, key: tuple[str, str], offset: int) -> tuple[_Piece | None, int | None]:
        """The piece with the byte at `offset`, and where the next one begins."""
        pieces = self._files.get(key, [])
        i = bisect_right(pieces, offset, key=lambda piece: piece.start)
        found = pieces[i - 1] if i and pieces[i - 1].end > offset else None
        return found, pieces[i].start if i < len(pieces) else None

    def add(self, key: tuple[str, str], piece: _Piece, *, ahead: bool) -> bool:
        """Make room for a piece; False where one that is read ahead finds none."""
        for old in list(self._order):
            if self.bytes + piece.size <= self.limit:
                break
            if old.used and (old.future is None or old.future.done()):
                self.drop(old)
        if ahead and self.bytes + piece.size > self.limit:
            return False
        self.bytes += piece.size
        insort(self._files.setdefault(key, []), piece)
        self._order[piece] = key
        return True

    def drop(self, piece: _Piece) -> None:
        """Forget a piece. Whoever waits for it asks again."""
        if (key := self._order.pop(piece, None)) is not None:
            self.bytes -= piece.size
            self._files[key].remove(piece)
            if not self._files[key]:
                del self._files[key]

    def touch(self, piece: _Piece) -> None:
        piece.used = True
        if piece in self._order:
            self._order.move_to_end(piece)


CACHED: Final = RangeCache()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="weighbridge-remote")


class RangeSource(Source):
    """A `RemoteFile` as a source. Closing it ends what it has under way; what it read stays in the cache."""

    remote = True

    def __init__(self, file: RemoteFile, cache: RangeCache = CACHED) -> None:
        self.file, self.name, self.size = file, file.name, file.size
        self._cache, self._key = cache, (file.name, file.version)
        self._stopped = threading.Event()
        self._running: set[_Piece] = set()
        # The stream: up to where it was asked for, the length of its next window, whether it goes on by itself.
        self._tail, self._window, self._flows = 0, FIRST, False

    @property
    def version(self) -> str:
        """What changes when the file's bytes do."""
        return self.file.version

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Begin to read (offset, length) ranges that will be asked for, as far as there is room."""
        with self._cache.lock:
            for start, end in _coalesced(ranges, self.size):
                for lo, hi in self._missing(start, end):
                    for at in range(lo, hi, REQUEST):
                        if not self._start(at, min(at + REQUEST, hi), ahead=True):
                            return

    def stream(self, length: int) -> None:
        """Begin to read the first `length` bytes, which will be asked for in their order and beyond."""
        self.advise((at, min(WINDOW, length - at)) for at in range(0, min(length, self.size), WINDOW))
        with self._cache.lock:
            self._tail, self._window, self._flows = min(length, self.size), min(max(length, FIRST), WINDOW), True

    def seed(self, data: bytes) -> None:
        """The file's first bytes, which came with its size."""
        piece = _Piece(0, len(data))
        piece.data, piece.used = data, True
        with self._cache.lock:
            if data and self._cache.at(self._key, 0)[0] is None:
                self._cache.add(self._key, piece, ahead=True)
            self._tail = len(data)

    def _readinto(self, offset: int, out: memoryview) -> int:
        done = 0
        while done < len(out):
            done += self._some(offset + done, out[done:])
        return done

    def _some(self, at: int, out: memoryview) -> int:
        """Fill the beginning of `out`; how far."""
        with self._cache.lock:
            piece, following = self._cache.at(self._key, at)
            end = min(at + len(out), following or self.size)
            long = end - at > REQUEST or (end - at == REQUEST and at != self._tail)
            if piece is None and not long:
                piece = self._missed(at, end, following)
            if piece is None:
                self._tail = end
            elif at <= self._tail:  # announced ranges beyond the stream are none of its business
                self._ahead(min(piece.end if self._window == WINDOW else at + len(out), self._tail))
        if piece is None:
            return self._direct(at, out[: end - at])
        self._wait(piece)
        count = min(len(out), piece.end - at)
        out[:count] = memoryview(piece.data)[at - piece.start : at - piece.start + count]
        return count

    def _wait(self, piece: _Piece) -> None:
        """Until the piece is here. One that another source had begun and gave up is asked for again."""
        try:
            if piece.future is not None:
                piece.future.result()
        except CancelledError:
            data = bytearray(piece.size)
            self.file.fetch(piece.start, memoryview(data), self._stopped.is_set)
            piece.data = bytes(data)
        except BaseException:
            with self._cache.lock:
                self._cache.drop(piece)
            raise
        with self._cache.lock:
            self._cache.touch(piece)

    def _missed(self, at: int, end: int, following: int | None) -> _Piece:
        """The piece for a read that nothing foresaw: of a stream its next window, else little more than was asked."""
        if at == self._tail:
            length = max(end - at, self._window)
            self._flows, self._window = at > 0 or self._flows, min(self._window * 4, WINDOW)
        else:
            length, self._flows, self._window = (end - at, False, FIRST) if end - at >= 1024 else (NEAR, False, FIRST)
        stop = min(at + length, following or self.size, self.size)
        self._tail = stop
        piece = self._start(at, stop, ahead=False)
        assert piece is not None
        return piece

    def _ahead(self, reached: int) -> None:
        """Go on with the stream where its end comes near: of a long one early, of what may be just a header late."""
        near = self._window if self._window == WINDOW else self._window // 4
        if self._flows and reached <= self._tail and self._tail - reached < near:
            stop = min(self._tail + self._window, self.size)
            for lo, hi in self._missing(self._tail, stop):
                if not self._start(lo, hi, ahead=True):
                    return
            self._tail, self._window = stop, min(self._window * 4, WINDOW)

    def _missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, end) that are neither here nor on their way."""
        while start < end:
            piece, following = self._cache.at(self._key, start)
            if piece is None:
                yield start, min(following or end, end)
            start = piece.end if piece is not None else min(following or end, end)

    def _start(self, start: int, end: int, *, ahead: bool) -> _Piece | None:
        piece = _Piece(start, end)
        if not self._cache.add(self._key, piece, ahead=ahead):
            return None
        self._running.add(piece)
        piece.future = _pool().submit(self._fetch, piece)
        return piece

    def _fetch(self, piece: _Piece) -> None:
        data = bytearray(piece.size)
        try:
            self.file.fetch(piece.start, memoryview(data), self._stopped.is_set)
            piece.data = data  # type: ignore[assignment]  # never written to again
        except BaseException:
            with self._cache.lock:
                self._cache.drop(piece)
            raise
        finally:
            with self._cache.lock:
                self._running.discard(piece)

    def _direct(self, at: int, out: memoryview) -> int:
        """A long read: parts straight into the caller's memory, several at a time."""
        parts = [(at + i, out[i : i + REQUEST]) for i in range(0, len(out), REQUEST)]
        futures = [_pool().submit(self.file.fetch, *part, self._stopped.is_set) for part in parts[1:]]
        try:
            self.file.fetch(*parts[0], self._stopped.is_set)
            for future in futures:
                future.result()
        finally:
            for future in futures:  # none may write into `out` after this
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()
        return len(out)

    def close(self) -> None:
        self._stopped.set()
        with self._cache.lock:
            for piece in list(self._running):
                if piece.future is not None and piece.future.cancel():
                    self._running.discard(piece)
                    self._cache.drop(piece)


def _coalesced(ranges: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Sorted [start, end) ranges inside the file; those that lie close together are one."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(ranges):
        end = min(start + length, size)
        if start >= end:
            continue
        if merged and start - merged[-1][1] <= GAP:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
