"""A remote file that is read by ranges, over HTTP or from a bucket. Parsers and plans read it like a local file.

`RangeSource` keeps read bytes in one page cache per process, reads ahead of sequential readers, and reads long ranges
in parallel. A `RemoteFile` (adapters/remote) fetches the ranges.

Memory: at most `CACHE` bytes read ahead or kept, in reused buffers, in addition to the callers' buffers. If there is no
room, a short read (64 KiB) allocates its own buffer, one per reading thread. Requests: at most `CONNECTIONS` at a time,
each of at most `REQUEST` bytes.
"""

from __future__ import annotations

import atexit
import mmap
import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cache
from typing import Final, Protocol

from weighbridge.base.limits import MIB
from weighbridge.io.source import Source
from weighbridge.io.workers import is_abandoned

CACHE: Final = 64 * MIB
CONNECTIONS: Final = 32
#: A longer read is cut into requests of this size, which run at the same time.
REQUEST: Final = 4 * MIB
#: The first read of a stream, and its largest; each read is four times as long as the one before.
FIRST: Final = 32 << 10
WINDOW: Final = MIB
#: Bounds of a stream's read-ahead, which is a quarter of the bytes read so far. The least is 20 ms at 1 Gbit/s; after
#: each header it is wasted.
LEAST_AHEAD: Final = 3 * MIB
MOST_AHEAD: Final = 16 * MIB
#: A header's length, beyond which a stream is taken for a file that is read whole.
HEADER_MOST: Final = 32 * MIB
#: A short read at an unexpected offset fetches this much, since headers of archives follow each other.
NEAR: Final = 16 << 10
#: Announced ranges with a smaller gap are one request: the gap takes one round trip at 25 Mbit/s.
GAP: Final = 64 << 10
_STEP: Final = 0.1  # seconds between a waiting thread's checks whether it is still needed
#: Pieces of at least this size use memory from the system, which is reused.
_FRAME: Final = 64 << 10


class RemoteFile(Protocol):
    """One version of a remote file. `version`: an ETag or a digest, which changes whenever the bytes do."""

    name: str
    size: int
    version: str

    def fetch(self, offset: int, out: memoryview, stopped: Callable[[], bool]) -> None:
        """Fill `out` with the bytes at `offset`, or raise; `CancelledError` soon after `stopped()` is true."""


