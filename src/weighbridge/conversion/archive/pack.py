"""Plans and runs `wb pack`: a file, or a folder with its weights packed and its other files copied."""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, field
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final

from weighbridge import __version__
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.closeable import Closing, OpenTogether
from weighbridge.base.dtypes import U8
from weighbridge.base.errors import ChangedError, UnsupportedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.containers.safetensors.layout import header_bytes
from weighbridge.containers.wbpack.archive import CHUNK, INDEX, NO_BASE, RECORD, SIZE, BaseFile, is_packed, metadata
from weighbridge.containers.wbpack.codec import check_can_pack
from weighbridge.conversion.archive.options import PackOptions
from weighbridge.conversion.archive.records import (
    PlannedRecord,
    base_places,
    data_places,
    files_of,
    pack_best,
    places_of,
    planned_records,
)
from weighbridge.conversion.plan.fingerprint import samples_of, state_of
from weighbridge.conversion.result import Progress
from weighbridge.io.digest import digest_of
from weighbridge.io.location import open_source
from weighbridge.io.sink import OutFile, Sink, link_notes
from weighbridge.io.sink.journal import Piece
from weighbridge.io.source import Source
from weighbridge.io.workers import Workers
from weighbridge.models.locate import locate
from weighbridge.models.model import data_elsewhere

_ZEROS: Final = "0" * 64  # in the place of a digest
_SUFFIX: Final = ".safetensors"
_COPY: Final = 4 * MIB


@dataclass(frozen=True)
class PackedFileReport:
    """A file of the result. `packed_bytes`: its size now; `sha256`: of the original; "" for a copied file."""

    name: str
    bytes: int
    packed_bytes: int
    tensors: int
    sha256: str = ""


@dataclass(frozen=True, repr=False)
class PackReport:
    """The outcome of `wb pack`. `ratio`: packed bytes by bytes. `resumed`: bytes of an interrupted run."""

    source: str
    target: str
    files: tuple[PackedFileReport, ...]
    bytes: int
    packed_bytes: int
    ratio: float
    seconds: float
    resumed: int = 0
    notes: tuple[str, ...] = ()
    schema: str = "weighbridge/pack/1"

    def __repr__(self) -> str:
        return f"<PackReport {self.target}: {self.packed_bytes:,} of {self.bytes:,} bytes>"


@dataclass(frozen=True)
class FileToPack:
    """`name`: in the target. Without `records` the file is copied."""

    name: str
    original: str
    source: Source
    records: tuple[PlannedRecord, ...] = ()

    def reserved(self, bases: Sequence[BaseFile]) -> int:
        """Bytes that are reserved for the header: those of the longest packed records."""
        return len(self.header([record.most for record in self.records], _ZEROS, bases))

    def header(self, sizes: Sequence[int], digest: str, bases: Sequence[BaseFile], size: int | None = None) -> bytes:
        """The header of records packed in `sizes` bytes; padded to `size` bytes."""
        named = [(record.name, Spec((n,), U8)) for record, n in zip(self.records, sizes, strict=True)]
        named.append((INDEX, Spec((self.index_size,), U8)))
        return header_bytes(named, metadata(self.original, self.source.size, digest, bases), size=size)

    @property
    def index_size(self) -> int:
        return RECORD.size * len(self.records) + SIZE.size * sum(record.chunks for record in self.records)

    def most(self, header: int) -> int:
        """Bytes that the packed file can have."""
        return header + sum(record.most for record in self.records) + self.index_size


@dataclass(frozen=True)
class DescribedFile:
    """A file of a plan. `records`: its runs of bytes; `deltas`: those that have a base."""

    name: str
    bytes: int
    packed: bool
    records: int
    deltas: int


@dataclass(frozen=True)
class DescribedPack:
    """The plan of `wb pack` as plain data. `bytes`: of the source's files."""

    source: str
    target: str
    bytes: int
    files: tuple[DescribedFile, ...]
    notes: tuple[str, ...]
    schema: str = "weighbridge/pack-plan/1"


