"""The meaning of path schemes: one table, and `resolve_path`, which handles every path from a user."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.io.location import RemotePath, StoredPath, TreePath, check_local, is_remote, parse_address

_HERE: Final = "weighbridge.adapters.remote"
#: Scheme -> the module whose `to_path` reads such an address.
SCHEMES: Final = MappingProxyType(
    {
        **{"hf": "hub", "https": "web", "http": "web", "ollama": "ollama", "lmstudio": "lmstudio"},
        **dict.fromkeys(("s3", "gs", "gcs", "az", "abfs"), "buckets.reading"),
    }
)
#: Scheme -> the module whose `to_target` writes to such an address.
TARGETS: Final = MappingProxyType(
    {
        **{"s3": "buckets.s3", "gs": "buckets.gcs", "gcs": "buckets.gcs", "az": "buckets.azure"},
        **{"abfs": "buckets.azure", "hf": "hub_upload"},
    }
)
_RESOLVED: Final = (TreePath, StoredPath)
_HUB: Final = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """The path that a user names: on this machine, or elsewhere by its scheme. UsageError for an unknown scheme."""
    if isinstance(path, _RESOLVED):
        return path
    text = os.fspath(path)
    if is_remote(text):
        from weighbridge.adapters.remote.credentials import without_credentials  # late: loads http.client and ssl

        address = without_credentials(text)
        scheme = address.partition("://")[0].lower()
        if scheme in ("http", "https") and parse_address(address).hostname in _HUB:
            scheme = "hf"
        if scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise UsageError(f"{scheme}:// isn't a scheme that is read", hint=f"known: {known}")
        read: Callable[[str], Path] = import_module(f"{_HERE}.{SCHEMES[scheme]}").to_path
        return read(address)
    return path if isinstance(path, Path) else Path(text)


def local_path(path: str | os.PathLike[str]) -> Path:
    """Returns the local path for a user's path; for a URL, its copy in a local cache or store. Raises UsageError if
    there is none."""
    text = os.fspath(path)
    scheme = text.partition("://")[0].lower() if is_remote(text) else ""
    if scheme in ("hf", "ollama"):
        found: Path | None = import_module(f"{_HERE}.{SCHEMES[scheme]}").stored_path(text)
    else:
        found = resolve_path(path) if scheme in ("", "lmstudio") else None
    if found is None or isinstance(found, RemotePath):
        check_local(text)
        raise AssertionError  # it has raised
    return found


def resolve_target(path: str | os.PathLike[str]) -> Path:
    """The target that a user names: on this machine, or elsewhere by its scheme. UsageError for a scheme that isn't
    written to."""
    if isinstance(path, RemotePath):
        return path
    text = os.fspath(path)
    if not is_remote(text):
        return Path(text)
    scheme = text.partition("://")[0].lower()
    if scheme not in TARGETS:
        known = ", ".join(f"{name}://" for name in TARGETS)
        raise UsageError(f"{scheme}:// isn't a scheme that is written to", hint=f"a path, {known}")
    made: Path = import_module(f"{_HERE}.{TARGETS[scheme]}").to_target(text)
    return made
