"""A target that is uploaded while it is written: objects made of numbered parts, visible when they are complete.

Part i of an object is its bytes [i * P, (i + 1) * P); P depends only on the size. Written bytes are collected in the
memory of their part, and a complete part is sent. Beyond a few open parts, parts wait in a temporary file, as do all
parts of a file whose first bytes depend on its last ones (the checksums of a zip archive).

Several processes that share a token may send parts of one upload (`io/sink/parallel.py`): a sink with `part` sends the
parts in that range and doesn't complete or abort the upload.

Nothing is visible until the end. Then the objects of a folder appear one after another, small files last, each only if
its name is still free. After an error uploads are aborted; with `key` (`--resume`) they stay open, and the next run
with the same key asks the store for the finished parts.
"""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from hashlib import blake2b
from types import MappingProxyType
from typing import IO, Final, NamedTuple, Protocol

from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.io.sink.checks import listed
from weighbridge.io.sink.journal import FileRange, Piece
from weighbridge.io.sink.staging import Staging, refused_if_taken
from weighbridge.io.source import Source

#: Requests under way at one time; each holds a part in memory.
UPLOADS: Final = 8
_LEAST_OPEN: Final = 2  # parts in memory, however small the budget

Span = tuple[int, int]


class Origin(NamedTuple):
    """Bytes [offset, offset + size) of a new file, copied from `source` at `start`."""

    offset: int
    source: Source
    start: int
    size: int


class ObjectState(NamedTuple):
    """An existing object: its size in bytes, and the mark of the run that wrote it ("" for other programs)."""

    size: int
    mark: str


class PartUpload(Protocol):
    """The upload of one object. `done`: the numbers of the finished parts, from 0."""

    done: set[int]

    @property
    def token(self) -> str:
        """The store's name of the upload, which lets another process join it."""

    def put(self, number: int, data: bytes | bytearray) -> None:
        """Sends a part; a later part with the same number replaces it."""

    def copy(self, number: int, source: Source, start: int, size: int) -> bool:
        """Copies a part server-side from an object of the same store; returns False if the store can't."""

    def complete(self, parts: int, *, replace: bool) -> None:
        """Completes the upload. Raises FileExistsError if the name has an object of another run."""

    def abort(self) -> None:
        """Discards the upload and its parts. May be called twice."""


