"""Selects the provider for a source: this package's over files or arrays, or one from another package.

A package adds a backend under the entry point group `weighbridge.providers`: a callable `(source, names, options,
quantization) -> Provider`. Select it by name (`backend="name"`), or by a prefix with a colon if no file has that
path (`name:rest`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.plugins import PROVIDERS, plugins
from weighbridge.models.model import SourceOptions
from weighbridge.providers.arrays import ArrayProvider
from weighbridge.providers.base import Provider, ProviderOptions
from weighbridge.providers.files import open_files

#: The backend of this package.
FILES: Final = "files"
Opener = Callable[[Any, str, ProviderOptions, Mapping[str, Any] | None], Provider]


def open_provider(
    source: Any, names: str, options: ProviderOptions, quantization: Mapping[str, Any] | None, backend: str | None,
    rank: tuple[int, int] | None = None, config: Any = None,
) -> Provider:  # fmt: skip
    """The provider of a source. UsageError if no backend has this name, or for a rank or a config of anything but
    files."""
    backend = "arrays" if isinstance(source, Mapping) else backend or _prefix(source) or FILES
    for name, value in (("rank", rank), ("config", config)):
        if value is not None and backend != FILES:
            raise UsageError(f"{name} doesn't apply to {backend}", hint="it applies to files and folders")
    if isinstance(source, Mapping):
        from weighbridge.adapters.arrays import nodes_of

        return ArrayProvider(nodes_of(source), options=options)
    if backend == FILES:
        return open_files(source, names, options, quantization, SourceOptions(config=config), rank)
    known: Mapping[str, Opener] = plugins(PROVIDERS)
    if backend not in known:
        raise UsageError(f"no provider is called {backend!r}", hint=f"known: {', '.join((FILES, *known))}")
    found = known[backend](source, names, options, quantization)
    if not isinstance(found, Provider):
        raise UnsupportedError(f"the provider {backend!r} gives a {type(found).__name__}, not a Provider")
    return found


def _prefix(source: Any) -> str | None:
    """Returns the backend that a source names before a colon, if no file has that name."""
    text = os.fspath(source)
    name, colon, _ = text.partition(":")
    return name if colon and len(name) > 1 and not os.path.exists(text) and name in plugins(PROVIDERS) else None
