"""Models in archives, compressed files and layouts of blobs: `model.gguf.gz`, `model.tar.gz` with a folder,
`weights.zip`, a folder with an OCI image layout.

member(path)      `weights.zip/model.gguf` or `layout/TAG/model.gguf` as a path in the archive or the layout; any other
                  path as `resolve_path` returns it
resolve(path)     the same, and in place of an archive or layout the only file, or the folder of all files, in it

Archives in each other are followed. The trees of the last few archives are kept, with the data that they decoded."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import WRAPPED_DEPTH
from weighbridge.containers import model_suffixes
from weighbridge.containers.formats import GGUF_MAGIC
from weighbridge.io.location import RemotePath, StoredPath, WrappedPath, forget, open_source, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from weighbridge.containers.archive.oci import ListedModel
    from weighbridge.containers.archive.wrapped import WrappedTree
    from weighbridge.models.layouts import ModelLayout

_KEPT: Final = 16
_roots: Final[OrderedDict[str, tuple[str, WrappedPath]]] = OrderedDict()
_others: Final[OrderedDict[str, str]] = OrderedDict()  # path -> version of files that are no archives, as torch's zips
_lock: Final = threading.RLock()


def member(path: str | os.PathLike[str]) -> Path:
    """Returns the path that a user names, in an archive or a layout if it continues the archive's path."""
    place = resolve_path(path)
    for _ in range(WRAPPED_DEPTH):
        if isinstance(place, RemotePath | StoredPath) or place.exists():
            break
        above = next((above for above in place.parents if above.exists()), None)
        inside = None if above is None else _named(above, place.relative_to(above))
        if inside is None:
            break
        place = inside
    return place


def resolve(path: str | os.PathLike[str]) -> Path:
    """Returns the path that a user names, inside an archive or a layout if it names one. Raises FormatError for a
    damaged one, UnsupportedError for archives that are nested too deep, RefusedError if unpacking takes too much space,
    UsageError for a layout with several models."""
    place = resolve_path(path)
    is_folder = not isinstance(place, StoredPath) and place.is_dir()
    if isinstance(place, StoredPath) or (
        is_folder and not isinstance(place, RemotePath) and not (place / "blobs").is_dir()
    ):
        return place
    place = place if is_folder else member(place)
    for _ in range(WRAPPED_DEPTH):
        if (root := _root(place)) is None:
            return place
        place = _content(root)
    if _root(place) is not None:
        raise UnsupportedError(
            f"{place}: more than {WRAPPED_DEPTH} archives or compressed files in each other", hint="unpack it first"
        )
    return place


def _named(above: Path, below: Path) -> Path | None:
    """Returns the place that `below` names in an archive, or in the model of a layout whose name it begins with."""
    if not above.is_dir():
        return None if (root := _root(above)) is None else root / below
    if (layout := _layout(above)) is None or (found := layout.named(below.parts)) is None:
        return None
    model, rest = found
    place: Path = _layout_root(layout, model).joinpath(*rest)
    return place


def _root(path: Path) -> WrappedPath | None:
    """Returns the root of the tree of an archive, of a compressed file, or of a layout's only model; None for any other
    path."""
    if isinstance(path, StoredPath):
        return None
    if path.is_dir():
        return None if (layout := _layout(path)) is None else _layout_root(layout, layout.only())
    if not _may_be_archive(path):
        return None
    title, version = str(path), _version(path)
    return _kept(title, version, lambda: _tree(path, title, version))


def _layout(folder: Path) -> ModelLayout | None:
    from weighbridge.models import layouts  # late: few folders are layouts

    return layouts.find_layout(folder)


def _layout_root(layout: ModelLayout, model: ListedModel) -> WrappedPath:
    title, version = layout.title_of(model), _version(layout.marker)
    root = _kept(title, version, lambda: layout.tree(model, version))
    assert root is not None
    return root


def _kept(title: str, version: str, make: Callable[[], WrappedTree | None]) -> WrappedPath | None:
    """Returns the root of a tree, which is made unless it is kept in this version."""
    with _lock:
        if title in _roots and _roots[title][0] == version:
            _roots.move_to_end(title)
            return _roots[title][1]
        if _others.get(title) == version:
            return None
        if (tree := make()) is None:
            _others[title] = version
            if len(_others) > _KEPT:
                _others.popitem(last=False)
            return None
        _roots[title] = version, WrappedPath.root(title, tree)
        while len(_roots) > _KEPT:
            forget(_roots.popitem(last=False)[1][1])
        return _roots[title][1]


def _may_be_archive(path: Path) -> bool:
    """Whether a path is a file that isn't a GGUF or safetensors by its first bytes. Of remote files the suffix
    decides, since reading is a request."""
    if isinstance(path, RemotePath):
        from weighbridge.containers.archive.wrapped import SUFFIXES  # late, as below: few files are archives

        return path.suffix.lower() in SUFFIXES and path.is_file()
    if not path.is_file():
        return False
    with open_source(path) as source:
        head = source.head(16)
        return head[:4] != GGUF_MAGIC and (
            head[8:9] != b"{" or int.from_bytes(head[:8], "little") > max(source.size - 8, 0)
        )


def _tree(path: Path, title: str, version: str) -> WrappedTree | None:
    """Returns the files in an archive; None if the file isn't one."""
    from weighbridge.containers.archive import wrapped

    source = open_source(path)
    try:
        if (format := wrapped.wrapper_of(source)) is not None:
            around = path.notes if isinstance(path, WrappedPath) else ()
            return wrapped.open_tree(source, format, title, version, around)
    except BaseException:
        source.close()
        raise
    source.close()
    return None


def _version(path: Path) -> str:
    """Returns a text that changes if the file does."""
    if isinstance(path, RemotePath | WrappedPath):
        return path.version
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def _content(root: WrappedPath) -> Path:
    """Returns the only file of a tree, its only wrapped file if no other file has weights, or its only folder."""
    from weighbridge.containers.archive.wrapped import SUFFIXES

    place: Path = root
    while place.is_dir() and len(entries := [*place.iterdir()]) == 1:
        place = entries[0]
    files = [base / name for base, _, names in walk(place) for name in names] if place.is_dir() else []
    inner = [file for file in files if file.suffix.lower() in SUFFIXES]
    weights = any(file.name.endswith(model_suffixes()) for file in files)
    return inner[0] if len(inner) == 1 and not weights else place
