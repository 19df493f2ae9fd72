"""Objects of S3, Google Cloud Storage and Azure, read through obstore."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.remote.http import Retrier, TransientError, bare_etag, changed
from weighbridge.adapters.remote.wire import abandonable, check_needed, never
from weighbridge.base.errors import RemoteError
from weighbridge.base.records import dataclass
from weighbridge.io.ranges import RangeSource
from weighbridge.io.source import Source

#: Other tools' names of schemes -> ours and obstore's.
ALIASES: Final = MappingProxyType({"gcs": "gs", "abfs": "az"})


@dataclass
class BucketFile:
    """One object, of one version: its ETag without quotes, "" if there is none."""

    store: Any
    key: str
    name: str
    size: int
    version: str
    retrier: Retrier = field(default_factory=Retrier)

    def fetch(self, offset: int, out: memoryview, stopped: Callable[[], bool]) -> None:
        """Fills `out` with the bytes at `offset`, resuming where an answer broke off. Raises RemoteError if the
        object has been replaced. obstore's waits can't be cancelled, so a thread that may be abandoned runs them; it
        writes nothing after this returns."""
        done, left_alone, lock = 0, False, threading.Lock()

        def rest() -> None:
            nonlocal done
            before, began = done, time.monotonic()
            for part in self._parts(offset + done, len(out) - done):
                with lock:
                    check_needed(lambda: left_alone or stopped())
                    out[done : done + len(part)] = part
                done += len(part)
                if self.retrier.is_slow(done - before, time.monotonic() - began):
                    done = before  # no progress
                    raise TransientError("the answer comes too slowly")
            if done < len(out):
                raise TransientError("the answer ended early")

        try:
            abandonable(lambda: self.retrier.retry(self.name, rest, lambda: done, stopped), stopped)
        finally:
            with lock:
                left_alone = True

    def _parts(self, offset: int, length: int) -> Iterator[memoryview]:
        """The answer as it comes, of the version that was first seen. Not every server heeds If-Match."""
        obstore = package("obstore", "reading from a bucket")
        options: dict[str, Any] = {"range": (offset, offset + length)}
        if self.version:
            options["if_match"] = f'"{self.version}"'
        with BucketErrors(self.name):
            found = obstore.get(self.store, self.key, options=options)
        etag = found.meta["e_tag"]  # not every store has one
        if found.meta["size"] != self.size or (etag and self.version and bare_etag(etag) != self.version):
            raise changed(self.name)
        chunks, count = iter(found.stream(min_chunk_size=1)), 0
        while count < length:
            try:
                part = memoryview(next(chunks))[: length - count]
            except StopIteration:
                return
            except Exception as error:
                raise TransientError(f"the answer broke off ({type(error).__name__})") from None
            count += len(part)
            yield part


class BucketTree:
    """The objects of a bucket; each folder is listed once."""

    def __init__(self, title: str, store: Any) -> None:
        self.title, self.store, self.retrier = title, store, Retrier()
        self._listed: dict[str, dict[str, Any] | None] = {}

    def _list(self, folder: str) -> dict[str, Any] | None:
        """The direct children of a folder: name -> the object's metadata, None for a folder."""
        if folder not in self._listed:
            obstore = package("obstore", "reading from a bucket")
            with BucketErrors(f"{self.title}/{folder}"):
                found = abandonable(lambda: obstore.list_with_delimiter(self.store, folder or None), never)
            names: dict[str, Any] = {prefix.rstrip("/").rpartition("/")[2]: None for prefix in found["common_prefixes"]}
            names |= {o["path"].rpartition("/")[2]: o for o in found["objects"]}
            self._listed[folder] = names or None
        return self._listed[folder]

    def _object(self, name: str) -> Any:
        folder, _, last = name.rpartition("/")
        return (self._list(folder) or {}).get(last) if last else None

    def size(self, name: str) -> int | None:
        found = self._object(name)
        return found["size"] if found else None

    def children(self, folder: str) -> Mapping[str, bool] | None:
        names = self._list(folder)
        return None if names is None else {name: found is None for name, found in names.items()}

    def version(self, name: str) -> str:
        found = self._object(name)
        return (bare_etag(found["e_tag"]) or found["last_modified"].isoformat()) if found else ""

    def digest(self, name: str) -> tuple[str, str] | None:
        return None

    def open(self, name: str) -> Source:
        found = self._object(name)
        if found is None:
            raise FileNotFoundError(2, "no such object", f"{self.title}/{name}")
        title, version = f"{self.title}/{name}", bare_etag(found["e_tag"])
        return RangeSource(BucketFile(self.store, name, title, found["size"], version, self.retrier))


#: Variables to set if a store asks for credentials, by scheme.
_TO_SET: Final = MappingProxyType(
    {
        "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
        "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CONNECTION_STRING",
    }
)
_OTHERWISE: Final = "check the bucket's name, the endpoint and the network, and try again"
#: Text in the kind or message of an obstore error -> our message (None: obstore's), the next step (None: credentials).
_MEANINGS: Final = (
    *((kind, "access is denied", None) for kind in ("PermissionDeniedError", "UnauthenticatedError")),
    *((status, "access is denied", None) for status in ("403 Forbidden", "401 Unauthorized")),
    ("Account must be specified", None, None),
    ("NoSuchBucket", "the bucket doesn't exist", "check the bucket's name and the endpoint"),
    ("ContainerNotFound", "the container doesn't exist", "check the container's name and the account"),
    ("illegal character sequence", "a name in it has '..' or '//'", "rename that object; such names aren't read"),
)


class BucketErrors:
    """Errors of obstore as errors with a next step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit | CancelledError | RemoteError):
            return
        problem = type(error).__name__
        if problem == "PreconditionError":
            raise changed(self.name) from None
        raised = f"{problem} {error}"
        found = next((row for row in _MEANINGS if row[0] in raised), None)
        if found is None and (isinstance(error, FileNotFoundError) or problem == "NotFoundError"):
            raise FileNotFoundError(2, "no such object", self.name) from None
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), problem)[:300]
        _, words, hint = found or ("", None, _OTHERWISE)
        scheme = self.name.partition(":")[0].lower()
        raise RemoteError(f"{self.name}: {words or why}", hint=hint or _TO_SET[ALIASES.get(scheme, scheme)]) from None
