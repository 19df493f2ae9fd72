"""Google Cloud Storage objects written as parts, through google-cloud-storage.

Its multipart uploads support no preconditions, so they could overwrite an object created meanwhile. Composition does
support them: parts are objects in a hidden folder next to the target, composed 32 at a time, finally under the
target's name, without copying any bytes. Reference: cloud.google.com/storage/docs, composite-objects and
request-preconditions.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from weighbridge.adapters.remote.buckets.targets import MARKED, part_size, path_of
from weighbridge.adapters.remote.extra import forget, package
from weighbridge.base.errors import LeftoverWarning, RefusedError, RemoteError
from weighbridge.io.location import RemotePath
from weighbridge.io.sink.upload import ObjectState
from weighbridge.io.source import Source

#: Objects that one request composes.
COMPOSED: Final = 32
_AT_A_TIME: Final = 16  # requests that delete
_PURPOSE: Final = "writing to gs://"
_PARTS: Final = re.compile(r"(?:.*/)?\.[^/]+\.weighbridge/.*")
_PART: Final = re.compile(r"\d{5}")
_LOG_IN: Final = "set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login"


class GcsErrors:
    """Errors of google-cloud-storage as errors with a next step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        answers = package("google.api_core.exceptions", _PURPOSE, "gs")
        if isinstance(error, package("google.auth.exceptions", _PURPOSE, "gs").GoogleAuthError):
            words = next(iter(str(error).splitlines()), "")
            raise RemoteError(f"{self.name}: {words}", hint=_LOG_IN) from None
        if isinstance(error, answers.PreconditionFailed):
            raise FileExistsError(17, "there is an object already", self.name) from None
        if isinstance(error, answers.Unauthorized | answers.Forbidden):
            raise RemoteError(f"{self.name}: you may not write there", hint=_LOG_IN) from None
        if isinstance(error, answers.NotFound):
            raise RemoteError(f"{self.name}: the bucket doesn't exist", hint="make the bucket first") from None
        if isinstance(error, answers.GoogleAPIError | OSError) and not isinstance(error, FileExistsError | RemoteError):
            words = next(iter(str(error).splitlines()), type(error).__name__)
            hint = "check the network and the service, and try again"
            raise RemoteError(f"{self.name}: {words}", hint=hint) from None


