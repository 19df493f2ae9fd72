"""Azure blobs written as blocks, through azure-storage-blob.

A block's id holds the run's mark and the part's number, so the service's list of uncommitted blocks is the journal.
No request discards blocks: Azure removes uncommitted ones after a week, and when the blob is written. Reference:
learn.microsoft.com/rest/api/storageservices, put-block and put-block-list.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from weighbridge.adapters.remote.buckets.reading import azure_endpoint, azure_setting
from weighbridge.adapters.remote.buckets.targets import MARKED, part_size, path_of
from weighbridge.adapters.remote.extra import forget, package
from weighbridge.base.errors import RefusedError, RemoteError
from weighbridge.io.location import RemotePath
from weighbridge.io.sink.upload import ObjectState
from weighbridge.io.source import Source

_PURPOSE: Final = "writing to az://"
_MARKED: Final = MARKED.replace("-", "_")  # names of metadata are identifiers
_RESUMED, _ONCE = "r", "o"  # the first letter of a block's id
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


class AzureErrors:
    """Errors of azure-storage-blob as errors with a next step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        errors = package("azure.core.exceptions", _PURPOSE, "az")
        if not isinstance(error, errors.AzureError):
            return
        code = str(getattr(error, "error_code", None) or getattr(error, "status_code", None) or "")
        words = next(iter(str(error.message).splitlines()), type(error).__name__)
        if isinstance(error, errors.ResourceExistsError | errors.ResourceModifiedError):
            raise FileExistsError(17, "there is a blob already", self.name) from None
        if isinstance(error, errors.ClientAuthenticationError) or code in ("403", "AuthorizationFailure"):
            raise RemoteError(f"{self.name}: access is denied", hint=_LOG_IN) from None
        hint = _HINTS.get(code, "check the account and the network, and try again")
        raise RemoteError(f"{self.name}: {words[:300]}", hint=hint) from None


class AzureStore:
    """One container."""

    def __init__(self, container: str) -> None:
        self.title = f"az://{container}"
        self.container = _container(container)
        self.errors = package("azure.core.exceptions", _PURPOSE, "az")
        self.blobs = package("azure.storage.blob", _PURPOSE, "az")

    def _at(self, name: str) -> AzureErrors:
        return AzureErrors(f"{self.title}/{name}" if name else self.title)

    def part_size(self, size: int) -> int:
        return part_size(size)

    def state(self, name: str) -> ObjectState | None:
        with self._at(name):
            try:
                found = self.container.get_blob_client(name).get_blob_properties()
            except self.errors.ResourceNotFoundError:
                return None
        return ObjectState(found.size, (found.metadata or {}).get(_MARKED, ""))

    def below(self, folder: str) -> Collection[str]:
        prefix = f"{folder}/" if folder else ""
        with self._at(folder):
            names = self.container.list_blob_names(name_starts_with=prefix or None)
            return {name[len(prefix) :] for name in names} - {""}

    def put(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        blob = self.container.get_blob_client(name)
        with self._at(name):
            try:
                blob.upload_blob(bytes(data), overwrite=replace, metadata={_MARKED: mark})
            except self.errors.AzureError:
                if self.state(name) != ObjectState(len(data), mark):
                    raise

    def upload(self, name: str, mark: str, *, resume: bool, replace: bool, token: str | None = None) -> AzureUpload:
        made = AzureUpload(self, name, mark, _RESUMED if resume else _ONCE)
        if resume:
            made.find(replace or token is not None)
        return made

    def is_open(self, name: str, token: str) -> bool:
        """Returns True: blocks carry the run's mark and can be sent regardless of others."""
        return True

    def abandon(self, name: str, mark: str) -> None:
        """Nothing: Azure removes blocks that aren't committed."""

    def read(self, name: str) -> bytes | None:
        with self._at(name):
            try:
                return bytes(self.container.get_blob_client(name).download_blob().readall())
            except self.errors.ResourceNotFoundError:
                return None

    def remove(self, name: str) -> None:
        with self._at(name), suppress(self.errors.ResourceNotFoundError):
            self.container.get_blob_client(name).delete_blob()

    def changed(self) -> None:
        forget(self.title)


class AzureUpload:
    """The blocks of one blob. Ids: the kind of run, its mark (32 characters), the part's number (5)."""

    def __init__(self, store: AzureStore, name: str, mark: str, kind: str) -> None:
        self.store, self.name, self.mark, self.kind = store, name, mark, kind
        self.blob = store.container.get_blob_client(name)
        self.done: set[int] = set()

    @property
    def token(self) -> str:
        return self.mark

    def _id(self, number: int) -> str:
        return f"{self.kind}{self.mark}{number:05d}"

    def find(self, replace: bool) -> None:
        """Finds the blocks of this mark. Raises RefusedError for blocks of a different mark, unless `replace`: Azure
        removes them when the blob is written."""
        with AzureErrors(f"{self.store.title}/{self.name}"):
            try:
                _, blocks = self.blob.get_block_list("uncommitted")
            except self.store.errors.ResourceNotFoundError:
                return
        ids = [str(block.id) for block in blocks]
        own = self._id(0)[:-5]
        if not replace and any(i.startswith(_RESUMED) and len(i) == len(own) + 5 and i[:-5] != own for i in ids):
            words = f"an unfinished upload of {self.store.title}/{self.name} has other sources or options"
            raise RefusedError(words, option="--overwrite", hint="start again with --overwrite")
        self.done = {int(i[-5:]) for i in ids if i.startswith(own)}

    def put(self, number: int, data: bytes | bytearray) -> None:
        with AzureErrors(f"{self.store.title}/{self.name}"):
            self.blob.stage_block(self._id(number), bytes(data), length=len(data))
        self.done.add(number)

    def copy(self, number: int, source: Source, start: int, size: int) -> bool:
        """Returns False: the service copies only from signed URLs, which are credentials."""
        return False

    def complete(self, parts: int, *, replace: bool) -> None:
        listed = [self.store.blobs.BlobBlock(self._id(number)) for number in range(parts)]
        missing = package("azure.core", _PURPOSE, "az").MatchConditions.IfMissing
        only = {} if replace else {"match_condition": missing}
        with AzureErrors(f"{self.store.title}/{self.name}"):
            try:
                self.blob.commit_block_list(listed, metadata={_MARKED: self.mark}, **only)
            except self.store.errors.AzureError:
                found = self.store.state(self.name)
                if found is not None and found.mark == self.mark:
                    return  # another process with the same plan has committed them
                if found is not None and not replace:  # whoever wrote it has also removed our blocks
                    raise FileExistsError(17, "there is a blob already", self.name) from None
                raise

    def abort(self) -> None:
        """Nothing: Azure removes blocks that aren't committed."""


def to_target(text: str) -> RemotePath:
    """The blob or folder of a container's address, which needn't be there."""
    return path_of(text, "az", AzureStore)
