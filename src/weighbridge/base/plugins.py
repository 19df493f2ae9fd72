"""Plug-ins: objects that installed packages register under an entry-point group (`weighbridge.formats` ...).

Nothing is searched or imported before `plugins` is called. `importlib.metadata` takes some 30 ms, so it is imported
only if an installed package may register something: that takes 2 ms to find out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ContextDecorator
from functools import cache
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import PluginError, UnsupportedError, WeighbridgeError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FORMATS: Final = "weighbridge.formats"
PACKINGS: Final = "weighbridge.packings"
BLOCK_TYPES: Final = "weighbridge.block_types"
FAMILIES: Final = "weighbridge.families"
PROVIDERS: Final = "weighbridge.providers"


class guard(ContextDecorator):
    """Runs code of `name` in `module`: in a `with`, or as a decorator of a function.

    An unexpected exception of a plug-in becomes a PluginError that names it. Weighbridge's own modules aren't guarded:
    there it is a bug of Weighbridge.
    """

    def __init__(self, name: str, module: str) -> None:
        self.name, self.module = name, module

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        expected = error is None or isinstance(error, (WeighbridgeError, OSError, MemoryError))
        if expected or not isinstance(error, Exception) or is_own(self.module):
            return
        raise failed(self.name, self.module, f"{type(error).__name__}: {error}") from error


def is_own(module: str) -> bool:
    """Whether a module is part of Weighbridge."""
    return module.partition(".")[0] == "weighbridge"


def failed(name: str, module: str, reason: str) -> PluginError:
    package = module.partition(".")[0]
    hint = f"update or uninstall the package that has the module {package}"
    return PluginError(f"the plug-in {name!r} failed: {reason}", hint=hint)


@cache
def plugins(group: str, kind: type = object) -> Mapping[str, Any]:
    """The objects registered under `group`, by entry-point name, in the order of the names; each is a `kind`.

    Raises UnsupportedError if a plug-in can't be loaded or isn't a `kind`, or if two packages register one name.
    """
    # A package in an archive, or behind an import hook, can only be searched by `importlib.metadata`.
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    hidden = any(getattr(finder, "__name__", "") != "PathFinder" for finder in finders)
    if not hidden and not any(_mentions(folder or ".", group.encode()) for folder in sys.path):
        return MappingProxyType({})
    from importlib.metadata import entry_points

    loaded: dict[str, Any] = {}
    for entry in sorted(set(entry_points(group=group)), key=lambda entry: entry.name):
        if entry.name in loaded:
            raise _broken(entry, group, "two packages register this name")
        try:
            plugin = entry.load()
        except Exception as error:  # foreign modules may raise anything on import
            raise _broken(entry, group, f"{type(error).__name__}: {error}") from error
        if not isinstance(plugin, kind):
            raise _broken(entry, group, f"{entry.value} is a {type(plugin).__name__}, not a {kind.__name__}")
        loaded[entry.name] = plugin
    return MappingProxyType(loaded)


_INFO: Final = (".dist-info", "egg-info")  # `name.egg-info`, and `EGG-INFO` of a folder that is an egg


def _mentions(folder: str, group: bytes) -> bool:
    """Whether the entry points of a package in `folder` mention `group`; also true for an archive."""
    try:
        packages = [entry.path for entry in os.scandir(folder) if entry.name.lower().endswith(_INFO)]
    except FileNotFoundError:
        return False
    except OSError:  # an archive
        return True
    for package in packages:
        try:
            with open(f"{package}/entry_points.txt", "rb") as file:
                if group in file.read():
                    return True
        except OSError:
            continue
    return False


def _broken(entry: EntryPoint, group: str, reason: str) -> UnsupportedError:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    hint = f"update or uninstall the package {entry.dist.name}" if entry.dist else None
    return UnsupportedError(f"plug-in {entry.name!r} of {group} ({package}) can't be used: {reason}", hint=hint)
