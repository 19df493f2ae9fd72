"""S3 objects written as parts, through boto3: obstore can't send a part of an upload that another process began.
Works with any store that has S3's multipart calls (AWS_ENDPOINT_URL: Google Cloud Storage, R2, MinIO, Ceph).

Part 10,000 of a resumable upload is its mark. Its ETag, the MD5 of the run's fingerprint, is the only information
about content in a listing, and completion drops parts that it doesn't name. Data has parts 1 to 9,999.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.adapters.remote.buckets.reading import BucketFile
from weighbridge.adapters.remote.buckets.targets import MARKED, part_size, path_of
from weighbridge.adapters.remote.extra import forget, package
from weighbridge.base.errors import RefusedError, RemoteError
from weighbridge.io.location import RemotePath
from weighbridge.io.ranges import RangeSource
from weighbridge.io.sink.upload import ObjectState
from weighbridge.io.source import Source

TRIES = 6
_MARK_PART: Final = 10_000
_DENIED: Final = frozenset(
    {"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "AllAccessDisabled"}
)
_THERE: Final = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
_GONE: Final = frozenset({"NoSuchUpload"})
_HINTS: Final[Mapping[str, str]] = MappingProxyType(
    {"NoSuchBucket": "make the bucket first", "404": "make the bucket first"}
)


def _client() -> Any:
    """A client with S3's own names of environment variables; patient, and open to many requests at a time."""
    boto3 = package("boto3", "writing to a bucket")
    config = package("botocore.config", "writing to a bucket").Config
    own = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    style = {"addressing_style": "path"} if own else {}
    retries = {"max_attempts": TRIES, "mode": "standard"}
    return boto3.client("s3", config=config(max_pool_connections=32, retries=retries, s3=style))


class S3Errors:
    """Errors of boto3 as errors with a next step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        errors = package("botocore.exceptions", "writing to a bucket")
        if isinstance(error, errors.ClientError):
            code, words = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
            if code in _THERE:
                raise FileExistsError(17, "there is an object already", self.name) from None
            hint = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy" if code in _DENIED \
                else _HINTS.get(code, "try again")  # fmt: skip
            raise RemoteError(f"{self.name}: the store answers {code} {words}".rstrip(), hint=hint) from None
        if isinstance(error, errors.BotoCoreError):
            hint = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), AWS_ENDPOINT_URL"
            raise RemoteError(f"{self.name}: {error}", hint=hint) from None


def _code(error: Any) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


class S3Store:
    """One bucket."""

    def __init__(self, bucket: str) -> None:
        self.bucket, self.title = bucket, f"s3://{bucket}"
        self.client = _client()
        errors = package("botocore.exceptions", "writing to a bucket")
        self.errors: Any = (errors.ClientError, errors.BotoCoreError)

    def _at(self, name: str) -> S3Errors:
        return S3Errors(f"{self.title}/{name}" if name else self.title)

    def part_size(self, size: int) -> int:
        return part_size(size)

    def state(self, name: str) -> ObjectState | None:
        with self._at(name):
            try:
                found = self.client.head_object(Bucket=self.bucket, Key=name)
            except self.errors as error:
                if _code(error) in ("404", "NoSuchKey", "NotFound"):
                    return None
                raise
        return ObjectState(found["ContentLength"], found.get("Metadata", {}).get(MARKED, ""))

    def below(self, folder: str) -> Collection[str]:
        prefix = f"{folder}/" if folder else ""
        with self._at(folder):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
            return {row["Key"][len(prefix) :] for page in pages for row in page.get("Contents", [])} - {""}

    def put(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        more = {} if replace else {"IfNoneMatch": "*"}
        with self._at(name):
            try:
                self.client.put_object(Bucket=self.bucket, Key=name, Body=data, Metadata={MARKED: mark}, **more)
            except self.errors:
                if self.state(name) != ObjectState(len(data), mark):
                    raise

    def upload(self, name: str, mark: str, *, resume: bool, replace: bool, token: str | None = None) -> S3Upload:
        made = S3Upload(self, name, mark)
        with self._at(name):
            if token is not None:
                made.join(token)
            elif not resume or not made.find(replace):
                made.begin(marked=resume)
        return made

    def is_open(self, name: str, token: str) -> bool:
        with self._at(name):
            try:
                self.client.list_parts(Bucket=self.bucket, Key=name, UploadId=token, MaxParts=1)
            except self.errors as error:
                if _code(error) in _GONE:
                    return False
                raise
        return True

    def abandon(self, name: str, mark: str) -> None:
        with self._at(name):
            while (made := S3Upload(self, name, mark)).find(None):
                made.abort()

    def read(self, name: str) -> bytes | None:
        """Returns a small object's bytes; None if it is missing."""
        with self._at(name):
            try:
                return bytes(self.client.get_object(Bucket=self.bucket, Key=name)["Body"].read())
            except self.errors as error:
                if _code(error) in ("404", "NoSuchKey", "NotFound"):
                    return None
                raise

    def remove(self, name: str) -> None:
        with self._at(name):
            self.client.delete_object(Bucket=self.bucket, Key=name)

    def changed(self) -> None:
        forget(self.title)


