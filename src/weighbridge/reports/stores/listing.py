"""Lists the models on this machine: in the Hub's cache, in Ollama, LM Studio and llama.cpp, in folders. Reads headers
only; shared files count once in the total.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.adapters.remote import ollama
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.containers.gguf import container as gguf
from weighbridge.io.location import RemotePath
from weighbridge.models.config.pooling import MODULES
from weighbridge.models.locate import locate, models_in
from weighbridge.models.model import files_of
from weighbridge.reports.inspect.report import inspect
from weighbridge.reports.inspect.width import WIDER
from weighbridge.reports.stores.places import DEPTH, FOLDER, HUB, StorePlace, describe_error, kind_of, roots_of

if TYPE_CHECKING:
    from weighbridge.reports.lineage.model import StoreLineage

SCHEMA: Final = "weighbridge/ls/1"


class StoredModel(NamedTuple):
    """A model of a store, before it is opened. `dangling`: the links to missing files in its folder."""

    store: str
    name: str
    address: str
    path: Path
    files: tuple[Path, ...]
    trouble: str | None = None
    dangling: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A model. `address`: for `wb inspect`. `bytes`: of its files. `used`: the time when one of them was last read or
    written. `trouble`: the reason why it can't be read, or the missing part. `spare`: bytes of F32 values that a 16-bit
    type would save, by samples; `wider`: the evidence. Models that can't be sampled have 0 and None."""

    store: str
    name: str
    address: str
    path: str
    format: str
    quantization: str | None
    architecture: str | None
    parameters: int | None
    bytes: int
    files: int
    used: str | None
    trouble: str | None = None
    spare: int = 0
    wider: str | None = None


@dataclass(frozen=True, slots=True)
class StoreReport:
    """`bytes`: of all files; shared files count once. `lineage`: how the models are related, if that was asked for."""

    entries: tuple[StoreEntry, ...]
    bytes: int
    unreadable: tuple[str, ...] = ()
    lineage: StoreLineage | None = None
    schema: str = SCHEMA


def list_models(
    paths: Sequence[str | os.PathLike[str]] = (),
    *,
    filter: Sequence[str] = (),
    sort: str | None = None,
) -> StoreReport:
    """Lists the models in this machine's stores, or below the folders `paths`, also in a bucket or on the Hub.
    `filter`: globs of names. `sort`: name, size, used, params, format or store, with `:desc` for descending order."""
    unreadable: list[str] = []
    readers = {HUB: hub_models, "ollama": ollama_models}
    models = [
        model
        for place in roots_of(paths, elsewhere=True)
        for model in readers.get(place.store, folder_models)(place, unreadable)
        if place.only in ("", model.name)
        if not filter or any(fnmatchcase(model.name, pattern) for pattern in filter)
    ]
    entries = [_entry(model) for model in models]
    if sort is not None:
        key, _, order = sort.partition(":")
        if key not in _KEYS or order not in ("", "asc", "desc"):
            raise UsageError(f"unknown order {sort!r}", hint=f"{', '.join(_KEYS)}, with :desc for descending order")
        entries.sort(key=_KEYS[key], reverse=order == "desc")
    size = _size_of(file for model in models for file in model.files)
    return StoreReport(tuple(entries), size, tuple(dict.fromkeys(unreadable)))


def _children(folder: Path, unreadable: list[str]) -> list[Path]:
    """Returns the contents of a folder; nothing if it is missing or unreadable."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unreadable.append(describe_error(error))
        return []


def hub_models(place: StorePlace, unreadable: list[str]) -> Iterator[StoredModel]:
    """Yields the models of each revision of each repository in the Hub's cache."""
    for repository in _children(place.root, unreadable):
        if not repository.name.startswith("models--"):
            continue
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        refs = dict(_refs(repository / "refs", "", unreadable))
        for snapshot in (p for p in _children(repository / "snapshots", unreadable) if p.is_dir()):
            ref = refs.get(snapshot.name, snapshot.name)
            title = name if ref == "main" else f"{name}@{ref[:12] if ref == snapshot.name else ref}"
            address = f"hf://{name}" if ref == "main" else f"hf://{name}@{ref}"
            yield from _in_folder(HUB, snapshot, title, address, unreadable)


