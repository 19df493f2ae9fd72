"""The argument of several commands: a path, or `PATH::tensor`."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.containers.base import Entry, Index
from weighbridge.io.location import is_remote


def split(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """The path and the tensor's name. If a file with `::` in its name exists, it is that file."""
    text = os.fspath(path)
    if is_remote(text):
        place, _, name = text.partition("::")
        return resolve_path(place), name or None
    if "::" not in text or os.path.lexists(text):
        return Path(text), None
    parts = text.split("::")
    cuts = range(1, len(parts))  # the name of the file or of the tensor may contain `::`
    cut = next((i for i in cuts if os.path.lexists("::".join(parts[:i]))), 1)
    return Path("::".join(parts[:cut])), "::".join(parts[cut:])


def entry(index: Index, name: str, path: str | os.PathLike[str]) -> Entry:
    """The tensor with that name. UsageError suggests similar names."""
    if name in index:
        return index[name]
    near = get_close_matches(name, list(index.by_name)[:20_000], 3, 0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`wb inspect PATH --tensors` lists them"
    raise UsageError(f"{os.fspath(path)} has no tensor {name!r}", hint=hint)
