"""Buckets as sources, by their URLs. Credentials and endpoints come from the environment, by the names that the
providers' own tools use (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_..., AZURE_...)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from weighbridge.adapters.remote.buckets.gcs_json import JsonTree
from weighbridge.adapters.remote.buckets.objects import ALIASES, BucketErrors, BucketTree
from weighbridge.adapters.remote.extra import check_online, package, same_job
from weighbridge.base.errors import UsageError
from weighbridge.io.location import RemotePath

RETRIES = 5
_CREDENTIALS: Final = (
    *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_PROFILE"),
)


def open_store(scheme: str, bucket: str) -> Any:
    """The bucket. Without credentials in the environment requests to S3 aren't signed, as public buckets want it."""
    stores = package("obstore.store", "reading from a bucket")
    options: dict[str, Any] = {"retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=120)}}
    options |= _OPTIONS[scheme]()
    if str(options.get("endpoint") or options.get("base_url") or "").startswith("http://"):
        options["client_options"] = {"allow_http": True}
    try:
        with BucketErrors(f"{scheme}://{bucket}"):
            return stores.from_url(f"{scheme}://{bucket}", **options)
    except ValueError as error:
        raise UsageError(f"{scheme}://{bucket}: {error}") from None


def _s3_options() -> dict[str, Any]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    signed = any(os.environ.get(name) for name in _CREDENTIALS)
    own = {"endpoint": endpoint, "virtual_hosted_style_request": False} if endpoint else {}
    return own | ({} if signed else {"skip_signature": True})


def _gcs_options() -> dict[str, Any]:
    own = os.environ.get("STORAGE_EMULATOR_HOST")
    return {"base_url": own, "skip_signature": True} if own else {}


def _azure_options() -> dict[str, Any]:
    """What obstore doesn't take from the environment itself: a connection string."""
    names = {"account": "account_name", "key": "account_key", "sas": "sas_key"}
    found: dict[str, Any] = {names[name]: value for name in names if (value := azure_setting(name))}
    return found | ({"endpoint": endpoint} if (endpoint := azure_endpoint()) else {})


_OPTIONS: Final = MappingProxyType({"s3": _s3_options, "gs": _gcs_options, "az": _azure_options})
#: Setting of Azure -> its name in a connection string, and the variables that hold it otherwise.
_AZURE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "account": ("AccountName", "AZURE_STORAGE_ACCOUNT_NAME"),
        "key": ("AccountKey", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
        "sas": ("SharedAccessSignature", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
        "endpoint": ("BlobEndpoint", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "suffix": ("EndpointSuffix",),
    }
)


def azure_setting(name: str) -> str | None:
    """Returns a setting of the storage account, from AZURE_STORAGE_CONNECTION_STRING if set, else from its own
    variable."""
    connection, (within, *variables) = os.environ.get("AZURE_STORAGE_CONNECTION_STRING"), _AZURE[name]
    if connection:
        parts = (part.partition("=") for part in connection.split(";"))
        return next((value for key, _, value in parts if key.strip().lower() == within.lower()), None)
    return next((value for variable in variables if (value := os.environ.get(variable))), None)


def azure_endpoint() -> str | None:
    """Returns the URL of the account's blobs; None if no account is set."""
    account = azure_setting("account")
    given = azure_setting("endpoint")
    if given or account is None:
        return given and given.rstrip("/")
    return f"https://{account}.blob.{azure_setting('suffix') or 'core.windows.net'}"


def _tree(title: str, kind: str, bucket: str) -> BucketTree:
    if kind == "gs" and (emulator := os.environ.get("STORAGE_EMULATOR_HOST")):
        tree = JsonTree(title, emulator if "://" in emulator else f"http://{emulator}", bucket)
        if tree.is_served():
            return tree
    return BucketTree(title, open_store(kind, bucket))


def to_path(text: str) -> RemotePath:
    """The object or folder of a bucket's address."""
    scheme, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    key = key.strip("/")
    if not bucket:
        raise UsageError(f"{text} names no bucket", hint=f"write {scheme}://BUCKET/KEY")
    if any(part in ("", ".", "..") for part in key.split("/")) and key:
        raise UsageError(f"{text}: a name in it is empty, '.' or '..'", hint=f"write {scheme}://BUCKET/KEY")
    check_online(text)
    title = f"{scheme}://{bucket}"
    kind = ALIASES.get(scheme.lower(), scheme.lower())
    tree = same_job((title, os.environ.get("AWS_ENDPOINT_URL")), lambda: _tree(title, kind, bucket))
    root = RemotePath.root(title, tree)
    path: RemotePath = root / key if key else root
    if not path.exists():
        raise FileNotFoundError(2, "no such object or folder", text)
    return path
