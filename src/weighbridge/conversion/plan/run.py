"""Runs a plan: slabs stream through a thread pool straight to their offsets, in any order.

The pool's queue is bounded, so memory stays within the plan. Kernels and file calls release the GIL.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from weighbridge.base.errors import ChangedError, FormatError, RemoteError
from weighbridge.base.limits import MIB
from weighbridge.containers.base import Slot
from weighbridge.conversion.plan.contents import PlanContents, PlannedFile, SlabCost, unit_rows
from weighbridge.conversion.plan.fingerprint import key_of, samples_of
from weighbridge.conversion.plan.read_ahead import Task, announced
from weighbridge.conversion.result import Progress, Result
from weighbridge.io.location import is_remote
from weighbridge.io.sink import AnySink, Origin, OutFile, UploadFile, open_sink
from weighbridge.io.sink.journal import Piece
from weighbridge.io.source import FileSource
from weighbridge.io.workers import Workers
from weighbridge.tensors.nodes.base import Node, RowRange, Stored, borrow
from weighbridge.tensors.scratch import scratch_buffers

# Copies inside the kernel need no buffer, so their pieces may be longer than a slab.
_COPY = 64 << 20

AnyFile = OutFile | UploadFile
Outs = list[tuple[PlannedFile, AnyFile]]


def run(plan: PlanContents, progress: Progress | None = None, into: AnySink | None = None) -> Result:
    """Carries out `plan`. `into`: a sink of the target that already has some of the bytes.

    On an error or an interrupt, all new files are removed. With `resume`, the finished part stays next to the target,
    and the next run with `resume` continues it. Raises RefusedError if that part belongs to another plan, or to sources
    that changed since.
    """
    start = time.monotonic()
    plan.slabs  # noqa: B018  # may refuse, before a file is created
    samples = samples_of(plan.sources)
    if into is None:
        write = plan.write
        into = open_sink(
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
    with into as sink:
        if plan.preparation is not None:
            plan.preparation.prepare(progress)
        outs, digests, resumed = _write_tensors(plan, sink, progress)
        for number, (file, out) in enumerate(outs):
            if file.layout.fixups is not None:  # each tensor of such a file is one piece
                crcs = {s.name: digests[Piece(number, s.offset, s.spec.nbytes)] for s in file.layout.slots}
                for offset, data in file.layout.fixups(crcs):
                    out.write(offset, data)
        _check_digests(outs, sink, plan, progress)
        for name, data in plan.texts.items():
            sink.create(name, len(data)).write(0, data)
        _check_sources(plan, samples, sink)
    notes = (*plan.notes, *(() if plan.preparation is None else plan.preparation.notes))
    if resumed:
        notes += (
            f"{resumed:,} bytes were kept from an interrupted run; losses of casts are counted for the rest only",
        )
    return Result(
        target=str(plan.target),
        files=(*(f.name for f in plan.files), *plan.texts),
        bytes=plan.size,
        seconds=time.monotonic() - start,
        overflow={name: r.overflow for name, r in plan.reports.items() if r.overflow},
        underflow={name: r.underflow for name, r in plan.reports.items() if r.underflow},
        losses=plan.losses,
        moves=plan.moves,
        notes=notes,
    )


def run_part(plan: PlanContents, into: AnySink) -> None:
    """Writes one process's share of `plan`: the bytes that its sink `into` lacks and claims."""
    samples = samples_of(plan.sources)
    with into as sink:
        if plan.preparation is not None:
            plan.preparation.prepare()
        _write_tensors(plan, sink, None)
        _check_sources(plan, samples, sink)


def _write_tensors(plan: PlanContents, sink: AnySink, progress: Progress | None) -> tuple[Outs, dict[Piece, int], int]:
    """Writes everything that doesn't depend on digests.

    Returns the files, the crc32 of pieces for files that need them, and the number of bytes that an earlier run wrote.
    """
    outs: Outs = []
    for file in plan.files:
        name = file.name if plan.folder else ""
        outs.append((file, sink.create(name, file.layout.size, file.spans, late=file.layout.fixups is not None)))
    for file, out in outs:
        # ranges that stay unchanged are copied by the store that has them
        out.adopt(
            Origin(slot.offset, node.source, node.offset, slot.spec.nbytes)
            for slot, node in file.slots
            if isinstance(node, Stored) and not node.swap and node.source.remote
        )
        for offset, data in file.layout.pieces:
            out.write(offset, data)
    tasks = (t for number, (file, out) in enumerate(outs) for t in _tasks(number, file, out, plan.slabs))
    try:
        return outs, *_run_tasks(tasks, plan, sink, progress)
    except ChangedError:
        sink.forget()
        raise


def _check_sources(plan: PlanContents, samples: Sequence[str], sink: AnySink) -> None:
    """Raises FormatError if a source changed since planning: the result would mix old and new bytes."""
    for state, before, now in zip(plan.sources, samples, samples_of(plan.sources), strict=True):
        if before and (before != now or not now.startswith(state)):
            sink.forget()
            name = state.rpartition(": ")[0]
            raise FormatError("the file changed while it was read, so nothing is written", path=name,
                              hint="try again when nothing else writes to it")  # fmt: skip


