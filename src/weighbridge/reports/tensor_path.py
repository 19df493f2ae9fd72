"""Parses `PATH` and `PATH::tensor`, the argument of several commands."""

from __future__ import annotations

import os
from pathlib import Path

from weighbridge.base.errors import UsageError
from weighbridge.base.words import suggest
from weighbridge.containers.base import Entry, Index
from weighbridge.io.location import is_remote, path_text, split_tensor
from weighbridge.models.archives import resolve


def split(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Splits an argument into the path and the tensor's name. An existing file whose name contains `::` isn't split."""
    text = os.fspath(path)
    if is_remote(text):
        place, _, name = split_tensor(text)
        return resolve(place), name or None
    if "::" not in text or os.path.lexists(text):
        return resolve(text), None
    parts = text.split("::")
    cuts = range(1, len(parts))  # the name of the file or of the tensor may contain `::`
    cut = next((i for i in cuts if os.path.lexists("::".join(parts[:i]))), 1)
    return resolve("::".join(parts[:cut])), "::".join(parts[cut:])


def names_tensor(path: str) -> bool:
    """Returns whether an argument has the form `PATH::tensor`."""
    return bool(split_tensor(path)[1])


def entry(index: Index, name: str, path: str | os.PathLike[str]) -> Entry:
    """Returns the tensor with this name. Raises UsageError, with similar names, if there is none."""
    if name in index:
        return index[name]
    hint = suggest(name, index.by_name, "`wb inspect PATH --tensors` lists them")
    raise UsageError(f"{path_text(path)} has no tensor {name!r}", hint=hint)
