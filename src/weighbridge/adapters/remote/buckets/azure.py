"""Azure blobs written as blocks, through azure-storage-blob.

A block's id holds the run's mark and the part's number, so the service's list of uncommitted blocks is the journal.
No request discards blocks: Azure removes uncommitted ones after a week, and when the blob is written. Reference:
learn.microsoft.com/rest/api/storageservices, put-block and put-block-list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from weighbridge.adapters.remote.buckets.reading import azure_endpoint, azure_setting
from weighbridge.adapters.remote.buckets.targets import MARKED, BucketCalls, Unfinished, path_of
from weighbridge.adapters.remote.extra import package
from weighbridge.base.errors import RemoteError
from weighbridge.io.location import RemotePath
from weighbridge.io.sink.upload import ObjectState

_PURPOSE: Final = "writing to az://"
_MARKED: Final = MARKED.replace("-", "_")  # names of metadata are identifiers
_RESUMED, _ONCE = "r", "o"  # the first letter of a block's id
_DIGITS: Final = 5  # of a part's number
TRIES: Final = 6
_HINTS: Final[Mapping[str, str]] = MappingProxyType({"ContainerNotFound": "make the container first"})
_LOG_IN: Final = (
    "set AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or "
    "AZURE_STORAGE_CONNECTION_STRING, or run az login"
)


def _container(name: str) -> Any:
    """The container's client, by the variables of Azure's own tools."""
    client = package("azure.storage.blob", _PURPOSE, "az").ContainerClient
    retries = {"retry_total": TRIES, "initial_backoff": 1, "increment_base": 2}
    if connection := os.environ.get("AZURE_STORAGE_CONNECTION_STRING"):
        try:
            return client.from_connection_string(connection, name, **retries)
        except ValueError as error:
            raise RemoteError(f"AZURE_STORAGE_CONNECTION_STRING: {error}", hint=_LOG_IN) from None
    endpoint = azure_endpoint()
    if endpoint is None:
        raise RemoteError(f"az://{name}: no storage account is named", hint=_LOG_IN)
    credential: Any = azure_setting("key")
    if credential is None and (token := azure_setting("sas")):
        credential = package("azure.core.credentials", _PURPOSE, "az").AzureSasCredential(token.removeprefix("?"))
    if credential is None:
        credential = package("azure.identity", "writing to az:// without a key", "az").DefaultAzureCredential()
    return client(endpoint, name, credential=credential, **retries)


class AzureCalls(BucketCalls):
    """One container. The token of an upload begins the ids of its blocks: "r" if the run is resumable, else "o", then
    the run's mark (32 characters). The part's number (5 digits) follows."""

    def __init__(self, container: str) -> None:
        self.title = f"az://{container}"
        self.container = _container(container)
        self.errors = package("azure.core.exceptions", _PURPOSE, "az")
        self.failures = (self.errors.AzureError,)

    def explain(self, name: str, error: Any) -> Exception:
        code = str(getattr(error, "error_code", None) or getattr(error, "status_code", None) or "")
        words = next(iter(str(error.message).splitlines()), type(error).__name__)
        if isinstance(error, self.errors.ResourceExistsError | self.errors.ResourceModifiedError):
            return FileExistsError(17, "there is a blob already", name)
        if isinstance(error, self.errors.ClientAuthenticationError) or code in ("403", "AuthorizationFailure"):
            return RemoteError(f"{name}: access is denied", hint=_LOG_IN)
        hint = _HINTS.get(code, "check the account and the network, and try again")
        return RemoteError(f"{name}: {words[:300]}", hint=hint)

    def state(self, name: str) -> ObjectState | None:
        try:
            blob = self.container.get_blob_client(name).get_blob_properties()
        except self.errors.ResourceNotFoundError:
            return None
        return ObjectState(blob.size, (blob.metadata or {}).get(_MARKED, ""))

    def names(self, prefix: str) -> Iterable[str]:
        return self.container.list_blob_names(name_starts_with=prefix or None)  # type: ignore[no-any-return]

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self.container.get_blob_client(name).download_blob().readall())
        except self.errors.ResourceNotFoundError:
            return None

    def send(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        blob = self.container.get_blob_client(name)
        blob.upload_blob(bytes(data), overwrite=replace, metadata={_MARKED: mark})

    def delete(self, name: str) -> None:
        with suppress(self.errors.ResourceNotFoundError):
            self.container.get_blob_client(name).delete_blob()

    def start(self, name: str, mark: str, *, resume: bool) -> str:
        return f"{_RESUMED if resume else _ONCE}{mark}"

    def _blocks(self, name: str) -> list[str]:
        """The ids of the uncommitted blocks."""
        try:
            _, blocks = self.container.get_blob_client(name).get_block_list("uncommitted")
        except self.errors.ResourceNotFoundError:
            return []
        return [str(block.id) for block in blocks]

    def unfinished(self, name: str, mark: str) -> Iterable[Unfinished]:
        """The runs that left blocks; the one with this mark is the last."""
        blocks, mine = self._blocks(name), f"{_RESUMED}{mark}"
        runs = {i[:-_DIGITS] for i in blocks if i.startswith(_RESUMED) and len(i) == len(mine) + _DIGITS}
        ordered = sorted(runs, key=lambda run: run == mine)
        return [Unfinished(run, run == mine, _numbered(blocks, run)) for run in ordered]

    def parts(self, name: str, token: str) -> Mapping[int, Any]:
        return _numbered(self._blocks(name), token)

    def put_part(self, name: str, token: str, number: int, data: bytes | bytearray) -> Any:
        block = f"{token}{number:0{_DIGITS}d}"
        self.container.get_blob_client(name).stage_block(block, bytes(data), length=len(data))
        return block

    def complete(self, name: str, token: str, parts: Sequence[Any], mark: str, *, replace: bool) -> None:
        missing = package("azure.core", _PURPOSE, "az").MatchConditions.IfMissing
        only = {} if replace else {"match_condition": missing}
        listed = list(map(package("azure.storage.blob", _PURPOSE, "az").BlobBlock, parts))
        self.container.get_blob_client(name).commit_block_list(listed, metadata={_MARKED: mark}, **only)

    def abort(self, name: str, token: str) -> None:
        """Nothing: Azure removes blocks that aren't committed."""


def _numbered(blocks: Iterable[str], token: str) -> dict[int, str]:
    return {int(block[-_DIGITS:]): block for block in blocks if block.startswith(token)}


def to_target(text: str) -> RemotePath:
    return path_of(text, "az", AzureCalls)