class GcsStore:
    """One bucket."""

    def __init__(self, bucket: str) -> None:
        self.title = f"gs://{bucket}"
        storage = package("google.cloud.storage", _PURPOSE, "gs")
        self.errors = package("google.api_core.exceptions", _PURPOSE, "gs")
        #: Every request here can be repeated: it gives the same bytes, or is refused by its precondition.
        self.patient = package("google.cloud.storage.retry", _PURPOSE, "gs").DEFAULT_RETRY
        with self._at(""):
            self.client = storage.Client(project=None)
            self.bucket = self.client.bucket(bucket)

    def _at(self, name: str) -> GcsErrors:
        return GcsErrors(f"{self.title}/{name}" if name else self.title)

    def part_size(self, size: int) -> int:
        return part_size(size)

    def state(self, name: str) -> ObjectState | None:
        with self._at(name):
            found = self.bucket.get_blob(name)
        return ObjectState(found.size, (found.metadata or {}).get(MARKED, "")) if found else None

    def below(self, folder: str) -> Collection[str]:
        prefix = f"{folder}/" if folder else ""
        return {name[len(prefix) :] for name in self.names(prefix) if not _PARTS.fullmatch(name)} - {""}

    def names(self, prefix: str) -> list[str]:
        """The names of all objects that begin with `prefix`."""
        with self._at(prefix):
            return [blob.name for blob in self.client.list_blobs(self.bucket, prefix=prefix, retry=self.patient)]

    def send(self, name: str, data: bytes | bytearray, mark: str = "", *, replace: bool = True) -> None:
        """An object, whole."""
        blob = self.bucket.blob(name)
        if mark:
            blob.metadata = {MARKED: mark}
        blob.upload_from_string(bytes(data), "application/octet-stream", checksum="crc32c", retry=self.patient,
                                if_generation_match=None if replace else 0)  # fmt: skip

    def put(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        with self._at(name):
            try:
                self.send(name, data, mark, replace=replace)
            except self.errors.GoogleAPIError:
                if self.state(name) != ObjectState(len(data), mark):
                    raise

    def upload(self, name: str, mark: str, *, resume: bool, replace: bool, token: str | None = None) -> GcsUpload:
        made = GcsUpload(self, name, mark, resume=resume)
        if token is not None:
            made.join()
        elif resume:
            made.find(replace)
        return made

    def is_open(self, name: str, token: str) -> bool:
        """Returns True: parts are stored under the run's mark and can be sent regardless of others."""
        return True

    def abandon(self, name: str, mark: str) -> None:
        GcsUpload(self, name, mark, resume=True).abort()

    def read(self, name: str) -> bytes | None:
        with self._at(name):
            try:
                return bytes(self.bucket.blob(name).download_as_bytes())
            except self.errors.NotFound:
                return None

    def remove(self, name: str) -> None:
        with self._at(name), suppress(self.errors.NotFound):
            self.bucket.blob(name).delete(retry=self.patient)

    def discard(self, names: Sequence[str]) -> None:
        """Delete parts, as far as that goes: the object is whole without it. A LeftoverWarning names what remains."""

        def failure(name: str) -> str | None:
            try:
                self.remove(name)
            except RemoteError as error:
                return error.message
            return None

        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            left = [(name, why) for name, why in zip(names, pool.map(failure, names), strict=True) if why]
        if left:
            folder = f"{self.title}/{left[0][0].rpartition('/')[0]}/"
            words = f"parts of an upload couldn't be deleted, {len(left)} of {len(names)} below {folder}"
            how = f"delete them with: gcloud storage rm --recursive '{folder}'"
            warnings.warn(f"{words} ({left[0][1]}); they cost storage: {how}", LeftoverWarning, stacklevel=2)

    def changed(self) -> None:
        forget(self.title)


class GcsUpload:
    """The parts of one object. Parts of a resumable run are in a folder named after its mark."""

    def __init__(self, store: GcsStore, name: str, mark: str, *, resume: bool) -> None:
        self.store, self.name, self.mark = store, name, mark
        folder, _, last = name.rpartition("/")
        self._parts = f"{folder}/.{last}.weighbridge/".lstrip("/")
        self._folder = f"{self._parts}{'run' if resume else 'once'}-{mark}/"
        self.done: set[int] = set()

    @property
    def token(self) -> str:
        return self.mark

    def join(self) -> None:
        """Take up the parts of this mark, whatever else is under way."""
        self._take_up(self.store.names(self._folder))

    def find(self, replace: bool) -> None:
        """Finds the parts of this mark. Raises RefusedError for parts of a different mark, unless `replace`, which
        deletes them."""
        names = self.store.names(f"{self._parts}run-")
        others = [name for name in names if not name.startswith(self._folder)]
        if others and not replace:
            words = f"an unfinished upload of {self.store.title}/{self.name} has other sources or options"
            raise RefusedError(words, option="--overwrite", hint="start again with --overwrite")
        self.store.discard(others)
        self._take_up(name for name in names if name not in others)

    def _take_up(self, names: Iterable[str]) -> None:
        found = (name.removeprefix(self._folder) for name in names)
        self.done = {int(name) for name in found if _PART.fullmatch(name)}

    def put(self, number: int, data: bytes | bytearray) -> None:
        name = f"{self._folder}{number:05d}"
        with GcsErrors(f"{self.store.title}/{name}"):
            self.store.send(name, data)
        self.done.add(number)

    def copy(self, number: int, source: Source, start: int, size: int) -> bool:
        """Returns False: no request copies a range."""
        return False

    def complete(self, parts: int, *, replace: bool) -> None:
        names = [f"{self._folder}{number:05d}" for number in range(parts)]
        with GcsErrors(f"{self.store.title}/{self.name}"):
            try:
                for level in range(parts):
                    if len(names) <= COMPOSED:
                        break
                    names = list(self._composed(names, level))
                self._compose(self.name, names, {MARKED: self.mark}, None if replace else 0)
            except self.store.errors.GoogleAPIError:
                found = self.store.state(self.name)
                if found is None or found.mark != self.mark:
                    raise  # else another process with the same plan has composed it
        self.abort()

    def _composed(self, names: list[str], level: int) -> Iterator[str]:
        """Names of objects that hold `COMPOSED` of these each."""
        for first in range(0, len(names), COMPOSED):
            name = f"{self._folder}{level}-{first:05d}"
            self._compose(name, names[first : first + COMPOSED], None, None)
            yield name

    def _compose(self, name: str, names: list[str], metadata: dict[str, str] | None, generation: int | None) -> None:
        blob = self.store.bucket.blob(name)
        blob.metadata, blob.content_type = metadata, "application/octet-stream"
        blob.compose([self.store.bucket.blob(n) for n in names], if_generation_match=generation,
                     retry=self.store.patient)  # fmt: skip

    def abort(self) -> None:
        self.store.discard(self.store.names(self._folder))


def to_target(text: str) -> RemotePath:
    """The object or folder of a bucket's address, which needn't be there."""
    return path_of(text, "gs", GcsStore)
