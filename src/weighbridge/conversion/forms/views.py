"""A planned file as bytes that are computed on demand, slab by slab.

A bounded cache keeps slabs, and a few are computed ahead of a sequential reader.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.containers.base import Slot
from weighbridge.conversion.plan.contents import PlannedFile, unit_rows
from weighbridge.conversion.plan.fingerprint import key_of
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.source import FileSource
from weighbridge.io.workers import Workers
from weighbridge.tensors.nodes.base import Node

#: The most bytes of slabs in a `SlabCache`, over all files.
SLABS: Final = 64 * MIB

Key = tuple[int, int]


class SlabCache:
    """Computed slabs by file and number; evicts the least recently used. Computes each once, on a thread pool."""

    def __init__(self, workers: int, limit: int = SLABS) -> None:
        self.limit, self.workers = limit, workers
        self._pool = Workers(workers, "slab")
        self._slabs: OrderedDict[Key, tuple[Future[bytes], int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def start(self, key: Key, size: int, compute: Callable[[], bytes]) -> Future[bytes]:
        """Returns the slab, and starts to compute it unless it is cached or being computed."""
        with self._lock:
            if (cached := self._slabs.get(key)) is not None:
                self._slabs.move_to_end(key)
                return cached[0]
            while self._slabs and self._bytes + size > self.limit:
                _, (_, freed) = self._slabs.popitem(last=False)
                self._bytes -= freed
            future = self._pool.submit(compute)
            self._slabs[key] = future, size
            self._bytes += size

        def drop_failed(future: Future[bytes]) -> None:
            if future.cancelled() or future.exception():
                with self._lock:
                    _, size = self._slabs.pop(key, (future, 0))
                    self._bytes -= size

        future.add_done_callback(drop_failed)
        return future

    def close(self) -> None:
        self._pool.abandon()


class _Slab(NamedTuple):
    """Bytes [start, end) of a file: rows lo..hi of slots that are filled together."""

    start: int
    end: int
    unit: Sequence[tuple[Slot, Node]]
    member: int
    lo: int
    hi: int


class PlannedBytes:
    """One file of a plan. `etag`: changes with its bytes. Safe to read from several threads."""

    def __init__(self, plan: Plan, file: PlannedFile, cache: SlabCache) -> None:
        if file.layout.fixups is not None:
            raise UnsupportedError(f"{file.name}: its checksums precede the data", hint="write it with wb convert")
        self.name, self.size, self._cache = file.name, file.layout.size, cache
        self.etag = hashlib.sha1(repr((sorted(key_of(plan).items()), file.name)).encode()).hexdigest()
        self._pieces = [(offset, data) for offset, data in file.layout.pieces if len(data)]
        self._slabs = sorted(_slabs(file, plan), key=lambda slab: slab.start)
        self._starts = [slab.start for slab in self._slabs]
        self._next = -1  # the slab after the last one that was read

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes at `offset`, fewer at the end of the file."""
        end = min(offset + length, self.size)
        out = bytearray(max(end - offset, 0))
        for start, data in self._pieces:
            _place(out, offset, end, start, data)
        first = max(bisect_right(self._starts, offset) - 1, 0)
        for number in range(first, bisect_right(self._starts, end - 1)):
            slab = self._slabs[number]
            future = self._start(number)
            if number == self._next:  # sequential reads: compute the following slabs meanwhile
                for ahead in range(number + 1, min(number + 1 + self._cache.workers, len(self._slabs))):
                    self._start(ahead)
            self._next = number + 1
            _place(out, offset, end, slab.start, future.result())
        return bytes(out)

    def _start(self, number: int) -> Future[bytes]:
        slab = self._slabs[number]
        return self._cache.start((id(self), number), slab.end - slab.start, lambda: _compute(slab))

    def chunks(self, step: int = MIB) -> Iterator[bytes]:
        """The whole file in order."""
        for at in range(0, self.size, step):
            yield self.read(at, step)


def _slabs(file: PlannedFile, plan: Plan) -> Iterator[_Slab]:
    for unit in file.units:
        rows = plan.slabs[id(unit[0][1])].rows
        for member, (slot, node) in enumerate(unit):
            width = slot.spec.row_bytes
            for lo in range(0, node.spec.rows if width else 0, rows):
                hi = min(lo + rows, node.spec.rows)
                yield _Slab(slot.offset + lo * width, slot.offset + hi * width, unit, member, lo, hi)


def _compute(slab: _Slab) -> bytes:
    with unit_rows(slab.unit, slab.lo, slab.hi) as buffers:
        return buffers[slab.member].tobytes()


def _place(out: bytearray, offset: int, end: int, start: int, data: bytes | memoryview) -> None:
    """Copies the part of `data`, at `start` of the file, that is in [offset, end) to `out`."""
    lo, hi = max(offset, start), min(end, start + len(data))
    if lo < hi:
        out[lo - offset : hi - offset] = data[lo - start : hi - start]


class TextBytes:
    """A small file that a plan writes verbatim."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.size, self.data = name, len(data), data
        self.etag = hashlib.sha1(data).hexdigest()

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


class StoredFile:
    """A file on the disk."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self._source = name, FileSource(path)
        stat = path.stat()
        self.size = stat.st_size
        self.etag = hashlib.sha1(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()

    def read(self, offset: int, length: int) -> bytes:
        return self._source.read(offset, max(min(length, self.size - offset), 0))
