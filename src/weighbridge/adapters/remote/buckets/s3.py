"""S3 objects written as parts, through boto3: obstore can't send a part of an upload that another process began.
Works with any store that has S3's multipart calls (AWS_ENDPOINT_URL: Google Cloud Storage, R2, MinIO, Ceph).

Part 10,000 of a resumable upload is its mark. Its ETag, the MD5 of the run's fingerprint, is the only information
about content in a listing, and completion drops parts that it doesn't name. Data has parts 1 to 9,999.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.adapters.remote.buckets.objects import BucketFile
from weighbridge.adapters.remote.buckets.targets import MARKED, BucketCalls, Unfinished, path_of
from weighbridge.adapters.remote.extra import package
from weighbridge.base.errors import RemoteError
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
_MISSING: Final = frozenset({"404", "NoSuchKey", "NotFound"})
_GONE: Final = "NoSuchUpload"
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


def _code(error: Any) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def _seal(mark: str) -> bytes:
    return f"weighbridge/upload/1 {mark}".encode()


def _entry(part: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The part's entry in the completion request."""
    checksum = {"ChecksumCRC32": part["ChecksumCRC32"]} if part.get("ChecksumCRC32") else {}
    return {"PartNumber": number + 1, "ETag": part["ETag"], **checksum}


class S3Calls(BucketCalls):
    """One bucket."""

    def __init__(self, bucket: str) -> None:
        self.bucket, self.title = bucket, f"s3://{bucket}"
        self.client = _client()
        errors = package("botocore.exceptions", "writing to a bucket")
        self.failures = (errors.ClientError, errors.BotoCoreError)

    def explain(self, name: str, error: Any) -> Exception:
        if not (code := _code(error)):
            hint = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), AWS_ENDPOINT_URL"
            return RemoteError(f"{name}: {error}", hint=hint)
        if code in _THERE:
            return FileExistsError(17, "there is an object already", name)
        hint = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy" if code in _DENIED \
            else _HINTS.get(code, "try again")  # fmt: skip
        words = error.response["Error"].get("Message", "")
        return RemoteError(f"{name}: the store answers {code} {words}".rstrip(), hint=hint)

    def state(self, name: str) -> ObjectState | None:
        try:
            head = self.client.head_object(Bucket=self.bucket, Key=name)
        except self.failures as error:
            if _code(error) in _MISSING:
                return None
            raise
        return ObjectState(head["ContentLength"], head.get("Metadata", {}).get(MARKED, ""))

    def _rows(self, call: str, field: str, **at: str) -> list[dict[str, Any]]:
        """The rows of all pages of a list."""
        pages = self.client.get_paginator(call).paginate(Bucket=self.bucket, **at)
        return [row for page in pages for row in page.get(field, [])]

    def names(self, prefix: str) -> Iterable[str]:
        return [row["Key"] for row in self._rows("list_objects_v2", "Contents", Prefix=prefix)]

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self.client.get_object(Bucket=self.bucket, Key=name)["Body"].read())
        except self.failures as error:
            if _code(error) in _MISSING:
                return None
            raise

    def send(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        self.client.put_object(Bucket=self.bucket, Key=name, Body=data, Metadata={MARKED: mark}, **_only_new(replace))

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=name)

    def start(self, name: str, mark: str, *, resume: bool) -> str:
        made = self.client.create_multipart_upload(
            Bucket=self.bucket, Key=name, Metadata={MARKED: mark}, ChecksumAlgorithm="CRC32"
        )
        token: str = made["UploadId"]
        if resume:
            self.put_part(name, token, _MARK_PART - 1, _seal(mark))
        return token

    def unfinished(self, name: str, mark: str) -> Iterator[Unfinished]:
        """The uploads with a mark, oldest first."""
        rows = [row for row in self._rows("list_multipart_uploads", "Uploads", Prefix=name) if row["Key"] == name]
        seal = _seal(mark)
        etag = hashlib.md5(seal, usedforsecurity=False).hexdigest()
        for row in sorted(rows, key=lambda row: (str(row.get("Initiated", "")), row["UploadId"])):
            parts = self._listed(name, row["UploadId"])
            marked = parts.pop(_MARK_PART - 1, None)
            mine = marked is not None and marked["ETag"].strip('"') == etag
            if mine or (marked is not None and marked["Size"] == len(seal)):
                yield Unfinished(row["UploadId"], mine, {n: _entry(part, n) for n, part in parts.items()})

    def _listed(self, name: str, token: str) -> dict[int, dict[str, Any]]:
        return {row["PartNumber"] - 1: row for row in self._rows("list_parts", "Parts", Key=name, UploadId=token)}

    def parts(self, name: str, token: str) -> Mapping[int, Any]:
        return {n: _entry(part, n) for n, part in self._listed(name, token).items() if n != _MARK_PART - 1}

    def put_part(self, name: str, token: str, number: int, data: bytes | bytearray) -> Any:
        at = {"Bucket": self.bucket, "Key": name, "UploadId": token, "PartNumber": number + 1}
        return _entry(self.client.upload_part(**at, Body=data), number)

    def copy_part(self, name: str, token: str, number: int, source: Source, start: int, size: int) -> Any:
        file = source.file if isinstance(source, RangeSource) else None
        if not isinstance(file, BucketFile) or not file.name.startswith("s3://") or not file.version:
            return None
        bucket = file.name[len("s3://") :].partition("/")[0]
        try:
            made = self.client.upload_part_copy(
                Bucket=self.bucket, Key=name, UploadId=token, PartNumber=number + 1,
                CopySource={"Bucket": bucket, "Key": file.key},
                CopySourceIfMatch=file.version, CopySourceRange=f"bytes={start}-{start + size - 1}",
            )  # fmt: skip
        except self.failures:
            return None  # another region, no right to: the bytes go through this machine
        return _entry(made["CopyPartResult"], number)

    def complete(self, name: str, token: str, parts: Sequence[Any], mark: str, *, replace: bool) -> None:
        self.client.complete_multipart_upload(
            Bucket=self.bucket, Key=name, UploadId=token, MultipartUpload={"Parts": parts}, **_only_new(replace)
        )

    def abort(self, name: str, token: str) -> None:
        try:
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=name, UploadId=token)
        except self.failures as error:
            if _code(error) != _GONE:
                raise

    def is_open(self, name: str, token: str) -> bool:
        try:
            self.client.list_parts(Bucket=self.bucket, Key=name, UploadId=token, MaxParts=1)
        except self.failures as error:
            if _code(error) == _GONE:
                return False
            raise
        return True


def _only_new(replace: bool) -> dict[str, str]:
    return {} if replace else {"IfNoneMatch": "*"}


def to_target(text: str) -> RemotePath:
    return path_of(text, "s3", S3Calls)