def _refs(folder: Path, above: str, unreadable: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the commit and name of each ref."""
    for path in _children(folder, unreadable):
        if path.is_dir():
            yield from _refs(path, f"{above}{path.name}/", unreadable)
            continue
        try:
            yield path.read_text("utf-8", "replace").strip(), above + path.name
        except OSError as error:
            unreadable.append(describe_error(error))


def ollama_models(place: StorePlace, unreadable: list[str]) -> Iterator[StoredModel]:
    """Yields the model of each manifest."""
    paths = [place.root / "manifests"]
    for _ in ollama.OllamaName._fields:
        paths = [child for path in paths for child in _children(path, unreadable)]
    for path in paths:
        name = ollama.OllamaName(*path.relative_to(place.root / "manifests").parts)
        try:
            layers = ollama.read_manifest(path).layers
            weights = next((ollama.blob(place.root, x) for x in layers if x.media == ollama.MODEL), None)
            trouble = None if weights else "its manifest names no weights"
        except (OSError, WeighbridgeError) as error:
            layers, weights, trouble = (), None, _reason(error)
        if weights is None:
            yield StoredModel("ollama", str(name), f"ollama://{name}", path, (path,), trouble)
            continue
        files = tuple(f for x in layers if (f := ollama.blob(place.root, x)).is_file())
        yield StoredModel("ollama", str(name), f"ollama://{name}", weights, files)


def folder_models(place: StorePlace, unreadable: list[str]) -> Iterator[StoredModel]:
    """Yields the models at and below a folder, at most three folders deep. Nested stores are listed separately."""
    if place.root.is_file():
        yield StoredModel(place.store, place.only or place.root.name, str(place.root), place.root, (place.root,))
        return
    for folder in _folders(place.root, DEPTH, unreadable):
        title = folder.relative_to(place.root).as_posix() if folder != place.root else ""
        address = f"lmstudio://{title}" if place.store == "lmstudio" else str(folder)
        yield from _in_folder(place.store, folder, title, address, unreadable)


def _folders(root: Path, depth: int, unreadable: list[str]) -> Iterator[Path]:
    children = _children(root, unreadable)
    yield root
    if any(path.name == MODULES for path in children):  # its folders are parts of one embedding model
        return
    for folder in (p for p in children if depth and p.is_dir() and not p.name.startswith(".")):
        if kind_of(folder) == FOLDER:
            yield from _folders(folder, depth - 1, unreadable)


def _in_folder(store: str, folder: Path, title: str, address: str, unreadable: list[str]) -> Iterator[StoredModel]:
    """Yields the model of a folder, or several models. The root of a listing, which has no `title`, may be a model, or
    only contain its file."""
    try:
        several, weights = models_in(folder), _weights(folder)
        contents = sorted(folder.iterdir())
    except OSError:  # reported already, when its folders were listed
        return
    if not title and [path.parent for path in weights] == [folder] and not (folder / "config.json").exists():
        several = weights
    towers = tuple(p for p in contents if "mmproj" in p.name and p.suffix == gguf.SUFFIX)
    for path in several:
        files = (*_weights(path), *(towers if path.suffix == gguf.SUFFIX else ()))
        yield StoredModel(store, f"{title}/{path.name}".lstrip("/"), f"{address}/{path.name}", path, files)
    if not several and weights:
        inside = sorted(folder.rglob("*")) if (folder / MODULES).exists() else contents
        sidecars = tuple(p for p in inside if p.is_file() and p not in weights)
        dangling = tuple(p.name for p in contents if p.is_symlink() and not p.exists())
        name, files = title or folder.resolve().name, (*weights, *sidecars)
        if (run := locate(folder).run) is not None and run.taken is not None:
            name = f"{name} (step {run.taken.number} of {', '.join(str(step.number) for step in run.steps)})"
        yield StoredModel(store, name, address, folder, files, dangling=dangling)


def _weights(path: Path) -> tuple[Path, ...]:
    try:
        return files_of(path)
    except (OSError, WeighbridgeError):
        return ()


def _entry(model: StoredModel) -> StoreEntry:
    last = max((max(s.st_atime, s.st_mtime) for _, s in _stats(model.files)), default=0)  # 0 for remote files: unknown
    used = datetime.fromtimestamp(int(last), UTC).isoformat() if last else None
    size = _size_of(model.files)
    entry = StoreEntry(
        model.store, model.name, model.address, str(model.path), "unknown", None, None, None, size, len(model.files),
        used, model.trouble,
    )  # fmt: skip
    if model.trouble:
        return entry
    try:
        report = inspect(model.path, limit=0)
    except (OSError, WeighbridgeError) as error:
        return replace(entry, trouble=_reason(error))
    trouble = report.damage[0].message if report.damage else None
    if model.dangling and trouble is None:
        trouble = f"links to missing files: {', '.join(model.dangling)}"
    wider = next((note.message for note in report.notes if note.rule == WIDER), None)
    spare = sum(row.nbytes // 2 for row in report.dtypes if row.dtype == "F32" and wider is not None)
    return replace(
        entry, format=report.format, quantization=report.type_words, architecture=report.model.architecture,
        parameters=report.parameters, trouble=trouble, spare=spare, wider=wider,
    )  # fmt: skip


def _reason(error: OSError | WeighbridgeError) -> str:
    if isinstance(error, FileNotFoundError):
        return "its file is missing"
    if isinstance(error, OSError):
        return "permission denied" if isinstance(error, PermissionError) else error.strerror or str(error)
    return error.message


def _size_of(files: Iterable[Path]) -> int:
    """Returns the bytes of files, each counted once regardless of its names."""
    return sum({key: status.st_size for key, status in _stats(files)}.values())


def _stats(files: Iterable[Path]) -> Iterator[tuple[Hashable, os.stat_result]]:
    """Yields an identity and the status of each existing file."""
    for file in files:
        try:
            status = file.stat()
        except OSError:  # a dangling link, which the entry reports
            continue
        yield (file if isinstance(file, RemotePath) else (status.st_dev, status.st_ino)), status


_KEYS: Final[Mapping[str, Callable[[StoreEntry], Any]]] = {
    "name": lambda e: e.name.lower(),
    "size": lambda e: e.bytes,
    "used": lambda e: e.used or "",
    "params": lambda e: e.parameters or 0,
    "format": lambda e: e.format,
    "store": lambda e: e.store,
}
