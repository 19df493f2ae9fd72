"""Plug-ins: objects that installed packages register under an entry-point group (`weighbridge.formats` ...).

Nothing is searched or imported before `plugins` is called: call it only when the built-in tables have no answer.
`importlib.metadata` takes some 30 ms, so it is imported only if a package that is installed may register something.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FORMATS: Final = "weighbridge.formats"
PACKINGS: Final = "weighbridge.packings"
FAMILIES: Final = "weighbridge.families"
PROVIDERS: Final = "weighbridge.providers"


@cache
def plugins(group: str, kind: type = object) -> Mapping[str, Any]:
    """The objects registered under `group`, by entry-point name, in the order of the names; each is a `kind`.
    UnsupportedError names the plug-in that can't be loaded, that is something else, or that two packages register."""
    if not _registered(group.encode()):
        return MappingProxyType({})
    from importlib.metadata import entry_points

    loaded: dict[str, Any] = {}
    for entry in sorted(set(entry_points(group=group)), key=lambda entry: entry.name):
        if entry.name in loaded:
            raise _broken(entry, group, "two packages register this name")
        loaded[entry.name] = _load(entry, group, kind)
    return MappingProxyType(loaded)


_INFO: Final = (".dist-info", "egg-info")  # `name.egg-info`, and `EGG-INFO` of a folder that is an egg


def _registered(group: bytes) -> bool:
    """Whether an installed package may register something under `group`: one names it, or lies where only
    `importlib.metadata` can look, in an archive or behind an import hook."""
    own = (finder for finder in sys.meta_path if hasattr(finder, "find_distributions"))
    return any(getattr(finder, "__name__", "") != "PathFinder" for finder in own) or any(
        _names(folder or ".", group) for folder in sys.path
    )


def _names(folder: str, group: bytes) -> bool:
    try:
        packages = [entry.path for entry in os.scandir(folder) if entry.name.lower().endswith(_INFO)]
    except FileNotFoundError:
        return False
    except OSError:  # an archive
        return True
    return any(group in _read(f"{package}/entry_points.txt") for package in packages)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _load(entry: EntryPoint, group: str, kind: type) -> Any:
    try:
        loaded = entry.load()
    except Exception as error:  # foreign modules may raise anything on import
        raise _broken(entry, group, f"{type(error).__name__}: {error}") from error
    if not isinstance(loaded, kind):
        raise _broken(entry, group, f"{entry.value} is a {type(loaded).__name__}, not a {kind.__name__}")
    return loaded


def _broken(entry: EntryPoint, group: str, why: str) -> UnsupportedError:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    hint = f"update or uninstall the package {entry.dist.name}" if entry.dist else None
    return UnsupportedError(f"plug-in {entry.name!r} of {group} ({package}) can't be used: {why}", hint=hint)
