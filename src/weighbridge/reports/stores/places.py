"""Where other tools keep models on this machine, by their variables and defaults."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.adapters.remote import lmstudio, ollama
from weighbridge.io.location import check_local

HUB: Final = "hub"
FOLDER: Final = "folder"
#: Folders below a root that may hold a model (publisher/model/variant) or a store (.cache/huggingface/hub).
DEPTH: Final = 3


class StorePlace(NamedTuple):
    """A root folder, and the kind of store that it is."""

    store: str
    root: Path


def hub_roots() -> Iterator[Path]:
    """The Hub's cache (huggingface_hub, constants.py), and the one that llama.cpp fills where LLAMA_CACHE is set."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    yield _expanded(named) if named else _hf_home() / "hub"
    if own := os.environ.get("LLAMA_CACHE"):
        yield _expanded(own)


def _hf_home() -> Path:
    if home := os.environ.get("HF_HOME"):
        return _expanded(home)
    base = os.environ.get("XDG_CACHE_HOME")
    return (_expanded(base) if base else Path.home() / ".cache") / "huggingface"


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def llama_cpp_root() -> Path:
    """The folder of llama.cpp's downloads by URL (common.cpp, fs_get_cache_directory)."""
    if own := os.environ.get("LLAMA_CACHE"):
        return _expanded(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "llama.cpp"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llama.cpp"
    base = os.environ.get("XDG_CACHE_HOME")
    return (_expanded(base) if base else Path.home() / ".cache") / "llama.cpp"


_ROOTS: Final[tuple[tuple[str, Callable[[], Iterator[Path]]], ...]] = (
    (HUB, hub_roots),
    ("ollama", lambda: iter([ollama.models_folder()])),
    ("lmstudio", lambda: iter([lmstudio.models_folder()])),
    ("llama.cpp", lambda: iter([llama_cpp_root()])),
)


def places() -> tuple[StorePlace, ...]:
    """The stores that are there."""
    found = (StorePlace(store, root) for store, roots in _ROOTS for root in roots())
    return tuple(dict.fromkeys(place for place in found if place.root.is_dir()))


def roots_of(paths: Sequence[str | os.PathLike[str]]) -> tuple[StorePlace, ...]:
    """The folders that were named, and the stores in them, each with its kind by its layout; else the stores of this
    machine. FileNotFoundError where there is none, UsageError for an address."""
    for path in paths:
        check_local(path)
    return tuple(place for path in paths for place in _at(Path(path))) or places()


def _at(root: Path) -> Iterator[StorePlace]:
    if not root.exists():
        raise FileNotFoundError(2, "no such file or folder", str(root))
    kind = kind_of(root)
    yield StorePlace(kind, root)
    if kind == FOLDER:
        yield from _stores_below(root, DEPTH)


def _stores_below(folder: Path, depth: int) -> Iterator[StorePlace]:
    for child in sorted(_subfolders(folder)) if depth else ():
        kind = kind_of(child)
        if kind == FOLDER:
            yield from _stores_below(child, depth - 1)
        else:
            yield StorePlace(kind, child)


def _subfolders(folder: Path) -> list[Path]:
    """No links; none of a folder that can't be read, which who lists it says."""
    with suppress(PermissionError, NotADirectoryError), os.scandir(folder) as found:
        return [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
    return []


def kind_of(root: Path) -> str:
    """The kind of store that a folder is, by its layout; FOLDER where it is none."""
    names = {path.name for path in _subfolders(root)}
    if any(name.startswith("models--") and (root / name / "snapshots").is_dir() for name in names):
        return HUB
    return "ollama" if {"manifests", "blobs"} <= names else FOLDER


def not_readable(error: OSError) -> str:
    """What a listing shows for a folder or file that it can't read."""
    why = "not readable by you" if isinstance(error, PermissionError) else error.strerror or str(error)
    return f"{error.filename}: {why}"
