"""What targets in buckets have in common, whoever keeps them: sizes of parts, addresses, the tree of a bucket that is
written to, small records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol
from uuid import uuid4

from weighbridge.adapters.remote.extra import check_online
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import MIB
from weighbridge.io.location import RemotePath
from weighbridge.io.sink import ParallelUploads, ParallelWrite, UploadSink, check_uploads
from weighbridge.io.sink.upload import ObjectStore
from weighbridge.io.source import Source

#: Bytes of a part, until an object needs more than `PARTS` of them. S3 wants at least 5 MiB, and has parts 1 to 10,000.
PART: Final = 16 * MIB
PARTS: Final = 9_999
#: Where an object's metadata name the run that wrote it.
MARKED: Final = "weighbridge-run"


class BucketStore(ObjectStore, Protocol):
    """A bucket whose small objects are read back, too."""

    def read(self, name: str) -> bytes | None:
        """Returns a small object's bytes; None if it is missing."""


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


def path_of(text: str, scheme: str, store: Callable[[str], BucketStore]) -> RemotePath:
    """The object or folder of a bucket's address, which needn't be there. `store`: of the bucket's name."""
    bucket, _, key = text.partition("://")[2].strip("/").partition("/")
    if not bucket or not key:
        raise UsageError(f"{text} names no object", hint=f"write {scheme}://BUCKET/KEY")
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise UsageError(f"{text}: a name has an empty part, . or ..", hint=f"write {scheme}://BUCKET/KEY")
    check_online(text)
    path: RemotePath = RemotePath.root(f"target+{scheme}://{bucket}", BucketTarget(store(bucket))) / key
    return path