@dataclass(frozen=True, repr=False)
class PackPlan(Closing):
    """The plan of `wb pack`. Close it, or run it in a `with`."""

    source: str
    target: Path
    folder: bool
    files: tuple[FileToPack, ...]
    base_paths: tuple[Path, ...]
    bases: tuple[Source, ...]
    states: tuple[str, ...]
    write: PackOptions
    opened: OpenTogether = field(repr=False)

    def close(self) -> None:
        self.opened.close()

    def describe(self) -> dict[str, Any]:
        """The plan as plain data."""
        files = tuple(
            DescribedFile(file.name, file.source.size, bool(file.records), len(file.records),
                          sum(r.base is not None for r in file.records))
            for file in self.files
        )  # fmt: skip
        size = sum(file.bytes for file in files)
        return asdict(DescribedPack(self.source, str(self.target), size, files, tuple(link_notes(self.target))))

    def run(self, progress: Progress | None = None) -> PackReport:
        """Packs. After an error nothing remains, except with `resume`. Raises ChangedError if a source changes."""
        return _Run(self, progress).run()


def plan_pack(src: Path, target: Path, options: PackOptions) -> PackPlan:
    """Plans to pack a file, or all weights of a folder. Raises UsageError if nothing is left to pack or a file is
    packed already, UnsupportedError for a distributed checkpoint."""
    check_can_pack()
    with ExitStack() as stack:
        base_paths = locate(resolve_path(options.base)).weights if options.base is not None else ()
        bases = tuple(stack.enter_context(open_source(path)) for path in base_paths)
        base = base_places(bases) if bases else {}
        folder = src.is_dir()
        place = locate(src) if folder else None
        if place is not None and place.parts:
            raise UnsupportedError(
                f"{src} is a distributed checkpoint, which isn't read from packed files",
                hint=f"wb convert {shlex.quote(str(src))} model.safetensors, and pack that",
            )
        if others := data_elsewhere(src):
            raise UsageError(f"{src} has its data in other files: {', '.join(path.name for path in others[:4])}",
                             hint=f"pack its folder: wb pack {shlex.quote(str(src.parent))} DST")  # fmt: skip
        weights = frozenset(place.weights) if place is not None else frozenset({src})
        data = data_places(place) if place is not None else {}
        paths = files_of(src)
        files = []
        for path in paths:
            source = stack.enter_context(open_source(path))
            name = path.relative_to(src).as_posix() if folder else path.name
            if path not in weights and path not in data:
                files.append(FileToPack(name, path.name, source))
                continue
            if is_packed(source):
                raise UsageError(f"{source.name} is packed already", hint=f"wb unpack {source.name} DST")
            places = data[path] if path in data else places_of(source)
            records = planned_records(source.size, places, base, [b.size for b in bases])
            refers = len(weights) > 1 or path in data  # an index, the other shards, or a header by its name
            packed_name = name if refers or name.endswith(_SUFFIX) else name + _SUFFIX
            files.append(FileToPack(packed_name, path.name, source, records))
        if not any(file.records for file in files):
            raise UsageError(f"{src} has nothing to pack", hint="its weights are empty files")
        if bases and not any(record.base is not None for file in files for record in file.records):
            raise UsageError(f"{options.base} has no tensor of {src} with the same type and shape",
                             hint="pack without --base")  # fmt: skip
        states = tuple(state_of(path) for path in (*paths, *base_paths))
        return PackPlan(str(src), target, folder, tuple(files), tuple(base_paths), bases, states, options,
                        OpenTogether(stack))  # fmt: skip


