"""Runs a plan: slabs stream through a thread pool straight to their known offsets, in any order. The pool's
queue is bounded, so memory stays within the plan; kernels and file calls drop the GIL, so threads are enough.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from weighbridge.base.errors import FormatError, RemoteError
from weighbridge.base.limits import MIB
from weighbridge.containers.base import Slot
from weighbridge.conversion.plan.fingerprint import key_of, samples_of
from weighbridge.conversion.plan.read_ahead import announced
from weighbridge.conversion.result import Progress, Result
from weighbridge.io.sink import AnySink, Origin, OutFile, UploadFile, open_sink
from weighbridge.io.sink.journal import Piece
from weighbridge.io.source import FileSource
from weighbridge.tensors.nodes.base import Node, RowRange, Stored, borrow
from weighbridge.tensors.nodes.packed import PackedMember, make
from weighbridge.tensors.scratch import scratch_buffers

if TYPE_CHECKING:
    from weighbridge.conversion.plan.memory import SlabCost
    from weighbridge.conversion.plan.model import Plan, PlannedFile

    AnyFile = OutFile | UploadFile

# Copies inside the kernel need no buffer, so their pieces may be longer than a slab.
_COPY = 64 << 20


class Task(NamedTuple):
    """An independent piece of work: writes its pieces, and returns their crc32 if the file needs it."""

    pieces: tuple[Piece, ...]
    work: Callable[[], int]
    reads: tuple[RowRange, ...] = ()


def run(plan: Plan, progress: Progress | None = None, into: AnySink | None = None) -> Result:
    """Carry out `plan`. On any error, or an interrupt, nothing is left behind; with `resume` what is done stays beside
    the target, and the next run with `resume` goes on from there. RefusedError where what lies there is of another
    plan, or of sources that have changed since. `into`: a sink of the target that has some of the bytes already."""
    began = time.monotonic()
    plan.slabs  # noqa: B018  # may refuse, before a file is created
    samples = samples_of(plan.sources)
    with _opened(plan) if into is None else into as sink:
        outs, digests, before = _filled(plan, sink, progress)
        for number, (file, out) in enumerate(outs):
            if file.layout.fixups is not None:
                for offset, data in file.layout.fixups(_named(digests, number, file)):
                    out.write(offset, data)
        _check_digests(outs, sink, plan, progress)
        for name, data in plan.texts.items():
            sink.create(name, len(data)).write(0, data)
        _check_sources(plan, samples, sink)
    return _result(plan, time.monotonic() - began, before)


def run_part(plan: Plan, into: AnySink) -> None:
    """Make the bytes of `plan` that its sink `into` hasn't and wants: one process's share of them."""
    samples = samples_of(plan.sources)
    with into as sink:
        _filled(plan, sink, None)
        _check_sources(plan, samples, sink)


def _opened(plan: Plan) -> AnySink:
    """The sink of the plan's target."""
    write = plan.write
    return open_sink(
        plan.target,
        folder=plan.folder,
        size=plan.size,
        overwrite=write.overwrite,
        replace_folder=write.replace_folder,
        parents=write.parents,
        names=plan.names,
        key=key_of(plan) if write.resume else None,
        memory=write.memory // 4,
    )


Outs = list[tuple["PlannedFile", "AnyFile"]]


def _filled(plan: Plan, sink: AnySink, progress: Progress | None) -> tuple[Outs, dict[Piece, int], int]:
    """Write what doesn't depend on digests. Returns the files, the digests of pieces for those that need them, and the
    number of bytes done before."""
    outs: Outs = [(f, _created(sink, f, f.name if plan.folder else "")) for f in plan.files]
    for file, out in outs:
        out.adopt(_moved(file))
        for offset, data in file.layout.pieces:
            out.write(offset, data)
    tasks = (t for number, (file, out) in enumerate(outs) for t in _tasks(number, file, out, plan.slabs))
    return outs, *_drain(tasks, plan, sink, progress)