def _check_digests(outs: Outs, sink: AnySink, plan: PlanContents, progress: Progress | None) -> None:
    """Reads back the files with a required digest. Raises RemoteError, or FormatError for a source on this
    machine, and drops the journal if one differs."""
    checked = [(file, out, *file.digest) for file, out in outs if file.digest]
    total, done = sum(out.size for _, out, _, _ in checked), 0
    with Workers(plan.workers, "digest") as pool:
        futures = [pool.submit(out.digest, algorithm) for _, out, algorithm, _ in checked]
        for (file, out, algorithm, digest), future in zip(checked, futures, strict=True):
            if future.result() != digest:
                sink.forget()
                message = f"{file.name} isn't what {plan.source} lists: its {algorithm} differs"
                raise (RemoteError if is_remote(plan.source) else FormatError)(
                    message, hint="try again; nothing was kept"
                )
            done += out.size
            if progress is not None:
                progress(done, total, "verifying")


def _tasks(number: int, file: PlannedFile, out: AnyFile, slabs: Mapping[int, SlabCost]) -> Iterator[Task]:
    """The work of one file."""
    for unit in file.units:
        slot, node = unit[0]
        rows = slabs[id(node)].rows
        if file.layout.fixups is not None:  # a checksum runs over the bytes in order: one task per tensor
            whole = Piece(number, slot.offset, slot.spec.nbytes)
            yield Task((whole,), partial(_write_digested, out, slot, node, rows), (RowRange(node, 0, node.spec.rows),))
        elif isinstance(node, Stored) and not node.swap and (origin := node.source.location(node.offset)) is not None:
            for at in range(0, slot.spec.nbytes, _COPY):
                size = min(_COPY, slot.spec.nbytes - at)
                yield Task((Piece(number, slot.offset + at, size),), partial(_copy, out, slot, *origin, at, size))
        else:
            for lo in range(0, node.spec.rows, rows):
                hi = min(lo + rows, node.spec.rows)
                pieces = tuple(
                    Piece(number, s.offset + lo * s.spec.row_bytes, (hi - lo) * s.spec.row_bytes) for s, _ in unit
                )
                yield Task(pieces, partial(_write_slab, out, unit, lo, hi), tuple(RowRange(n, lo, hi) for _, n in unit))


def _copy(out: AnyFile, slot: Slot, source: FileSource, start: int, at: int, size: int) -> int:
    """Copies bytes inside the kernel, or through a buffer if it can't."""
    if not out.copy(source, start + at, slot.offset + at, size):
        with scratch_buffers(MIB) as (step,):
            for done in range(at, at + size, len(step)):
                part = step[: min(len(step), at + size - done)]
                source.readinto(start + done, part.data)
                out.write(slot.offset + done, part.data)
    return 0


def _write_slab(out: AnyFile, unit: Sequence[tuple[Slot, Node]], lo: int, hi: int) -> int:
    """Writes rows lo..hi of slots that are filled together."""
    with unit_rows(unit, lo, hi) as buffers:
        for (slot, _), buffer in zip(unit, buffers, strict=True):
            out.write(slot.offset + lo * slot.spec.row_bytes, buffer.data)
    return 0


def _write_digested(out: AnyFile, slot: Slot, node: Node, rows: int) -> int:
    """Writes a whole tensor, `rows` rows at a time, and returns its crc32."""
    crc, width = 0, node.spec.row_bytes
    for lo in range(0, node.spec.rows, rows):
        hi = min(lo + rows, node.spec.rows)
        with borrow(RowRange(node, lo, hi)) as (buffer,):
            crc = zlib.crc32(buffer.data, crc)
            out.write(slot.offset + lo * width, buffer.data)
    return crc


def _run_tasks(
    tasks: Iterator[Task], plan: PlanContents, sink: AnySink, progress: Progress | None
) -> tuple[dict[Piece, int], int]:
    """Runs all unfinished tasks, with a few more queued than there are workers; the first error stops all.

    Returns the crc32 of pieces for files that need them, and the number of bytes that an earlier run wrote.
    """
    checksummed = {number for number, f in enumerate(plan.files) if f.layout.fixups is not None}
    digests: dict[Piece, int] = {}
    resumed, done = 0, 0
    total = sum(s.spec.nbytes for f in plan.files for s in f.layout.slots)
    pending: dict[Future[int], tuple[Piece, ...]] = {}
    # `concurrent.futures.wait` locks all pending futures for each that ends: with 64 workers, half of Python's time.
    finished: SimpleQueue[Future[int]] = SimpleQueue()
    recorded: set[Piece] = set()  # by an interrupted run that didn't record all pieces of their task

    def collect() -> None:
        nonlocal done
        future = finished.get()
        pieces, crc = pending.pop(future), future.result()
        done += sum(piece.size for piece in pieces)
        for piece in pieces:
            if piece in recorded:
                recorded.discard(piece)
                continue
            sink.finished(piece, crc)
            if piece.file in checksummed:
                digests[piece] = crc
        if progress is not None:
            progress(resumed + done, total, "writing" if resumed + done < total else "syncing")

    def unfinished() -> Iterator[Task]:
        nonlocal resumed
        for task in tasks:
            crcs = {piece: crc for piece in task.pieces if (crc := sink.crc_of(piece)) is not None}
            digests.update((piece, crc) for piece, crc in crcs.items() if piece.file in checksummed)
            if len(crcs) == len(task.pieces):
                resumed += sum(piece.size for piece in task.pieces)
            else:
                recorded.update(crcs)
                yield task

    with Workers(plan.workers, "slabs") as pool:
        queued = 2 * plan.workers
        nodes = (node for file in plan.files for node in file.nodes)
        for task in announced(unfinished(), nodes, plan.write.memory, queued + 1):
            future = pool.submit(task.work)
            pending[future] = task.pieces
            future.add_done_callback(finished.put)
            if len(pending) > queued:
                collect()
        while pending:
            collect()
    return digests, resumed
