"""A target that several processes write, on one machine or many: each writes ranges of its files, and one of them
publishes it. A write is identified by everything that determines its bytes, so processes with the same plan find it.

    begin       allocate the files, or join a write that another process began
    missing     the ranges that aren't written yet
    sink        the sink of a range, or with None the one that publishes the complete target
    finish      remove the working files next to the target, after the publication is recorded
    abort       remove everything

A range consists of whole parts; a second process that writes it writes the same bytes. A remote target is one upload
per object. A target on a shared file system has files of their full size next to it, written by offset.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from weighbridge.base.errors import RemoteError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.io.location import RemotePath
from weighbridge.io.sink.checks import resolved
from weighbridge.io.sink.files import OutFile
from weighbridge.io.sink.journal import FileRange, Piece
from weighbridge.io.sink.open import AnySink
from weighbridge.io.sink.publish import publish_folder, sync_folder
from weighbridge.io.sink.records import FolderRecords, Records
from weighbridge.io.sink.target import Sink
from weighbridge.io.sink.upload import ObjectState, ObjectStore, UploadSink, mark_of
from weighbridge.io.source import FileSource

#: Borders of ranges in a file on a disk: no two processes write to one page, or one stripe of a parallel file system.
ALIGNMENT: Final = 16 * MIB
#: The range left to write in a published target.
_NOTHING: Final = FileRange("", 0, 0)


@dataclass(frozen=True)
class ParallelWrite:
    """A write by several processes. `sizes`: the bytes of each file written in ranges, by its name in the target ("":
    the target itself); `names`: all files of a folder; `key`: everything that determines the bytes. `agreed`: records
    shared by the processes, below the name `place`. `memory`: bytes that open parts may take."""

    sizes: Mapping[str, int]
    key: Mapping[str, str]
    agreed: Records
    place: str
    folder: bool = False
    names: Collection[str] = ()
    overwrite: bool = False
    memory: int = 64 * MIB

    @property
    def mark(self) -> str:
        return mark_of(self.key)


class ParallelTarget(Protocol):
    """See the module's docstring. Errors: OSError, RemoteError, RefusedError where something else has the name."""

    def ranges(self, least: int) -> list[FileRange]:
        """All files as ranges of about `least` bytes."""

    def begin(self) -> None: ...

    def missing(self, ranges: Iterable[FileRange]) -> list[FileRange]: ...

    def sink(self, part: FileRange | None) -> AnySink: ...

    def finish(self) -> None: ...

    def abort(self) -> None: ...


def parallel_target(target: Path, write: ParallelWrite) -> ParallelTarget:
    """The target of several processes. UsageError for a place that can't be one."""
    if not isinstance(target, RemotePath):
        return ParallelFiles(target, write)
    tree, name = target.place
    if not hasattr(tree, "parallel"):
        raise UsageError(
            f"{target} takes no parts from several machines", hint="name a folder, or a prefix in a bucket"
        )
    made: ParallelTarget = tree.parallel(name, write)
    return made