def _created(sink: AnySink, file: PlannedFile, name: str) -> AnyFile:
    return sink.create(name, file.layout.size, file.spans, late=file.layout.fixups is not None)


def _moved(file: PlannedFile) -> Iterator[Origin]:
    """The bytes that are only moved from a file elsewhere."""
    for slot, node in file.slots:
        if isinstance(node, Stored) and not node.swap and node.source.remote:
            yield Origin(slot.offset, node.source, node.offset, slot.spec.nbytes)


def _check_sources(plan: Plan, samples: Sequence[str], sink: AnySink) -> None:
    """FormatError where a source is no longer what was planned: its old and new bytes would be mixed."""
    for state, before, now in zip(plan.sources, samples, samples_of(plan.sources), strict=True):
        if before and (before != now or not now.startswith(state)):
            sink.forget()
            name = state.rpartition(": ")[0]
            raise FormatError("the file changed while it was read, so nothing is written", path=name,
                              hint="try again when nothing else writes to it")  # fmt: skip


def _check_digests(
    outs: Sequence[tuple[PlannedFile, AnyFile]], sink: AnySink, plan: Plan, progress: Progress | None
) -> None:
    """Read back the files that must have a digest. RemoteError where one differs, and the journal is dropped."""
    listed = [(file, out) for file, out in outs if file.digest is not None]
    total, done = sum(out.size for _, out in listed), 0

    with ThreadPoolExecutor(plan.write.workers, thread_name_prefix="weighbridge-digest") as pool:
        futures = [pool.submit(out.digest, file.digest[0]) for file, out in listed if file.digest]
        for (file, out), future in zip(listed, futures, strict=True):
            if file.digest and future.result() != file.digest[1]:
                sink.forget()
                raise RemoteError(f"{file.name} isn't what {plan.source} lists: its {file.digest[0]} is another one",
                                  hint="try again; nothing was kept")  # fmt: skip
            done += out.size
            if progress is not None:
                progress(done, total, "verifying")


def _nodes(plan: Plan) -> Iterator[Node]:
    return (node for file in plan.files for node in file.nodes)


def _named(digests: Mapping[Piece, int], number: int, file: PlannedFile) -> dict[str, int]:
    """The digests of a file's tensors, each of which is one piece."""
    return {s.name: digests[Piece(number, s.offset, s.spec.nbytes)] for s in file.layout.slots}


def _result(plan: Plan, seconds: float, before: int) -> Result:
    over = {name: r.overflow for name, r in plan.reports.items() if r.overflow}
    under = {name: r.underflow for name, r in plan.reports.items() if r.underflow}
    notes = plan.notes
    if before:
        notes += (f"{before:,} bytes were kept from an interrupted run; losses of casts are counted for the rest only",)
    names = (*(f.name for f in plan.files), *plan.texts)
    return Result(str(plan.target), names, plan.size, seconds, over, under, plan.losses, plan.moves, notes)


def _tasks(number: int, file: PlannedFile, out: AnyFile, slabs: Mapping[int, SlabCost]) -> Iterator[Task]:
    """The work of one file."""
    for unit in file.units:
        slot, node = unit[0]
        rows = slabs[id(node)].rows
        if file.layout.fixups is not None:  # a checksum runs over the bytes in their order: one task a tensor
            whole = Piece(number, slot.offset, slot.spec.nbytes)
            yield Task((whole,), partial(_digested, out, slot, node, rows), (RowRange(node, 0, node.spec.rows),))
        elif (origin := _origin(node)) is not None:
            for at in range(0, slot.spec.nbytes, _COPY):
                size = min(_COPY, slot.spec.nbytes - at)
                yield Task((Piece(number, slot.offset + at, size),), partial(_copy, out, slot, *origin, at, size))
        else:
            for lo in range(0, node.spec.rows, rows):
                hi = min(lo + rows, node.spec.rows)
                places = [(s.offset + lo * s.spec.row_bytes, (hi - lo) * s.spec.row_bytes) for s, _ in unit]
                pieces = tuple(Piece(number, *place) for place in places)
                yield Task(pieces, partial(_slab, out, unit, lo, hi), tuple(RowRange(n, lo, hi) for _, n in unit))