class ObjectStore(Protocol):
    """A place for objects. Errors: RemoteError, FileExistsError."""

    title: str

    def part_size(self, size: int) -> int:
        """Returns the bytes of each part except the last, for an object of `size` bytes."""

    def state(self, name: str) -> ObjectState | None:
        """Returns the state of an object; None if it is missing."""

    def below(self, folder: str) -> Collection[str]:
        """Returns the names of all objects below a folder, relative to it."""

    def put(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        """Writes a small object in one request. Raises FileExistsError if the name has an object of another run."""

    def upload(self, name: str, mark: str, *, resume: bool, replace: bool, token: str | None = None) -> PartUpload:
        """Begins an upload, or with `resume` continues the one with the same mark, or joins the one of a `token`.
        Raises RefusedError if the unfinished upload belongs to another run, unless `replace`; RemoteError if the
        token's upload has ended."""

    def is_open(self, name: str, token: str) -> bool:
        """Whether the upload of a token is neither complete nor aborted."""

    def abandon(self, name: str, mark: str) -> None:
        """Aborts every open upload with a mark."""

    def remove(self, name: str) -> None:
        """Deletes an object."""

    def changed(self) -> None:
        """Invalidates earlier listings."""


class UploadFile:
    """One object being written by position, from any thread. `spans`: the (offset, length) ranges that will be
    written, each once; the bytes between are zero. `late`: some are written again at the end."""

    def __init__(
        self, sink: UploadSink, name: str, size: int, spans: Iterable[Span], late: bool, only: FileRange | None
    ) -> None:
        self.name, self.size, self.late = name, size, late
        self._sink, self._part = sink, sink.store.part_size(size)
        self.parts = max(-(-size // self._part), 1)
        ours = only is None or only.end > only.start
        state = sink.store.state(name) if ours and (sink.resumes or not sink.replace) else None
        self.published = state == ObjectState(size, sink.mark)
        if state is not None and not self.published and not sink.replace:
            raise RefusedError(f"{sink.store.title}/{name} exists already", option="--overwrite")
        self._lock, self._beginning = threading.Lock(), threading.Lock()
        self.upload: PartUpload | None = None
        self._before: frozenset[int] = frozenset()  # parts of an earlier run
        self._sent: set[int] = set()
        if ours and self.parts > 1 and not self.published and sink.resumes:
            found = self._begin().done
            self._before = frozenset() if late else frozenset(found)  # of a late one no checksum is known
            self._sent |= self._before
        if only is not None:
            others = (n for n in range(self.parts) if not only.start <= n * self._part < only.end)
            self._sent |= set(others)
        self._left = self._expected(spans)
        self._data: dict[int, bytearray] = {}
        self._spilled: IO[bytes] | None = None
        self._spilled_parts: set[int] = set()

    def _begin(self) -> PartUpload:
        with self._beginning:
            if self.upload is None:
                sink = self._sink
                token = sink.tokens.get(self.name)
                self.upload = sink.store.upload(
                    self.name, sink.mark, resume=sink.resumes, replace=sink.replace, token=token
                )
            return self.upload

    def _expected(self, spans: Iterable[Span]) -> list[int]:
        """Returns the number of bytes that each part expects."""
        left = [0] * self.parts
        for offset, length in spans:
            for number, _, count in self._cut(offset, length):
                left[number] += count
        return left

    def _cut(self, offset: int, length: int) -> Iterable[tuple[int, int, int]]:
        """Splits a range into pieces of parts: number, offset in the part, length."""
        if offset < 0 or offset + length > self.size:
            raise UsageError(f"a write of {length} bytes at {offset} into a file of {self.size}")
        while length:
            number, at = divmod(offset, self._part)
            count = min(length, self._part - at)
            yield number, at, count
            offset, length = offset + count, length - count

    def holds(self, piece: Piece) -> bool:
        """Whether the store has these bytes already."""
        parts = (number for number, _, _ in self._cut(piece.offset, piece.size))
        return self.published or (not self.late and all(number in self._sent for number in parts))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Writes `data` at `offset`; bytes of finished parts are dropped."""
        self._sink.check()
        view = memoryview(data).cast("B")
        for number, at, count in self._cut(offset, len(view)):
            part, view = view[:count], view[count:]
            if not self.published and number not in self._sent:
                self._fill(number, at, part)

    def _fill(self, number: int, at: int, part: memoryview) -> None:
        with self._lock:
            buffer = self._data.get(number)
            if buffer is None and number not in self._spilled_parts:
                if not self.late and self._sink.take_room():
                    buffer = self._data[number] = bytearray(self._length(number))
                else:
                    self._spilled_parts.add(number)
            if buffer is None:
                self._spill().seek(number * self._part + at)
                self._spill().write(part)
            else:
                buffer[at : at + len(part)] = part
            self._left[number] -= len(part)
            full = self._left[number] == 0 and not self.late and self.parts > 1
        if full:
            self._send(number)

    def _length(self, number: int) -> int:
        return min(self._part, self.size - number * self._part)

    def _spill(self) -> IO[bytes]:
        if self._spilled is None:
            self._spilled = tempfile.TemporaryFile(prefix="weighbridge-")  # noqa: SIM115  # closed with the file
        return self._spilled

    def _take(self, number: int) -> bytes | bytearray:
        """Removes and returns the bytes of a part; unwritten bytes are zeros."""
        with self._lock:
            buffer = self._data.pop(number, None)
            if buffer is not None:
                self._sink.give_room()
                return buffer
            found = b""
            if self._spilled is not None:
                self._spilled.seek(number * self._part)
                found = self._spilled.read(self._length(number))
            return found.ljust(self._length(number), b"\0")

    def _send(self, number: int) -> None:
        upload, data = self._begin(), self._take(number)
        self._sent.add(number)
        self._sink.start(lambda: upload.put(number, data))

    def copy(self, source: Source, start: int, offset: int, size: int) -> bool:
        """Returns False: uploads can't be copied inside the kernel."""
        return False

    def adopt(self, origins: Iterable[Origin]) -> None:
        """Lets the store copy the parts that come whole from one of its objects, if it can."""
        if self.parts == 1 or self.late or self.published:
            return
        for origin in _joined(origins):
            first, last = -(-origin.offset // self._part), (origin.offset + origin.size) // self._part
            for number in range(first, last):
                if number in self._sent:
                    continue
                start = origin.start + number * self._part - origin.offset
                if not self._begin().copy(number, origin.source, start, self._part):
                    return
                self._sent.add(number)

    def digest(self, algo: str) -> str:
        """Raises UnsupportedError: an unfinished upload can't be read."""
        raise UnsupportedError("a file that is uploaded can't be compared with a digest", hint="fetch it to a folder")

    def finish(self) -> None:
        """Sends the remaining parts."""
        if self.published:
            return
        missing = [number for number in range(self.parts) if number not in self._sent]
        if any(self._left[number] > 0 for number in missing):
            raise RuntimeError(f"{self.name}: bytes of part {missing[0]} were never written")
        if self.parts > 1:
            for number in missing:
                self._send(number)

    def publish(self) -> None:
        """Makes the object visible."""
        if self.published:
            return
        sink = self._sink
        if self.parts == 1:
            sink.store.put(self.name, self._take(0), sink.mark, replace=sink.replace)
        else:
            self._begin().complete(self.parts, replace=sink.replace)
        self.published = True

    def close(self) -> None:
        self._data.clear()
        if self._spilled is not None:
            self._spilled.close()


class UploadSink(Staging):
    """The objects below one name of a store, with the interface of `Sink`. `memory`: bytes that open parts may take.
    `tokens`: shared uploads, by object name. `part`: the range that this process sends; other processes send the rest,
    and nothing is published or aborted."""

    def __init__(
        self,
        store: ObjectStore,
        target: str,
        *,
        folder: bool,
        overwrite: bool = False,
        replace_folder: bool = False,
        names: Collection[str] = (),
        key: Mapping[str, str] | None = None,
        memory: int = 64 * MIB,
        tokens: Mapping[str, str] = MappingProxyType({}),
        part: FileRange | None = None,
    ) -> None:
        self.store, self.target, self.folder = store, target, folder
        self.tokens, self._part = tokens, part
        self.replace, self.resumes = overwrite or (folder and replace_folder), key is not None
        self.mark = uuid.uuid4().hex if key is None else mark_of(key)
        self._foreign = self._check_foreign(names, replace_folder) if folder else []
        self._room, self._memory = _LEAST_OPEN, memory
        self._files: list[UploadFile] = []
        self._shown: list[UploadFile] = []  # of a folder that isn't whole yet
        self._failed: BaseException | None = None
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(UPLOADS)
        self._pool = ThreadPoolExecutor(UPLOADS, thread_name_prefix="weighbridge-upload")
        self._running: list[Future[None]] = []

    def _check_foreign(self, names: Collection[str], replace_folder: bool) -> list[str]:
        foreign = sorted(set(self.store.below(self.target)) - set(names))
        if foreign and not replace_folder:
            words = f"{self.store.title}/{self.target} has other objects: {listed(foreign)}"
            raise RefusedError(words, option="--replace-folder")
        return foreign

    # -- memory, and requests under way

    def take_room(self) -> bool:
        """Whether one more part may be open in memory."""
        with self._lock:
            if self._room <= 0:
                return False
            self._room -= 1
            return True

    def give_room(self) -> None:
        with self._lock:
            self._room += 1

    def start(self, work: Callable[[], None]) -> None:
        """Runs a request in a thread, once fewer than `UPLOADS` are running."""
        self._slots.acquire()
        if self._failed is not None:
            self._slots.release()
            raise self._failed
        future = self._pool.submit(work)
        future.add_done_callback(self._ended)
        with self._lock:
            self._running = [f for f in self._running if not f.done()] + [future]

    def _ended(self, future: Future[None]) -> None:
        self._slots.release()
        if not future.cancelled() and (error := future.exception()) is not None and self._failed is None:
            self._failed = error

    def check(self) -> None:
        """Raises the error of a request that failed."""
        if self._failed is not None:
            raise self._failed

    def _wait(self) -> None:
        for future in self._running:
            future.result()
        self.check()

    # -- the interface of `Sink`

    def create(self, name: str, size: int, spans: Iterable[Span] | None = None, *, late: bool = False) -> UploadFile:
        """Creates an object of `size` bytes: `name` below the target, or the target itself if it is a file."""
        path = f"{self.target}/{name}".strip("/") if self.folder else self.target
        only = self._part if self._part is None or self._part.file == name else FileRange(name, 0, 0)
        made = UploadFile(self, path, size, [(0, size)] if spans is None else spans, late, only)
        with self._lock:
            if not self._files:
                self._room = max(self._memory // self.store.part_size(size), _LEAST_OPEN)
        self._files.append(made)
        return made

    def crc_of(self, piece: Piece) -> int | None:
        """Returns 0 for a piece that an earlier run sent, else None."""
        return 0 if self._files[piece.file].holds(piece) else None

    def finished(self, piece: Piece, crc: int) -> None:
        """Does nothing: the store records its parts."""

    def forget(self) -> None:
        """Discards everything sent so far."""
        self.resumes = False

    def _settle(self, error: BaseException | None) -> None:
        for future in self._running:
            future.cancel()
        self._pool.shutdown()

    def _kept_in(self) -> str | None:
        resumable = self._part is None and self.resumes and any(f.upload and f.upload.done for f in self._files)
        return self.store.title if resumable else None

    def _close(self, *, kept: bool) -> None:
        with ExitStack() as closing:
            for file in self._files:
                closing.callback(file.close)
        self.store.changed()

    def _publish(self) -> None:
        for file in self._files:
            file.finish()
        self._wait()
        if self._part is not None:
            return
        for file in self._files:
            if not file.published:
                with refused_if_taken(f"{self.store.title}/{file.name}"):
                    file.publish()
                self._shown.append(file)
        for name in self._foreign:
            self.store.remove(f"{self.target}/{name}")
        self._shown.clear()

    def _discard(self) -> None:
        for file in self._files if self._part is None else ():
            if file.upload is not None and not file.published:
                with suppress(Exception):
                    file.upload.abort()
        for file in () if self.replace else self._shown:
            with suppress(Exception):
                self.store.remove(file.name)


def mark_of(key: Mapping[str, str]) -> str:
    """Returns a digest of everything that determines the bytes of a write."""
    return blake2b(repr(sorted(key.items())).encode()).hexdigest()[:32]


def check_uploads(store: ObjectStore, name: str, *, overwrite: bool, folder: bool | None) -> None:
    """Checks for obstacles to a write under `name`, before any work. Raises RefusedError if the name is taken."""
    there = not overwrite and (bool(store.below(name)) if folder is not False else False)
    if not overwrite and (there or (not folder and store.state(name) is not None)):
        raise RefusedError(f"{store.title}/{name} exists already", option="--overwrite")


def _joined(origins: Iterable[Origin]) -> list[Origin]:
    """Merges origins that are adjacent both in the file and in their source."""
    runs: list[Origin] = []
    for origin in sorted(origins, key=lambda o: o.offset):
        last = runs[-1] if runs else None
        follows = last is not None and last.source is origin.source and last.offset + last.size == origin.offset
        if last is not None and follows and last.start + last.size == origin.start:
            runs[-1] = last._replace(size=last.size + origin.size)
        else:
            runs.append(origin)
    return runs