class _Run:
    """The state of a run: the sink, the digests, the bytes so far."""

    def __init__(self, plan: PackPlan, progress: Progress | None) -> None:
        self.plan, self.progress = plan, progress
        self.total = sum(file.source.size for file in plan.files)
        self.done = self.resumed = 0

    def run(self) -> PackReport:
        plan, start = self.plan, time.monotonic()
        samples = samples_of(plan.states)
        write = plan.write
        records = blake2b(repr([(f.name, f.records) for f in plan.files]).encode(), digest_size=16).hexdigest()
        states = {name: state for name, _, state in (line.rpartition(": ") for line in plan.states)}
        key = {"weighbridge": __version__, **states, "records": records}  # everything that determines the bytes
        into = Sink(
            plan.target, folder=plan.folder, size=0, overwrite=write.overwrite, replace_folder=write.replace_folder,
            parents=write.parents, names=[file.name for file in plan.files], key=key if write.resume else None,
            reserved=False,
        )  # fmt: skip
        with into as sink, Workers(write.workers, "pack") as pool:
            digests = pool.map(lambda source: digest_of(source, "sha256"), plan.bases)
            bases = [
                BaseFile(path.name, source.size, digest)
                for path, source, digest in zip(plan.base_paths, plan.bases, digests, strict=True)
            ]
            reports = tuple(
                self._pack(sink, pool, number, file, bases) if file.records else self._copy(sink, file)
                for number, file in enumerate(plan.files)
            )
            if samples_of(plan.states) != samples:
                sink.forget()
                raise ChangedError(f"{plan.source} changed while it was packed", hint="pack it when it is complete")
        size, packed = (sum(getattr(r, key) for r in reports) for key in ("bytes", "packed_bytes"))
        return PackReport(
            plan.source, str(plan.target), reports, size, packed, packed / size, time.monotonic() - start, self.resumed,
            tuple(link_notes(plan.target)),
        )  # fmt: skip

    def _advance(self, count: int, name: str) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total, name)

    def _copy(self, sink: Sink, file: FileToPack) -> PackedFileReport:
        out = sink.create(file.name, file.source.size)
        for at in range(0, file.source.size, _COPY):
            part = file.source.read(at, min(_COPY, file.source.size - at))
            out.write(at, part)
            self._advance(len(part), file.name)
        return PackedFileReport(file.name, file.source.size, file.source.size, 0)

    def _pack(
        self, sink: Sink, pool: Workers, number: int, file: FileToPack, bases: Sequence[BaseFile]
    ) -> PackedFileReport:
        header = file.reserved(bases)
        out = sink.create(file.name if self.plan.folder else "", file.most(header))
        sizes, digest = self._pack_chunks(sink, pool, number, file, out, header)
        left, lengths, index = iter(sizes), [], bytearray()
        for record in file.records:
            lengths.append(sum(islice(left, record.chunks)))
            base = NO_BASE if record.base is None else record.base
            index += RECORD.pack(record.size, record.base_offset, base, 0)
        index += b"".join(map(SIZE.pack, sizes))
        end = header + sum(lengths)
        out.write(0, file.header(lengths, digest, bases, header))
        out.write(end, bytes(index))
        out.shrink(end + len(index))
        return PackedFileReport(file.name, file.source.size, end + len(index), len(file.records), digest)

    def _pack_chunks(
        self, sink: Sink, pool: Workers, number: int, file: FileToPack, out: OutFile, at: int
    ) -> tuple[list[int], str]:
        """Writes the chunks one after the other from byte `at` on; returns their sizes, and the original's digest."""
        done = {piece.offset: piece.size for piece in sink.done if piece.file == number}
        digest, sizes = sha256(), []
        jobs = ((record, start) for record in file.records for start in range(record.start, record.end, CHUNK))
        while at in done and (job := next(jobs, None)) is not None:
            data = self._read(file, *job)
            digest.update(data)
            sizes.append(done[at])
            at, self.resumed = at + done[at], self.resumed + len(data)
            self._advance(len(data), file.name)
        ahead = max(min(2 * self.plan.write.workers, self.plan.write.memory // (8 * CHUNK)), 1)
        waiting: deque[Future[tuple[memoryview, memoryview]]] = deque()
        while True:
            waiting.extend(pool.submit(self._job, file, *job) for job in islice(jobs, ahead - len(waiting)))
            if not waiting:
                return sizes, digest.hexdigest()
            data, packed = waiting.popleft().result()
            digest.update(data)
            out.write(at, packed)
            sink.finished(Piece(number, at, len(packed)), 0)
            sizes.append(len(packed))
            at += len(packed)
            self._advance(len(data), file.name)

    def _read(self, file: FileToPack, record: PlannedRecord, start: int) -> memoryview:
        data = memoryview(bytearray(min(CHUNK, record.end - start)))
        file.source.readinto(start, data)
        return data

    def _job(self, file: FileToPack, record: PlannedRecord, start: int) -> tuple[memoryview, memoryview]:
        """A chunk and its packed form."""
        data, base = self._read(file, record, start), None
        if record.base is not None:
            base = memoryview(bytearray(len(data)))
            self.plan.bases[record.base].readinto(record.base_offset + start - record.start, base)
        return data, pack_best(record.dtype, data, base)