def _origin(node: Node) -> tuple[FileSource, int] | None:
    """The file and offset of a tensor whose bytes are only copied, if the kernel can do the whole copy."""
    if isinstance(node, Stored) and not node.swap:
        return node.source.location(node.offset)
    return None


def _copy(out: AnyFile, slot: Slot, source: FileSource, start: int, at: int, size: int) -> int:
    if not out.copy(source, start + at, slot.offset + at, size):
        with scratch_buffers(MIB) as (step,):
            for done in range(at, at + size, len(step)):
                part = step[: min(len(step), at + size - done)]
                source.readinto(start + done, part.data)
                out.write(slot.offset + done, part.data)
    return 0


def _slab(out: AnyFile, unit: Sequence[tuple[Slot, Node]], lo: int, hi: int) -> int:
    """Rows lo..hi of slots that are filled together."""
    with scratch_buffers(*((hi - lo) * slot.spec.row_bytes for slot, _ in unit)) as buffers:
        if len(unit) == 1:
            unit[0][1].read(lo, hi, buffers[0])
        else:
            make([node for _, node in unit if isinstance(node, PackedMember)], lo, hi, buffers)
        for (slot, _), buffer in zip(unit, buffers, strict=True):
            out.write(slot.offset + lo * slot.spec.row_bytes, buffer.data)
    return 0


def _digested(out: AnyFile, slot: Slot, node: Node, rows: int) -> int:
    crc, width = 0, node.spec.row_bytes
    for lo in range(0, node.spec.rows, rows):
        hi = min(lo + rows, node.spec.rows)
        with borrow(RowRange(node, lo, hi)) as (buffer,):
            crc = zlib.crc32(buffer.data, crc)
            out.write(slot.offset + lo * width, buffer.data)
    return crc


def _drain(tasks: Iterator[Task], plan: Plan, sink: AnySink, progress: Progress | None) -> tuple[dict[Piece, int], int]:
    """Runs all unfinished tasks, with a few more queued than there are workers; the first error ends it. Returns the
    digests of pieces for files that need them, and the number of bytes done before."""
    wanted = {number for number, f in enumerate(plan.files) if f.layout.fixups is not None}
    digests: dict[Piece, int] = {}
    before, done = 0, 0
    total = sum(s.spec.nbytes for f in plan.files for s in f.layout.slots)
    pool = ThreadPoolExecutor(plan.write.workers, thread_name_prefix="weighbridge")
    pending: dict[Future[int], tuple[Piece, ...]] = {}
    known: set[Piece] = set()

    def collect() -> None:
        nonlocal done
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            pieces, crc = pending.pop(future), future.result()
            done += sum(piece.size for piece in pieces)
            for piece in pieces:
                if piece in known:  # recorded by an interrupted run that didn't record all tasks of a group
                    known.discard(piece)
                    continue
                sink.finished(piece, crc)
                if piece.file in wanted:
                    digests[piece] = crc
        if progress is not None:
            progress(before + done, total, "writing" if before + done < total else "syncing")

    def to_do() -> Iterator[Task]:
        nonlocal before
        for task in tasks:
            there = {piece: crc for piece in task.pieces if (crc := sink.crc_of(piece)) is not None}
            digests.update((piece, crc) for piece, crc in there.items() if piece.file in wanted)
            if len(there) == len(task.pieces):
                before += sum(piece.size for piece in task.pieces)
            else:
                known.update(there)
                yield task

    try:
        queued = 2 * plan.write.workers
        for task in announced(to_do(), _nodes(plan), plan.write.memory, queued + 1):
            pending[pool.submit(task.work)] = task.pieces
            if len(pending) > queued:
                collect()
        while pending:
            collect()
    finally:
        pool.shutdown(cancel_futures=True)
    return digests, before
