"""Buckets as targets: objects written as parts, small records, and the tree of a bucket. The requests of each provider
are a `BucketCalls`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from uuid import uuid4

from weighbridge.adapters.remote.extra import check_online, forget
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.io.location import RemotePath
from weighbridge.io.sink import ParallelUploads, ParallelWrite, UploadSink, check_uploads
from weighbridge.io.sink.upload import ObjectState
from weighbridge.io.source import Source

#: Bytes of a part, until an object needs more than `PARTS` of them. S3 wants at least 5 MiB, and has parts 1 to 10,000.
PART: Final = 16 * MIB
PARTS: Final = 9_999
#: Where an object's metadata name the run that wrote it.
MARKED: Final = "weighbridge-run"


class Unfinished(NamedTuple):
    """An upload that a resumable run left. `mine`: by a run with the same mark. `parts`: as `BucketCalls.parts`."""

    token: str
    mine: bool
    parts: Mapping[int, Any]


class BucketCalls(ABC):
    """The requests of one provider. They raise `failures`, the errors of its client library. A finished part is what
    `complete` needs of it; parts are numbered from 0."""

    title: str
    failures: tuple[type[Exception], ...]

    @abstractmethod
    def explain(self, name: str, error: Any) -> Exception:
        """Returns one of `failures` as an error with a next step; FileExistsError for a failed precondition."""

    @abstractmethod
    def state(self, name: str) -> ObjectState | None:
        """Returns the state of an object; None if it is missing."""

    @abstractmethod
    def names(self, prefix: str) -> Iterable[str]:
        """Returns the names of the objects that begin with `prefix`, without unfinished parts."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Returns a small object's bytes; None if it is missing."""

    @abstractmethod
    def send(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        """Writes a whole object."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Deletes an object, which may be missing."""

    @abstractmethod
    def start(self, name: str, mark: str, *, resume: bool) -> str:
        """Begins an upload, which `unfinished` lists if `resume`. Returns its token."""

    @abstractmethod
    def unfinished(self, name: str, mark: str) -> Iterable[Unfinished]:
        """Returns the unfinished uploads that resumable runs began."""

    @abstractmethod
    def parts(self, name: str, token: str) -> Mapping[int, Any]:
        """Returns the finished parts of an upload."""

    @abstractmethod
    def put_part(self, name: str, token: str, number: int, data: bytes | bytearray) -> Any:
        """Sends a part, and returns it as a finished one."""

    def copy_part(self, name: str, token: str, number: int, source: Source, start: int, size: int) -> Any:
        """Copies a part from another object; returns None if the provider can't."""
        return None

    @abstractmethod
    def complete(self, name: str, token: str, parts: Sequence[Any], mark: str, *, replace: bool) -> None:
        """Makes the object of its parts."""

    @abstractmethod
    def abort(self, name: str, token: str) -> None:
        """Discards an upload, which may have ended."""

    def is_open(self, name: str, token: str) -> bool:
        """Whether an upload accepts parts. Always, if parts are stored under the run's mark."""
        return True


class BucketStore:
    """One bucket, as the `ObjectStore` of a sink. Its small objects can be read, too."""

    def __init__(self, calls: BucketCalls) -> None:
        self.calls, self.title = calls, calls.title

    @contextmanager
    def explained(self, name: str) -> Iterator[None]:
        """Raises the provider's errors about an object as ours."""
        try:
            yield
        except FileExistsError:
            raise
        except self.calls.failures as error:
            raise self.calls.explain(f"{self.title}/{name}" if name else self.title, error) from None

    def part_size(self, size: int) -> int:
        return part_size(size)

    def state(self, name: str) -> ObjectState | None:
        with self.explained(name):
            return self.calls.state(name)

    def below(self, folder: str) -> Collection[str]:
        prefix = f"{folder}/" if folder else ""
        with self.explained(folder):
            return {name[len(prefix) :] for name in self.calls.names(prefix)} - {""}

    def read(self, name: str) -> bytes | None:
        with self.explained(name):
            return self.calls.read(name)

    def put(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        with self.explained(name):
            try:
                self.calls.send(name, data, mark, replace=replace)
            except self.calls.failures:
                if self.calls.state(name) != ObjectState(len(data), mark):
                    raise

    def remove(self, name: str) -> None:
        with self.explained(name):
            self.calls.delete(name)

    def upload(self, name: str, mark: str, *, resume: bool, replace: bool, token: str | None = None) -> BucketUpload:
        with self.explained(name):
            if token is not None:
                return BucketUpload(self, name, mark, token, self.calls.parts(name, token))
            for upload in self.calls.unfinished(name, mark) if resume else ():
                if upload.mine:
                    return BucketUpload(self, name, mark, upload.token, upload.parts)
                if not replace:
                    words = f"an unfinished upload of {self.title}/{name} has other sources or options"
                    raise RefusedError(words, option="--overwrite", hint="start again with --overwrite")
                self.calls.abort(name, upload.token)
            return BucketUpload(self, name, mark, self.calls.start(name, mark, resume=resume), {})

    def is_open(self, name: str, token: str) -> bool:
        with self.explained(name):
            return self.calls.is_open(name, token)

    def abandon(self, name: str, mark: str) -> None:
        with self.explained(name):
            for upload in self.calls.unfinished(name, mark):
                if upload.mine:
                    self.calls.abort(name, upload.token)

    def changed(self) -> None:
        forget(self.title)


class BucketUpload:
    """The upload of one object, as a `PartUpload`."""

    def __init__(self, store: BucketStore, name: str, mark: str, token: str, parts: Mapping[int, Any]) -> None:
        self.store, self.name, self.mark, self.token = store, name, mark, token
        self.done, self._parts = set(parts), dict(parts)
        self._published = False  # by another process with the same plan, which has ended the upload

    def _check_published(self) -> ObjectState | None:
        state = self.store.calls.state(self.name)
        self._published = state is not None and state.mark == self.mark
        return state

    def put(self, number: int, data: bytes | bytearray) -> None:
        with self.store.explained(self.name):
            try:
                self._parts[number] = self.store.calls.put_part(self.name, self.token, number, data)
            except self.store.calls.failures:
                self._check_published()
                if not self._published:
                    raise
        self.done.add(number)

    def copy(self, number: int, source: Source, start: int, size: int) -> bool:
        part = self.store.calls.copy_part(self.name, self.token, number, source, start, size)
        if part is not None:
            self._parts[number] = part
            self.done.add(number)
        return part is not None

    def complete(self, parts: int, *, replace: bool) -> None:
        if self._published:
            return
        calls, finished = self.store.calls, [self._parts[number] for number in range(parts)]
        with self.store.explained(self.name):
            try:
                calls.complete(self.name, self.token, finished, self.mark, replace=replace)
            except calls.failures:
                state = self._check_published()
                if self._published:
                    calls.abort(self.name, self.token)
                elif state is not None and not replace:
                    raise FileExistsError(17, "there is an object already", self.name) from None
                else:
                    raise

    def abort(self) -> None:
        with self.store.explained(self.name):
            self.store.calls.abort(self.name, self.token)


def part_size(size: int) -> int:
    """Bytes of each part but the last one of an object of `size` bytes: as few as `PARTS` of them, of whole MiB."""
    least = -(-size // PARTS)
    return PART if least <= PART else -(-least // MIB) * MIB


class BucketRecords:
    """Small objects below a name."""

    def __init__(self, store: BucketStore, prefix: str) -> None:
        self.store, self.prefix = store, prefix

    def _name(self, name: str) -> str:
        return f"{self.prefix}/{name}".strip("/")

    def add(self, name: str, data: bytes) -> bool:
        try:
            self.store.put(self._name(name), data, uuid4().hex, replace=False)
        except FileExistsError:
            return False
        return True

    def put(self, name: str, data: bytes) -> None:
        self.store.put(self._name(name), data, uuid4().hex, replace=True)

    def read(self, name: str) -> bytes | None:
        return self.store.read(self._name(name))

    def remove(self, name: str) -> None:
        self.store.remove(self._name(name))

    def names(self, folder: str) -> Collection[str]:
        return self.store.below(self._name(folder))


class BucketTarget:
    """A bucket to be written to, as the tree of its objects."""

    def __init__(self, store: BucketStore) -> None:
        self.store, self.title = store, store.title

    def size(self, name: str) -> int | None:
        found = self.store.state(name) if name else None
        return found.size if found else None

    def children(self, folder: str) -> Mapping[str, bool] | None:
        names = self.store.below(folder)
        return {name.partition("/")[0]: "/" in name for name in sorted(names)} or None

    def version(self, name: str) -> str:
        found = self.store.state(name)
        return found.mark if found else ""

    def digest(self, name: str) -> tuple[str, str] | None:
        return None

    def open(self, name: str) -> Source:
        raise UsageError(f"{self.title}/{name} is a target", hint="name it as a source")

    def check(self, name: str, *, overwrite: bool, folder: bool | None) -> None:
        """Checks for obstacles to a write, before any work."""
        check_uploads(self.store, name, overwrite=overwrite, folder=folder)

    def sink(self, name: str, *, size: int, **how: Any) -> UploadSink:
        """Returns a sink for a name; `size` isn't needed, since no disk space is."""
        return UploadSink(self.store, name, **how)

    def records(self, name: str) -> BucketRecords:
        """Small objects below a name."""
        return BucketRecords(self.store, name)

    def parallel(self, name: str, write: ParallelWrite) -> ParallelUploads:
        """What several processes write under a name."""
        return ParallelUploads(self.store, name, write)

    def staged(self, size: int, late: int) -> int:
        """Bytes of this machine's disk that a write takes: files whose checksums come first wait there whole."""
        return late


def path_of(text: str, scheme: str, calls: Callable[[str], BucketCalls]) -> RemotePath:
    """Parses a bucket URL; the object or folder need not exist. `calls`: of the bucket's name."""
    bucket, _, key = text.partition("://")[2].strip("/").partition("/")
    if not bucket or not key:
        raise UsageError(f"{text} names no object", hint=f"write {scheme}://BUCKET/KEY")
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise UsageError(f"{text}: a name has an empty part, . or ..", hint=f"write {scheme}://BUCKET/KEY")
    check_online(text)
    path: RemotePath = RemotePath.root(f"target+{scheme}://{bucket}", BucketTarget(BucketStore(calls(bucket)))) / key
    return path