class _Piece:
    """Bytes [start, end) of a file, in memory or requested. `left`: the number of bytes that are still expected to be
    read; `readers`: threads that wait for the piece or copy from it."""

    __slots__ = ("data", "end", "future", "left", "readers", "start", "used")

    def __init__(self, start: int, end: int, left: int) -> None:
        self.start, self.end, self.left = start, end, left
        self.data: bytes | memoryview = b""
        self.used, self.readers = False, 0
        self.future: Future[None] | None = None

    def __lt__(self, other: _Piece) -> bool:
        return self.start < other.start

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def cost(self) -> int:
        """The memory that it takes."""
        return self.size if self.size < _FRAME else -(-self.size // _FRAME) * _FRAME

    @property
    def idle(self) -> bool:
        """Whether nothing writes to its memory or reads from it."""
        return not self.readers and (self.future is None or self.future.done())


class Frames:
    """Reused memory of dropped pieces: fresh pages cost more than the copy into them, and allocators keep the memory
    that each thread frees."""

    def __init__(self) -> None:
        self.bytes = 0
        self._free: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes, uninitialized."""
        if size < _FRAME:
            return memoryview(bytearray(size))
        whole = -(-size // _FRAME) * _FRAME
        found = next((frame for frame in self._free if len(frame) == whole), None)
        if found is None:
            return memoryview(mmap.mmap(-1, whole))[:size]
        self._free.remove(found)
        self.bytes -= whole
        return memoryview(found)[:size]

    def give(self, data: bytes | memoryview) -> None:
        """Memory that nobody uses any more."""
        if isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap):
            self._free.append(data.obj)
            self.bytes += len(data.obj)

    def trim(self, most: int) -> None:
        """Returns memory beyond `most` bytes to the system."""
        while self._free and self.bytes > max(most, 0):
            self.bytes -= len(self._free.pop(0))


class RangeCache:
    """The pieces of all files, by file and version. Evicts completely read pieces first, then the least recently used.
    `bytes`: the memory of all pieces."""

    def __init__(self, limit: int = CACHE) -> None:
        self.limit, self.bytes = limit, 0
        self.lock = threading.RLock()
        self._files: dict[tuple[str, str], list[_Piece]] = {}
        self._order: OrderedDict[_Piece, tuple[str, str]] = OrderedDict()
        self._frames = Frames()

    def at(self, key: tuple[str, str], offset: int) -> tuple[_Piece | None, int | None]:
        """Returns the piece with the byte at `offset`, and the start of the next one."""
        pieces = self._files.get(key, [])
        i = bisect_right(pieces, offset, key=lambda piece: piece.start)
        found = pieces[i - 1] if i and pieces[i - 1].end > offset else None
        return found, pieces[i].start if i < len(pieces) else None

    @property
    def request(self) -> int:
        """The length of a request: an eighth of the limit, so that several can run at a time."""
        return max(min(REQUEST, self.limit // 8), _FRAME)

    def add(self, key: tuple[str, str], piece: _Piece, *, ahead: bool) -> bool:
        """Makes room for a piece and allocates its memory; returns False if there is no room. A short piece that isn't
        read ahead is always accepted."""
        self._evict(piece.cost, lambda old: old.left <= 0)
        if not ahead:
            self._evict(piece.cost, lambda old: old.used)
        if self.bytes + piece.cost > self.limit and (ahead or piece.size > _FRAME):
            return False
        self.bytes += piece.cost
        piece.data = self._frames.take(piece.size)
        self._frames.trim(self.limit - self.bytes)
        insort(self._files.setdefault(key, []), piece)
        self._order[piece] = key
        return True

    def _evict(self, size: int, which: Callable[[_Piece], bool]) -> None:
        """Drop idle pieces until there is room for `size` bytes."""
        for old in list(self._order) if self.bytes + size > self.limit else ():
            if old.idle and which(old):
                self.drop(old)
                if self.bytes + size <= self.limit:
                    break

    def drop(self, piece: _Piece) -> None:
        """Forget a piece. Whoever waits for it asks again."""
        if (key := self._order.pop(piece, None)) is not None:
            self.bytes -= piece.cost
            self._files[key].remove(piece)
            if not self._files[key]:
                del self._files[key]
            if piece.idle:
                self._frames.give(piece.data)
                self._frames.trim(self.limit - self.bytes)

    def touch(self, piece: _Piece, count: int) -> None:
        """`count` bytes of a piece were read."""
        piece.used, piece.left = True, piece.left - count
        if piece in self._order:
            self._order.move_to_end(piece)

    def settle(self, key: tuple[str, str] | None = None) -> None:
        """Marks the cached bytes of one file, or of all, as no longer expected to be read."""
        for piece, owner in self._order.items():
            if key in (None, owner):
                piece.left = 0

    def restrict(self, limit: int) -> None:
        """Sets a new limit, and marks the present pieces as the first to evict."""
        with self.lock:
            self.limit = limit
            self.settle()
            self._evict(0, lambda old: True)
            self._frames.trim(self.limit - self.bytes)


CACHED: Final = RangeCache()


def at_end_of_threads(act: Callable[[], object]) -> None:
    """Calls `act` when the interpreter ends, before it waits for threads. That is before `atexit` runs and before
    `concurrent.futures`, which registers itself in the same way, joins the threads of pools."""
    getattr(threading, "_register_atexit", atexit.register)(act)


@cache
def _pool() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="weighbridge-remote")
    # Ctrl-C inside `submit` may leave a running thread that the pool has not noted: only `shutdown` reaches it.
    at_end_of_threads(lambda: pool.shutdown(wait=False, cancel_futures=True))
    return pool


class RangeSource(Source):
    """A `RemoteFile` as a source. Closing it cancels its requests; the bytes read so far stay in the cache."""

    remote = True

    def __init__(self, file: RemoteFile, cache: RangeCache = CACHED) -> None:
        self.file, self.name, self.size = file, file.name, file.size
        self._cache, self._key = cache, (file.name, file.version)
        self._stopped = threading.Event()
        self._running: set[_Piece] = set()
        # The stream: the end of its requests, the length of its next window, whether it reads ahead.
        self._tail, self._window, self._flows = 0, FIRST, False
        self._fetched = 0
        self._in_header = False  # the stream is a header, which nothing is read ahead of unless its end is expected

    @property
    def fetched(self) -> int:
        return self._fetched

    @property
    def version(self) -> str:
        """A text that changes whenever the file's bytes do."""
        return self.file.version

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Begins to read (offset, length) ranges that will be needed, as far as there is room. Adjacent ranges share
        requests of equal length. Announced ranges replace the stream, which ends."""
        with self._cache.lock:
            self._flows = self._in_header = False
            for start, end, wanted in _coalesced(ranges, self.size):
                for lo, hi in self._missing(start, end):
                    step = -(-(hi - lo) // -(-(hi - lo) // self._cache.request))
                    for at in range(lo, hi, step):
                        to = min(at + step, hi)
                        overlap = sum(max(min(to, end) - max(at, start), 0) for start, end in wanted)
                        if not self._start(at, to, ahead=True, left=overlap):
                            return

    def stream(self, length: int) -> None:
        """Begin to read a header: the first `length` bytes, which will be asked for in their order and beyond."""
        with self._cache.lock:
            self._in_header, self._flows = True, False
            self.expect_header(length)

    def expect_header(self, end: int) -> None:
        """Begin to read a header up to `end`."""
        end = min(end, self.size, HEADER_MOST)
        with self._cache.lock:
            if not self._in_header:
                return
            for lo, hi in self._missing(0, end):  # one request, however long
                if not self._start(lo, hi, ahead=True):
                    return
            self._tail = max(self._tail, end)

    def seed(self, data: bytes) -> None:
        """The file's first bytes, which came with its size."""
        piece = _Piece(0, len(data), 0)
        piece.used = True
        with self._cache.lock:
            if data and self._cache.at(self._key, 0)[0] is None and self._cache.add(self._key, piece, ahead=True):
                piece.data = data
            self._tail = len(data)
            self._fetched += len(data)

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
            most = self._cache.request
            long = end - at > most or (end - at == most and at != self._tail)
            if piece is None and not long:
                piece = self._missed(at, end, following)
            if piece is None:
                self._tail = end
            else:
                piece.readers += 1
                if at <= self._tail:  # announced ranges beyond the stream are none of its business
                    self._ahead(at + len(out))
        return self._direct(at, out[: end - at]) if piece is None else self._copied(piece, at, out)

    def _copied(self, piece: _Piece, at: int, out: memoryview) -> int:
        """Fill the beginning of `out` from a piece, when it is here; how far. One that another source had begun and
        gave up is asked for again."""
        count = min(len(out), piece.end - at)
        try:
            if piece.future is not None:
                _wait(piece.future)
            out[:count] = memoryview(piece.data)[at - piece.start : at - piece.start + count]
        except CancelledError:
            if is_abandoned():
                raise
            self.file.fetch(at, out[:count], self._is_stopped)
        except BaseException:
            with self._cache.lock:
                self._cache.drop(piece)
            raise
        finally:
            with self._cache.lock:
                piece.readers -= 1
                self._cache.touch(piece, count)
        return count

    def _missed(self, at: int, end: int, following: int | None) -> _Piece | None:
        """The piece for a read that nothing foresaw: of a stream its next window, else little more than was asked."""
        if at == self._tail and self._in_header and at < HEADER_MOST:
            length = max(end - at, at // 4)
        elif at == self._tail:
            length = max(end - at, min(self._window, self._cache.request))
            self._flows, self._window = at > 0 or self._flows, min(self._window * 4, WINDOW)
        else:
            length, self._flows, self._window = (end - at, False, FIRST) if end - at >= 1024 else (NEAR, False, FIRST)
        stop = min(at + length, following or self.size, self.size)
        self._tail = stop
        return self._start(at, stop, ahead=False)

    def _ahead(self, reached: int) -> None:
        """Extends the stream when readers come near its end: early for a long one, late if it may be just a header."""
        long = self._window == WINDOW
        near = min(max(LEAST_AHEAD, reached // 4), MOST_AHEAD) if long else self._window // 4
        while self._flows and reached <= self._tail < self.size and self._tail - reached < near:
            stop = min(self._tail + self._window, self.size)
            for lo, hi in self._missing(self._tail, stop):
                if not self._start(lo, hi, ahead=True):
                    return
            self._tail, self._window = stop, min(self._window * 4, WINDOW)
            if not long:
                return

    def _missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, end) that are neither here nor on their way."""
        while start < end:
            piece, following = self._cache.at(self._key, start)
            if piece is None:
                yield start, min(following or end, end)
            start = piece.end if piece is not None else min(following or end, end)

    def _start(self, start: int, end: int, *, ahead: bool, left: int | None = None) -> _Piece | None:
        piece = _Piece(start, end, end - start if left is None else left)
        if not self._cache.add(self._key, piece, ahead=ahead):
            return None
        self._running.add(piece)
        piece.future = _pool().submit(self._fetch, piece)
        return piece

    def _fetch(self, piece: _Piece) -> None:
        try:
            self.file.fetch(piece.start, memoryview(piece.data), self._is_stopped)
            with self._cache.lock:
                self._fetched += piece.size
        except BaseException:
            with self._cache.lock:
                self._cache.drop(piece)
            raise
        finally:
            with self._cache.lock:
                self._running.discard(piece)

    def _is_stopped(self) -> bool:
        return self._stopped.is_set()

    def _direct(self, at: int, out: memoryview) -> int:
        """A long read: parts straight into the caller's memory, several at a time."""
        parts = [(at + i, out[i : i + REQUEST]) for i in range(0, len(out), REQUEST)]
        ended = threading.Event()

        def stopped() -> bool:
            return ended.is_set() or self._is_stopped()

        futures = [_pool().submit(self.file.fetch, *part, stopped) for part in parts[1:]]
        try:
            self.file.fetch(*parts[0], stopped)
            for future in futures:
                future.result()
        finally:
            ended.set()
            for future in futures:  # none may write into `out` after this
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()
        with self._cache.lock:
            self._fetched += len(out)
        return len(out)

    def close(self) -> None:
        self._stopped.set()
        with self._cache.lock:
            self._cache.settle(self._key)
            for piece in list(self._running):
                if piece.future is not None and piece.future.cancel():
                    self._running.discard(piece)
                    self._cache.drop(piece)


def _wait(future: Future[None]) -> None:
    """Waits for a piece. Raises CancelledError soon after this thread's pool is abandoned."""
    while True:
        try:
            return future.result(_STEP)
        except TimeoutError:
            if future.done():
                raise
            if is_abandoned():
                raise CancelledError from None


def _coalesced(ranges: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Returns sorted [start, end) ranges inside the file, close ones merged, each with the ranges it consists of."""
    merged: list[tuple[int, int, list[tuple[int, int]]]] = []
    for start, length in sorted(ranges):
        end = min(start + length, size)
        if start >= end:
            continue
        if merged and start - merged[-1][1] <= GAP:
            first, last, parts = merged[-1]
            merged[-1] = (first, max(end, last), parts)
            parts.append((start, end))
        else:
            merged.append((start, end, [(start, end)]))
    return merged