class S3Upload:
    """One multipart upload. `_parts`: number -> the part's entry in the completion request."""

    def __init__(self, store: S3Store, name: str, mark: str) -> None:
        self.store, self.name, self.mark = store, name, mark
        self.done: set[int] = set()
        self._parts: dict[int, dict[str, Any]] = {}
        self._size = 0
        self._at: dict[str, str] = {"Bucket": store.bucket, "Key": name}

    @property
    def _seal(self) -> bytes:
        return f"weighbridge/upload/1 {self.mark}".encode()

    def begin(self, *, marked: bool) -> None:
        found = self.store.client.create_multipart_upload(
            Bucket=self.store.bucket, Key=self.name, Metadata={MARKED: self.mark}, ChecksumAlgorithm="CRC32"
        )
        self._at["UploadId"] = found["UploadId"]
        if marked:
            self.store.client.upload_part(**self._at, PartNumber=_MARK_PART, Body=self._seal)

    @property
    def token(self) -> str:
        return self._at["UploadId"]

    def find(self, replace: bool | None) -> bool:
        """Finds the oldest upload of this mark. Raises RefusedError for one of a different mark; `replace` aborts it
        instead, and None ignores it."""
        seal = hashlib.md5(self._seal, usedforsecurity=False).hexdigest()
        for row in self._open():
            at = {"Bucket": self.store.bucket, "Key": self.name, "UploadId": row["UploadId"]}
            parts = self._listed(at)
            mark = parts.pop(_MARK_PART, None)
            if mark is not None and mark["ETag"].strip('"') == seal:
                self._take_up(row["UploadId"], parts)
                return True
            if replace is not None and mark is not None and mark["Size"] == len(self._seal):
                if not replace:
                    words = f"an unfinished upload of {self.store.title}/{self.name} has other sources or options"
                    raise RefusedError(words, option="--overwrite", hint="start again with --overwrite")
                self.store.client.abort_multipart_upload(**at)
        return False

    def join(self, token: str) -> None:
        """Take part in the upload of a token, which other processes have, too."""
        parts = self._listed({**self._at, "UploadId": token})
        parts.pop(_MARK_PART, None)
        self._take_up(token, parts)

    def _listed(self, at: Mapping[str, str]) -> dict[int, dict[str, Any]]:
        pages = self.store.client.get_paginator("list_parts").paginate(**at)
        return {part["PartNumber"]: part for page in pages for part in page.get("Parts", [])}

    def _take_up(self, token: str, parts: Mapping[int, dict[str, Any]]) -> None:
        self._at["UploadId"] = token
        self._parts = {number: _entry(part) for number, part in parts.items()}
        self.done = {number - 1 for number in parts}

    def _open(self) -> Iterator[dict[str, Any]]:
        """The uploads of this name that aren't complete, oldest first."""
        pages = self.store.client.get_paginator("list_multipart_uploads")
        rows = [
            row
            for page in pages.paginate(Bucket=self.store.bucket, Prefix=self.name)
            for row in page.get("Uploads", [])
            if row["Key"] == self.name
        ]
        yield from sorted(rows, key=lambda row: (str(row.get("Initiated", "")), row["UploadId"]))

    def _is_published(self) -> bool:
        """Whether the object is there as this run, or one of the same bytes, has written it."""
        found = self.store.state(self.name)
        return found is not None and found.mark == self.mark

    def put(self, number: int, data: bytes | bytearray) -> None:
        with S3Errors(f"{self.store.title}/{self.name}"):
            try:
                found = self.store.client.upload_part(**self._at, PartNumber=number + 1, Body=data)
            except self.store.errors:
                if self._is_published():  # by another process with the same plan, which has ended the upload
                    return
                raise
        self._parts[number + 1] = _entry({**found, "PartNumber": number + 1})
        self.done.add(number)

    def copy(self, number: int, source: Source, start: int, size: int) -> bool:
        file = source.file if isinstance(source, RangeSource) else None
        if not isinstance(file, BucketFile) or not file.name.startswith("s3://") or not file.version:
            return False
        bucket = file.name[len("s3://") :].partition("/")[0]
        try:
            found = self.store.client.upload_part_copy(
                **self._at, PartNumber=number + 1, CopySource={"Bucket": bucket, "Key": file.key},
                CopySourceIfMatch=file.version, CopySourceRange=f"bytes={start}-{start + size - 1}",
            )  # fmt: skip
        except self.store.errors:
            return False  # another region, no right to: the bytes go through this machine
        self._parts[number + 1] = _entry({**found["CopyPartResult"], "PartNumber": number + 1})
        self.done.add(number)
        return True

    def complete(self, parts: int, *, replace: bool) -> None:
        more = {} if replace else {"IfNoneMatch": "*"}
        listed = [self._parts[n] for n in range(1, parts + 1) if n in self._parts]
        with S3Errors(f"{self.store.title}/{self.name}"):
            try:
                self.store.client.complete_multipart_upload(**self._at, MultipartUpload={"Parts": listed}, **more)
            except self.store.errors:
                if not self._is_published():
                    raise
                self.abort()

    def abort(self) -> None:
        with S3Errors(f"{self.store.title}/{self.name}"):
            try:
                self.store.client.abort_multipart_upload(**self._at)
            except self.store.errors as error:
                if _code(error) not in _GONE:
                    raise


def _entry(part: Mapping[str, Any]) -> dict[str, Any]:
    checksum = {"ChecksumCRC32": part["ChecksumCRC32"]} if part.get("ChecksumCRC32") else {}
    return {"PartNumber": part["PartNumber"], "ETag": part["ETag"], **checksum}


def to_target(text: str) -> RemotePath:
    """The object or folder of a bucket's address, which needn't be there."""
    return path_of(text, "s3", S3Store)
