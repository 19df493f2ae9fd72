"""Google Cloud Storage objects written as parts, through google-cloud-storage.

Its multipart uploads support no preconditions, so they could overwrite an object created meanwhile. Composition does
support them: parts are objects in a hidden folder next to the target, composed 32 at a time, finally under the
target's name, without copying any bytes. Reference: cloud.google.com/storage/docs, composite-objects and
request-preconditions.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from weighbridge.adapters.remote.buckets.targets import MARKED, BucketCalls, Unfinished, path_of
from weighbridge.adapters.remote.extra import package
from weighbridge.base.errors import LeftoverWarning, RemoteError
from weighbridge.io.location import RemotePath
from weighbridge.io.sink.upload import ObjectState

#: Objects that one request composes.
COMPOSED: Final = 32
_AT_A_TIME: Final = 16  # requests that delete
_PURPOSE: Final = "writing to gs://"
_PARTS: Final = re.compile(r"(?:.*/)?\.[^/]+\.weighbridge/.*")
_PART: Final = re.compile(r"\d{5}")
_LOG_IN: Final = "set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login"


class GcsCalls(BucketCalls):
    """One bucket. The token of an upload is the name of its parts' folder: `run-MARK` if the run is resumable."""

    def __init__(self, bucket: str) -> None:
        self.title = f"gs://{bucket}"
        storage = package("google.cloud.storage", _PURPOSE, "gs")
        self.errors = package("google.api_core.exceptions", _PURPOSE, "gs")
        self.login = package("google.auth.exceptions", _PURPOSE, "gs").GoogleAuthError
        self.failures = (self.errors.GoogleAPIError, self.login, OSError)
        #: Every request here can be repeated: it gives the same bytes, or is refused by its precondition.
        self.patient = package("google.cloud.storage.retry", _PURPOSE, "gs").DEFAULT_RETRY
        try:
            self.client = storage.Client(project=None)
        except self.failures as error:
            raise self.explain(self.title, error) from None
        self.bucket = self.client.bucket(bucket)

    def explain(self, name: str, error: Any) -> Exception:
        words = next(iter(str(error).splitlines()), type(error).__name__)
        hint = "check the network and the service, and try again"
        if isinstance(error, self.errors.PreconditionFailed):
            return FileExistsError(17, "there is an object already", name)
        if isinstance(error, self.login):
            hint = _LOG_IN
        elif isinstance(error, self.errors.Unauthorized | self.errors.Forbidden):
            words, hint = "you may not write there", _LOG_IN
        elif isinstance(error, self.errors.NotFound):
            words, hint = "the bucket doesn't exist", "make the bucket first"
        return RemoteError(f"{name}: {words}", hint=hint)

    def state(self, name: str) -> ObjectState | None:
        blob = self.bucket.get_blob(name)
        return ObjectState(blob.size, (blob.metadata or {}).get(MARKED, "")) if blob else None

    def _listed(self, prefix: str) -> list[str]:
        return [blob.name for blob in self.client.list_blobs(self.bucket, prefix=prefix, retry=self.patient)]

    def names(self, prefix: str) -> Iterable[str]:
        return [name for name in self._listed(prefix) if not _PARTS.fullmatch(name)]

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self.bucket.blob(name).download_as_bytes())
        except self.errors.NotFound:
            return None

    def send(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        blob = self.bucket.blob(name)
        if mark:
            blob.metadata = {MARKED: mark}
        blob.upload_from_string(bytes(data), "application/octet-stream", checksum="crc32c", retry=self.patient,
                                if_generation_match=None if replace else 0)  # fmt: skip

    def delete(self, name: str) -> None:
        with suppress(self.errors.NotFound):
            self.bucket.blob(name).delete(retry=self.patient)

    def start(self, name: str, mark: str, *, resume: bool) -> str:
        return f"run-{mark}" if resume else f"once-{mark}"

    def unfinished(self, name: str, mark: str) -> Iterable[Unfinished]:
        """The runs that left parts; the one with this mark is the last."""
        above, mine = _parts_folder(name), f"run-{mark}"
        listed = self._listed(f"{above}run-")
        runs = {part[len(above) :].partition("/")[0] for part in listed}
        return [
            Unfinished(run, run == mine, _numbered(listed, f"{above}{run}/"))
            for run in sorted(runs, key=lambda run: run == mine)
        ]

    def parts(self, name: str, token: str) -> Mapping[int, Any]:
        folder = f"{_parts_folder(name)}{token}/"
        return _numbered(self._listed(folder), folder)

    def put_part(self, name: str, token: str, number: int, data: bytes | bytearray) -> Any:
        part = f"{_parts_folder(name)}{token}/{number:05d}"
        self.send(part, data, "", replace=True)
        return part

    def complete(self, name: str, token: str, parts: Sequence[Any], mark: str, *, replace: bool) -> None:
        folder, left = f"{_parts_folder(name)}{token}/", list(parts)
        for level in range(len(parts)):
            if len(left) <= COMPOSED:
                break
            groups = [left[first : first + COMPOSED] for first in range(0, len(left), COMPOSED)]
            left = [f"{folder}{level}-{number * COMPOSED:05d}" for number in range(len(groups))]
            for made, group in zip(left, groups, strict=True):
                self._compose(made, group, None, None)
        self._compose(name, left, {MARKED: mark}, None if replace else 0)
        self.abort(name, token)

    def _compose(self, name: str, names: list[str], metadata: dict[str, str] | None, generation: int | None) -> None:
        blob = self.bucket.blob(name)
        blob.metadata, blob.content_type = metadata, "application/octet-stream"
        blob.compose([self.bucket.blob(n) for n in names], if_generation_match=generation, retry=self.patient)

    def abort(self, name: str, token: str) -> None:
        """Deletes the parts; the object is whole without that, so a LeftoverWarning names those that remain."""

        def failure(part: str) -> str | None:
            try:
                self.delete(part)
            except self.failures as error:
                return str(self.explain(f"{self.title}/{part}", error))
            return None

        names = self._listed(f"{_parts_folder(name)}{token}/")
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            left = [(part, why) for part, why in zip(names, pool.map(failure, names), strict=True) if why]
        if left:
            folder = f"{self.title}/{left[0][0].rpartition('/')[0]}/"
            words = f"parts of an upload couldn't be deleted, {len(left)} of {len(names)} below {folder}"
            how = f"delete them with: gcloud storage rm --recursive '{folder}'"
            warnings.warn(f"{words} ({left[0][1]}); they cost storage: {how}", LeftoverWarning, stacklevel=2)


def _parts_folder(name: str) -> str:
    """The folder of an object's parts, below which each upload has one."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/.{last}.weighbridge/".lstrip("/")


def _numbered(names: Iterable[str], folder: str) -> dict[int, str]:
    """The parts in a folder; composed ones have no number."""
    parts = (name for name in names if name.startswith(folder) and _PART.fullmatch(name[len(folder) :]))
    return {int(part[len(folder) :]): part for part in parts}


def to_target(text: str) -> RemotePath:
    return path_of(text, "gs", GcsCalls)
