"""Copies bytes of files into the memory of a device: reader threads fill a ring of staging buffers, each of which is
copied to the device while others are read.

A slot is refilled only once its copy has finished, so nothing is overwritten, and the staging memory bounds the data
in flight. With slots of s bytes, r seconds to read one and c seconds to copy it, the throughput is s / max(r, c).
`adapters/cuda.py` has the CUDA device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import field
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.io.page_cache import BLOCK, DirectReader
from weighbridge.tensors.nodes import LogicalTensor, Stored

SLOTS: Final = 4
SLOT_BYTES: Final = 16 * MIB


class Pending(Protocol):
    """A copy that was begun."""

    def wait(self) -> None:
        """Return once it has finished; raises what went wrong in it."""


class CopyDevice(Protocol):
    """Memory that bytes are copied to from staging buffers."""

    def staging(self, size: int) -> memoryview:
        """A staging buffer that begins at a multiple of 4096."""

    def copy(self, source: memoryview, target: Any, at: int) -> Pending:
        """Begin to copy `source` to the bytes of `target` from `at` on."""

    def finish(self) -> None:
        """Return once nothing is copied any more; staging buffers aren't used from here on."""


class TensorRead(NamedTuple):
    """`size` bytes of a file at `offset`, for the beginning of `target`."""

    file: str
    offset: int
    size: int
    target: Any


class _Chunk(NamedTuple):
    file: str
    offset: int
    size: int
    target: Any
    at: int


@dataclass
class _Slot:
    memory: memoryview
    pending: Pending | None = None


@dataclass
class _Ring:
    """The state shared by the reader threads."""

    device: CopyDevice
    files: dict[str, DirectReader]
    chunks: Iterator[_Chunk]
    free: SimpleQueue[_Slot] = field(default_factory=SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def next(self) -> _Chunk | None:
        with self.lock:
            return None if self.stopped else next(self.chunks, None)

    def work(self) -> None:
        """Runs one reader until no chunk is left or another reader fails."""
        while (chunk := self.next()) is not None:
            slot = self.free.get()
            try:
                self.move(chunk, slot)
            except BaseException:
                self.stopped = True
                raise
            finally:
                self.free.put(slot)

    def move(self, chunk: _Chunk, slot: _Slot) -> None:
        if slot.pending is not None:
            slot.pending.wait()
            slot.pending = None
        try:
            skip = self.files[chunk.file].read(chunk.offset, chunk.size, slot.memory)
        except EOFError as error:
            raise FormatError("the file became shorter while it was read", path=chunk.file, found=error) from None
        slot.pending = self.device.copy(slot.memory[skip : skip + chunk.size], chunk.target, chunk.at)


def stream(
    reads: Sequence[TensorRead], device: CopyDevice, *, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES,
    readers: int = SLOTS, direct: bool | None = None,
) -> None:  # fmt: skip
    """Copies `reads` to the device, in the order of files and offsets. It uses no memory beyond `slots` staging
    buffers of `slot_bytes`. `direct`: bypass the page cache (None: if it doesn't contain most of a file). Raises
    FormatError if a file ends too early, or OSError, after all threads have stopped."""
    with ExitStack() as opened:
        opened.callback(device.finish)
        files: dict[str, DirectReader] = {}
        for name in dict.fromkeys(r.file for r in reads):
            files[name] = opened.enter_context(closing(DirectReader(name, direct)))
        ring = _Ring(device, files, _chunks(reads, slot_bytes))
        kept = [_Slot(device.staging(slot_bytes + 2 * BLOCK)) for _ in range(slots)]
        for slot in kept:
            ring.free.put(slot)
        with ThreadPoolExecutor(readers) as pool:
            running = [pool.submit(ring.work) for _ in range(readers)]
        for reader in running:
            reader.result()
        for slot in kept:
            if slot.pending is not None:
                slot.pending.wait()


def _chunks(reads: Sequence[TensorRead], size: int) -> Iterator[_Chunk]:
    for read in sorted(reads, key=lambda r: (r.file, r.offset)):
        for at in range(0, read.size, size):
            yield _Chunk(read.file, read.offset + at, min(size, read.size - at), read.target, at)


def read_of(tensor: LogicalTensor, target: Any) -> TensorRead | None:
    """Returns the read that fills `target` with a tensor; None if its bytes aren't in a file unchanged."""
    if not isinstance(tensor, Stored) or tensor.swap or not tensor.spec.nbytes:
        return None
    place = tensor.source.location(tensor.offset)
    return None if place is None else TensorRead(place[0].name, place[1], tensor.spec.nbytes, target)