def cut(file: str, size: int, least: int, unit: int) -> Iterator[FileRange]:
    """A file as ranges of whole units."""
    step = max(-(-least // unit), 1) * unit
    for start in range(0, size, step):
        yield FileRange(file, start, min(start + step, size))


class ParallelUploads:
    """Objects of a store. A record that only one process can add identifies the uploads; a further record follows if
    the store dropped one of them. The publishing process writes objects of a single part."""

    def __init__(self, store: ObjectStore, target: str, write: ParallelWrite) -> None:
        self.store, self.target, self.write = store, target, write
        self._large = {file: size for file, size in write.sizes.items() if size > store.part_size(size)}

    def _object(self, file: str) -> str:
        return f"{self.target}/{file}".strip("/") if self.write.folder else self.target

    def ranges(self, least: int) -> list[FileRange]:
        return [r for f, size in self._large.items() for r in cut(f, size, least, self.store.part_size(size))]

    def begin(self) -> None:
        for generation in count():
            tokens = self._agreed(generation) or self._propose(generation)
            if all(self._is_published(f) or self.store.is_open(self._object(f), tokens[f]) for f in tokens):
                return

    def _record(self, generation: int) -> str:
        return f"{self.write.place}/{self.write.mark}/{generation}.json"

    def _agreed(self, generation: int) -> dict[str, str] | None:
        """The tokens of the uploads, by file."""
        data = self.write.agreed.read(self._record(generation))
        return None if data is None else json.loads(data)

    def _propose(self, generation: int) -> dict[str, str]:
        """Begin an upload of each file that isn't published, or take up one that was left, unless another process was
        first."""
        write, mark = self.write, self.write.mark
        mine = {
            file: self.store.upload(self._object(file), mark, resume=True, replace=write.overwrite)
            for file in self._large
            if not self._is_published(file)
        }
        tokens = {file: upload.token for file, upload in mine.items()}
        write.agreed.add(self._record(generation), json.dumps(tokens).encode())
        agreed = self._agreed(generation) or {}
        for file, upload in mine.items():
            if agreed.get(file) != upload.token:
                upload.abort()
        return agreed

    def _tokens(self) -> dict[str, str]:
        """What was agreed on last, by file."""
        found: dict[str, str] = {}
        for generation in count():
            if (agreed := self._agreed(generation)) is None:
                return found
            found |= agreed
        raise AssertionError

    def _is_published(self, file: str) -> bool:
        return self.store.state(self._object(file)) == ObjectState(self._large[file], self.write.mark)

    def missing(self, ranges: Iterable[FileRange]) -> list[FileRange]:
        wanted = list(ranges)
        done = {file: self._done(file) for file in {r.file for r in wanted}}
        return [r for r in wanted if not self._parts(r) <= done[r.file]]

    def _done(self, file: str) -> set[int]:
        """The parts of a file that the store has."""
        if self._is_published(file):
            return set(range(-(-self._large[file] // self.store.part_size(self._large[file]))))
        if (token := self._tokens().get(file)) is None:
            return set()
        return self.store.upload(self._object(file), self.write.mark, resume=True, replace=False, token=token).done

    def _parts(self, part: FileRange) -> set[int]:
        size = self.store.part_size(self._large[part.file])
        return set(range(part.start // size, -(-part.end // size)))

    def sink(self, part: FileRange | None) -> UploadSink:
        write, tokens = self.write, self._tokens()
        if part is not None and part.file not in tokens and not self._is_published(part.file):
            name = f"{self.store.title}/{self._object(part.file)}"
            raise RemoteError(f"{name}: another driver gave up the upload", hint="run the same command again")
        return UploadSink(
            self.store, self.target, folder=write.folder, overwrite=write.overwrite, names=write.names, key=write.key,
            memory=write.memory, tokens={self._object(f): t for f, t in tokens.items()}, part=part,
        )  # fmt: skip

    def finish(self) -> None:
        """Uploads that were left by processes that died before they agreed, and what was agreed on."""
        for file in self._large:
            self.store.abandon(self._object(file), self.write.mark)
        for name in self.write.agreed.names(f"{self.write.place}/{self.write.mark}"):
            self.write.agreed.remove(f"{self.write.place}/{self.write.mark}/{name}")

    def abort(self) -> None:
        self.finish()


class ParallelFiles:
    """Files on a shared file system. `.NAME.MARK.parts` next to the target contains `data`, the files at their full
    size, and an empty record of each range whose bytes are on the disk. It is created atomically, so no process creates
    `data` again after another one has published it; publishing moves `data` out by one rename."""

    def __init__(self, target: Path, write: ParallelWrite) -> None:
        self.target, self.write = target, write
        self._real = resolved(target)
        self.place = self._real.with_name(f".{self._real.name}.{write.mark[:12]}.parts")
        self._data = self.place / "data"
        self._records = FolderRecords(self.place)
        self._numbers = {file: number for number, file in enumerate(write.sizes)}

    def ranges(self, least: int) -> list[FileRange]:
        return [r for file, size in self.write.sizes.items() for r in cut(file, size, least, ALIGNMENT)]

    def begin(self) -> None:
        if self.place.exists() and not self._is_whole(self._data) and not self._is_published():
            shutil.rmtree(self.place, ignore_errors=True)  # records of bytes that were removed by hand
        if not self.place.exists():
            stage = self.place.with_name(f"{self.place.name}.{uuid.uuid4().hex}")
            try:
                for file, size in self.write.sizes.items():
                    path = stage / "data" / file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    OutFile(path, size).close()
                    sync_folder(path.parent)
                with suppress(FileExistsError):
                    publish_folder(stage, self.place, overwrite=False)
            finally:
                shutil.rmtree(stage, ignore_errors=True)

    def _is_whole(self, root: Path) -> bool:
        """Whether all files are below `root`, at their full size."""
        paths = ((root / file, size) for file, size in self.write.sizes.items())
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def _is_published(self) -> bool:
        made = self.place.exists() and not self.missing(self.ranges(1 << 62))
        return made and not self._is_whole(self._data) and self._is_whole(self._real)

    def missing(self, ranges: Iterable[FileRange]) -> list[FileRange]:
        done = self._done()
        return [r for r in ranges if not _covered(r, done.get(self._numbers[r.file], []))]

    def _done(self) -> dict[int, list[tuple[int, int]]]:
        """The runs of bytes that are on the disk, by the file's number."""
        found: dict[int, list[tuple[int, int]]] = {}
        for name in self._records.names("done"):
            number, start, end = map(int, name.split("-"))
            found.setdefault(number, []).append((start, end))
        return {number: sorted(runs) for number, runs in found.items()}

    def note(self, part: FileRange) -> None:
        """Record that the bytes of a range are on the disk."""
        self._records.add(f"done/{self._numbers[part.file]}-{part.start}-{part.end}", b"")

    def sink(self, part: FileRange | None) -> Sink:
        return _StageSink(self, self._real, _NOTHING) if self._is_published() else _StageSink(self, self._data, part)

    def finish(self) -> None:
        """Removes the records, and unfinished writes of other plans for this target."""
        others = re.compile(rf"\.{re.escape(self._real.name)}\.[0-9a-f]{{12}}\.parts")
        for path in self.place.parent.iterdir():
            if others.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def abort(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)


def _covered(part: FileRange, runs: Sequence[tuple[int, int]]) -> bool:
    """Whether runs, in their order, contain every byte of a range."""
    at = part.start
    for start, end in runs:
        if start > at:
            break
        at = max(at, end)
    return at >= part.end


class _RangeFile(OutFile):
    """A file that accepts writes to one range and drops other bytes."""

    def __init__(self, path: Path, size: int, only: FileRange) -> None:
        super().__init__(path, size, again=True)
        self.only = only

    def write(self, offset: int, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        start, size = self.only.clip(offset, len(view))
        if size:
            super().write(start, view[start - offset :][:size])

    def copy(self, source: FileSource, start: int, offset: int, size: int) -> bool:
        at, length = self.only.clip(offset, size)
        return not length or super().copy(source, start + at - offset, at, length)


class _StageSink(Sink):
    """Writes one range of a stage's files, or with None publishes them. It never creates files anew that another
    process has published: it raises FileNotFoundError."""

    def __init__(self, target: ParallelFiles, stage: Path, part: FileRange | None) -> None:
        write = target.write
        super().__init__(target.target, folder=write.folder, overwrite=write.overwrite, names=write.names, parents=True)
        self._parallel, self._stage, self._part = target, stage, part
        self._wanted = target.missing(target.ranges(1)) if part is None else [part]
        self._names: list[str] = []

    def __enter__(self) -> _StageSink:
        return self

    def create(
        self, name: str, size: int, spans: Iterable[tuple[int, int]] | None = None, *, late: bool = False
    ) -> OutFile:
        path = self._inside(name) if self.folder else self._stage
        if self._part is None:
            out = OutFile(path, size, again=self._is_there(name, path))
        else:
            out = _RangeFile(path, size, self._part if self._part.file == name else _NOTHING)
        self._names.append(name)
        self._open.append(out)
        return out

    def _is_there(self, name: str, path: Path) -> bool:
        """Whether the stage has a file, or had it; makes the folders for one that it hasn't."""
        for folder in reversed(path.relative_to(self._stage).parents[:-1]):
            (self._stage / folder).mkdir(exist_ok=True)
        return name in self._parallel.write.sizes or path.exists()

    def crc_of(self, piece: Piece) -> int | None:
        """0 for a piece that isn't this process's to make, or is there already."""
        name = self._names[piece.file]
        mine = any(r.file == name and r.clip(piece.offset, piece.size)[1] for r in self._wanted)
        return None if mine else 0

    def _discard(self) -> None:
        """Nothing: other processes write to the stage."""

    def _publish(self) -> None:
        """Records the range as written, or publishes the stage. An older folder is moved aside first, so that the
        stage never contains it."""
        if self._part is _NOTHING:
            return
        if self._part is not None:
            for out in self._open:
                out.sync_data()
            self._parallel.note(self._part)
            return
        if not (self.folder and self.overwrite and self._exists()):
            super()._publish()
            return
        self._check_foreign()
        for out in self._open:
            out.sync()
        aside = self._parallel.place / "old"
        os.rename(self._real, aside)
        try:
            super()._publish()
        except BaseException:
            os.rename(aside, self._real)
            raise
