"""Does what a plan says: slabs stream through a thread pool straight to their known offsets, in any order. The pool's
queue is bounded, so memory is what the plan says; kernels and file calls drop the GIL, so threads are enough.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weighbridge.containers.base import Slot
from weighbridge.conversion.plan import Loss, Move, Plan, PlannedFile
from weighbridge.io.sink import OutFile, Sink
from weighbridge.io.source import FileSource
from weighbridge.tensors.kinds import Bytes, Node, Stored

#: (bytes done, bytes in all, what is being done)
Progress = Callable[[int, int, str], None]
# Copies inside the kernel hold no buffer, so their pieces may be longer than a slab.
_COPY = 64 << 20

Task = Callable[[], int]


@dataclass(frozen=True)
class Result:
    """What was written, and what the casts on the way lost."""

    target: str
    files: tuple[str, ...]
    bytes: int
    seconds: float
    overflow: dict[str, int] = field(default_factory=dict)
    underflow: dict[str, int] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    moves: tuple[Move, ...] = ()
    notes: tuple[str, ...] = ()


def run(plan: Plan, *, overwrite: bool = False, progress: Progress | None = None) -> Result:
    """Carry out `plan`. On any error, or an interrupt, nothing is left behind."""
    began = time.monotonic()
    slabs = plan.slabs  # refuses, where it must, before a file is made
    with Sink(plan.target, folder=plan.folder, size=plan.size, overwrite=overwrite) as sink:
        outs = [(f, sink.create(f.name if plan.folder else "", f.layout.size)) for f in plan.files]
        for file, out in outs:
            for offset, data in file.layout.pieces:
                out.write(offset, data)
        digests: dict[int, dict[str, int]] = {id(f): {} for f in plan.files}
        tasks = (t for file, out in outs for t in _tasks(file, out, slabs, digests[id(file)]))
        _drain(tasks, plan, progress)
        for file, out in outs:
            if file.layout.fixups is not None:
                for offset, data in file.layout.fixups(digests[id(file)]):
                    out.write(offset, data)
        for name, data in plan.texts.items():
            sink.create(name, len(data)).write(0, data)
    return _result(plan, time.monotonic() - began)


def _result(plan: Plan, seconds: float) -> Result:
    over = {name: r.overflow for name, r in plan.reports.items() if r.overflow}
    under = {name: r.underflow for name, r in plan.reports.items() if r.underflow}
    names = (*(f.name for f in plan.files), *plan.texts)
    return Result(str(plan.target), names, plan.size, seconds, over, under, plan.losses, plan.moves, plan.notes)


def _tasks(file: PlannedFile, out: OutFile, slabs: Any, digests: dict[str, int]) -> Iterator[Task]:
    """The work of one file in pieces that know nothing of each other."""
    for slot, node in file.slots:
        rows = slabs[id(node)]
        if file.layout.fixups is not None:  # a checksum runs over the bytes in their order: one task a tensor
            yield lambda slot=slot, node=node, rows=rows: _digested(out, slot, node, rows, digests)  # type: ignore[misc]
        elif (origin := _origin(node)) is not None:
            yield from _copies(out, slot, node, origin)
        else:
            for lo in range(0, node.spec.rows, rows):
                hi = min(lo + rows, node.spec.rows)
                yield lambda slot=slot, node=node, lo=lo, hi=hi: _slab(out, slot, node, lo, hi)  # type: ignore[misc]


def _origin(node: Node) -> tuple[FileSource, int] | None:
    """The file and offset of a tensor whose bytes are only copied, where the kernel can do that alone."""
    if isinstance(node, Stored) and not node.swap:
        return node.source.location(node.offset)
    return None


def _copies(out: OutFile, slot: Slot, node: Node, origin: tuple[FileSource, int]) -> Iterator[Task]:
    source, start = origin
    for at in range(0, slot.spec.nbytes, _COPY):
        size = min(_COPY, slot.spec.nbytes - at)
        yield lambda at=at, size=size: _copy(out, slot, node, source, start, at, size)  # type: ignore[misc]


def _copy(out: OutFile, slot: Slot, node: Node, source: FileSource, start: int, at: int, size: int) -> int:
    if not out.copy(source, start + at, slot.offset + at, size):
        step = _buffer(1 << 20)
        for done in range(at, at + size, len(step)):
            part = step[: min(len(step), at + size - done)]
            source.readinto(start + done, part.data)
            out.write(slot.offset + done, part.data)
    return size


_warm = threading.local()


def _buffer(size: int) -> Bytes:
    """This thread's buffer, at least `size` long and warm: fresh pages cost more than reading into them."""
    buffer: Bytes | None = getattr(_warm, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _warm.buffer = np.empty(size, np.uint8)
    return buffer[:size]


def _slab(out: OutFile, slot: Slot, node: Node, lo: int, hi: int) -> int:
    width = node.spec.row_bytes
    buffer = _buffer((hi - lo) * width)
    node.read(lo, hi, buffer)
    out.write(slot.offset + lo * width, buffer.data)
    return len(buffer)


def _digested(out: OutFile, slot: Slot, node: Node, rows: int, digests: dict[str, int]) -> int:
    crc, width = 0, node.spec.row_bytes
    for lo in range(0, node.spec.rows, rows):
        hi = min(lo + rows, node.spec.rows)
        buffer = _buffer((hi - lo) * width)
        node.read(lo, hi, buffer)
        crc = zlib.crc32(buffer.data, crc)
        out.write(slot.offset + lo * width, buffer.data)
    digests[slot.name] = crc
    return slot.spec.nbytes


def _drain(tasks: Iterator[Task], plan: Plan, progress: Progress | None) -> None:
    """Run all tasks, a few more in the queue than there are workers; the first error ends it."""
    total, done = sum(s.spec.nbytes for f in plan.files for s in f.layout.slots), 0
    pool = ThreadPoolExecutor(plan.jobs, thread_name_prefix="weighbridge")
    pending: set[Future[int]] = set()
    try:
        for task in tasks:
            pending.add(pool.submit(task))
            if len(pending) > 2 * plan.jobs:
                done += _collect(pending)
                if progress is not None:
                    progress(done, total, "writing")
        while pending:
            done += _collect(pending)
            if progress is not None:
                progress(done, total, "writing" if done < total else "syncing")
    finally:
        pool.shutdown(cancel_futures=True)


def _collect(pending: set[Future[int]]) -> int:
    finished, _ = wait(pending, return_when=FIRST_COMPLETED)
    pending -= finished
    return sum(f.result() for f in finished)
