"""The folders in which other tools store models on this machine, by their environment variables and defaults."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.adapters.remote import lmstudio, ollama
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.io.location import RemotePath, check_local

HUB: Final = "hub"
FOLDER: Final = "folder"
_OLLAMA: Final = "ollama://"
#: The depth of folders that may hold a model (publisher/model/variant) or a store (.cache/huggingface/hub).
DEPTH: Final = 3


class StorePlace(NamedTuple):
    """A root folder and its kind of store. `only`: the name of the one model that was asked for."""

    store: str
    root: Path
    only: str = ""


def hub_roots() -> Iterator[Path]:
    """Yields the Hub's cache (huggingface_hub, constants.py), and the one that llama.cpp uses if LLAMA_CACHE is set."""
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    home = os.environ.get("HF_HOME")
    yield _expand(cache) if cache else (_expand(home) if home else _user_cache() / "huggingface") / "hub"
    if llama_cache := os.environ.get("LLAMA_CACHE"):
        yield _expand(llama_cache)


def _expand(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return _expand(base) if base else Path.home() / ".cache"


def llama_cpp_root() -> Path:
    """Returns the folder of llama.cpp's downloads by URL (common.cpp, fs_get_cache_directory)."""
    if llama_cache := os.environ.get("LLAMA_CACHE"):
        return _expand(llama_cache)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "llama.cpp"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llama.cpp"
    return _user_cache() / "llama.cpp"


_ROOTS: Final[tuple[tuple[str, Callable[[], Iterator[Path]]], ...]] = (
    (HUB, hub_roots),
    ("ollama", lambda: iter([ollama.models_folder()])),
    ("lmstudio", lambda: iter([lmstudio.models_folder()])),
    ("llama.cpp", lambda: iter([llama_cpp_root()])),
)


def places() -> tuple[StorePlace, ...]:
    """Returns the existing stores."""
    candidates = (StorePlace(store, root) for store, roots in _ROOTS for root in roots())
    return tuple(dict.fromkeys(place for place in candidates if place.root.is_dir()))


def roots_of(paths: Sequence[str | os.PathLike[str]], *, elsewhere: bool = False) -> tuple[StorePlace, ...]:
    """Returns the folders `paths` and the stores in them, each once with its kind, or by default the stores of this
    machine. Raises FileNotFoundError for a missing folder, and UsageError for a remote address unless `elsewhere`."""
    for path in () if elsewhere else paths:
        check_local(path)
    roots: dict[Path, StorePlace] = {}
    for path, root in zip(paths, map(resolve_path, paths), strict=True):
        if not root.exists():
            raise FileNotFoundError(2, "no such file or folder", str(root))
        if elsewhere and (address := os.fspath(path)).startswith(_OLLAMA):
            name, is_here = str(ollama.name_of(address)), not isinstance(root, RemotePath)
            store = Path(os.fspath(root)).parent.parent if is_here else root  # of ROOT/blobs/DIGEST
            roots.setdefault(Path(address), StorePlace("ollama" if is_here else FOLDER, store, name))
            continue
        kind = kind_of(root)
        for place in (StorePlace(kind, root), *(_stores_below(root, DEPTH) if kind == FOLDER else ())):
            roots.setdefault(place.root if isinstance(place.root, RemotePath) else place.root.resolve(), place)
    return tuple(roots.values()) or places()


def _stores_below(folder: Path, depth: int) -> Iterator[StorePlace]:
    for child in sorted(_subfolders(folder)) if depth else ():
        kind = kind_of(child)
        if kind == FOLDER:
            yield from _stores_below(child, depth - 1)
        else:
            yield StorePlace(kind, child)


def _subfolders(folder: Path) -> list[Path]:
    """Returns the folders in a folder except links; none for a remote or unreadable one, which the listing reports."""
    if isinstance(folder, RemotePath):
        return []
    with suppress(PermissionError, NotADirectoryError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def kind_of(root: Path) -> str:
    """Returns the kind of store by the folder's layout; FOLDER if it isn't a store."""
    names = {path.name for path in _subfolders(root)}
    if any(name.startswith("models--") and (root / name / "snapshots").is_dir() for name in names):
        return HUB
    return "ollama" if {"manifests", "blobs"} <= names else FOLDER


def describe_error(error: OSError) -> str:
    """Describes a folder or file that can't be read."""
    reason = "permission denied" if isinstance(error, PermissionError) else error.strerror or str(error)
    return f"{error.filename}: {reason}"
