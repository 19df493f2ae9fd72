"""What a user points at: a path, or `PATH::tensor`."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.containers.base import Entry, Index
from weighbridge.io.location import is_remote


def split(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """The path and the tensor's name. A file that really has `::` in its name is taken as the file it is."""
    text = os.fspath(path)
    if is_remote(text):
        place, _, name = text.partition("::")
        return resolve_path(place), name or None
    if "::" not in text or os.path.lexists(text):
        return Path(text), None
    parts = text.split("::")
    cuts = range(1, len(parts))  # the file's name, or the tensor's, may have a `::` of its own
    cut = next((i for i in cuts if os.path.lexists("::".join(parts[:i]))), 1)
    return Path("::".join(parts[:cut])), "::".join(parts[cut:])


def entry(index: Index, name: str, path: str | os.PathLike[str]) -> Entry:
    """The tensor of that name. UsageError names the nearest ones where there is none."""
    if name in index:
        return index[name]
    near = get_close_matches(name, list(index.by_name)[:20_000], 3, 0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`wb inspect PATH --tensors` lists them"
    raise UsageError(f"{os.fspath(path)} has no tensor {name!r}", hint=hint)
