"""The models on this machine: in the Hub's cache, in Ollama, LM Studio and llama.cpp, in folders. One line a model, by
headers alone; what several models share counts once in the sum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.adapters.remote import ollama
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.models.locate import locate, models_in
from weighbridge.reports.inspect.report import InspectReport, inspect
from weighbridge.reports.stores.places import DEPTH, FOLDER, HUB, StorePlace, kind_of, not_readable, roots_of

SCHEMA: Final = "weighbridge/ls/1"


class Found(NamedTuple):
    """A model of a store, before it is opened."""

    store: str
    name: str
    address: str
    path: Path
    files: tuple[Path, ...]
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A model. `address`: what `wb inspect` takes; `bytes`: of its files; `used`: when one was last read or written;
    `trouble`: what is wrong with it: why nothing more is known, or which part is missing."""

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


@dataclass(frozen=True, slots=True)
class StoreReport:
    """`bytes`: of all files, each counted once however many models share it."""

    entries: tuple[StoreEntry, ...]
    bytes: int
    unreadable: tuple[str, ...] = ()
    schema: str = SCHEMA


def list_models(
    paths: Sequence[str | os.PathLike[str]] = (),
    *,
    filter: Sequence[str] = (),
    sort: str | None = None,
) -> StoreReport:
    """The models in the stores of this machine, or below the folders `paths`. `filter`: globs of names. `sort`: name,
    size, used, params, format or store, with `:desc` for the other order."""
    roots = roots_of(paths)
    unreadable: list[str] = []
    found = [model for place in roots for model in _models(place, unreadable)]
    wanted = [m for m in found if not filter or any(fnmatchcase(m.name, pattern) for pattern in filter)]
    entries = _sorted([_entry(model) for model in wanted], sort)
    seen = {(s.st_dev, s.st_ino): s.st_size for m in wanted for s in _stats(m.files)}
    return StoreReport(tuple(entries), sum(seen.values()), tuple(dict.fromkeys(unreadable)))


def _models(place: StorePlace, unreadable: list[str]) -> Iterator[Found]:
    """The models of a store. `unreadable`: gets what can't be read."""
    readers = {HUB: hub_models, "ollama": ollama_models}
    yield from readers.get(place.store, folder_models)(place, unreadable)


def _children(folder: Path, unreadable: list[str]) -> list[Path]:
    """What is in a folder; nothing where there is none."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unreadable.append(not_readable(error))
        return []


def hub_models(place: StorePlace, unreadable: list[str]) -> Iterator[Found]:
    """One a revision and model of each repository of the Hub's cache."""
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
    """Commit and name of each ref."""
    for path in _children(folder, unreadable):
        if path.is_dir():
            yield from _refs(path, f"{above}{path.name}/", unreadable)
            continue
        try:
            yield path.read_text().strip(), above + path.name
        except OSError as error:
            unreadable.append(not_readable(error))


def ollama_models(place: StorePlace, unreadable: list[str]) -> Iterator[Found]:
    """One a manifest."""
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
            layers, weights, trouble = (), None, _words(error)
        if weights is None:
            yield Found("ollama", str(name), f"ollama://{name}", path, (path,), trouble)
            continue
        files = tuple(f for x in layers if (f := ollama.blob(place.root, x)).is_file())
        yield Found("ollama", str(name), f"ollama://{name}", weights, files)


def folder_models(place: StorePlace, unreadable: list[str]) -> Iterator[Found]:
    """The models at and below a folder, at most three folders deep; the stores there are places of their own."""
    if place.root.is_file():
        yield Found(place.store, place.root.name, str(place.root), place.root, (place.root,))
        return
    for folder in _folders(place.root, DEPTH, unreadable):
        title = folder.relative_to(place.root).as_posix() if folder != place.root else ""
        address = f"lmstudio://{title}" if place.store == "lmstudio" else str(folder)
        yield from _in_folder(place.store, folder, title, address, unreadable)


def _folders(root: Path, depth: int, unreadable: list[str]) -> Iterator[Path]:
    children = _children(root, unreadable)
    yield root
    for folder in (p for p in children if depth and p.is_dir() and not p.name.startswith(".")):
        if kind_of(folder) == FOLDER:
            yield from _folders(folder, depth - 1, unreadable)


def _in_folder(store: str, folder: Path, title: str, address: str, unreadable: list[str]) -> Iterator[Found]:
    """The model of a folder; of a folder of several one a model. The root of a listing, which has no `title`, may be a
    model, or only hold its file."""
    try:
        several, weights = models_in(folder), _weights(folder)
        files = [p for p in sorted(folder.iterdir()) if p.is_file()]
    except OSError:  # listed already, when it was read for folders
        return
    if not title and len(weights) == 1 and not (folder / "config.json").exists():
        several = weights
    for path in several:
        yield Found(store, f"{title}/{path.name}".lstrip("/"), f"{address}/{path.name}", path, _weights(path))
    if not several and weights:
        sidecars = tuple(p for p in files if p not in weights)
        yield Found(store, title or folder.resolve().name, address, folder, (*weights, *sidecars))


def _weights(path: Path) -> tuple[Path, ...]:
    try:
        return locate(path).weights
    except (OSError, WeighbridgeError):
        return ()


def _entry(found: Found) -> StoreEntry:
    stats = list(_stats(found.files))
    last = max((max(s.st_atime, s.st_mtime) for s in stats), default=None)
    used = None if last is None else datetime.fromtimestamp(int(last), UTC).isoformat()
    size = sum({(s.st_dev, s.st_ino): s.st_size for s in stats}.values())
    plain = StoreEntry(
        found.store, found.name, found.address, str(found.path), "unknown", None, None, None, size, len(found.files),
        used, found.trouble,
    )  # fmt: skip
    if found.trouble:
        return plain
    try:
        return _with_headers(plain, inspect(found.path, limit=0))
    except (OSError, WeighbridgeError) as error:
        return replace(plain, trouble=_words(error))


def _words(error: OSError | WeighbridgeError) -> str:
    if isinstance(error, FileNotFoundError):
        return "its file is missing"
    if isinstance(error, OSError):
        return "not readable by you" if isinstance(error, PermissionError) else error.strerror or str(error)
    return error.message


def _with_headers(entry: StoreEntry, report: InspectReport) -> StoreEntry:
    model = report.model
    words = model.quantization.words if model.quantization else None
    kinds = max(report.dtypes, key=lambda d: d.nbytes).dtype if report.dtypes else None
    return replace(
        entry, format=report.format, quantization=words or kinds, architecture=model.architecture,
        parameters=report.parameters, trouble=report.damage[0].message if report.damage else None,
    )  # fmt: skip


def _stats(files: Iterable[Path]) -> Iterator[os.stat_result]:
    for file in files:
        try:
            yield file.stat()
        except OSError:  # a dangling link: the entry's trouble says so
            continue


_KEYS: Final[Mapping[str, Callable[[StoreEntry], Any]]] = {
    "name": lambda e: e.name.lower(),
    "size": lambda e: e.bytes,
    "used": lambda e: e.used or "",
    "params": lambda e: e.parameters or 0,
    "format": lambda e: e.format,
    "store": lambda e: e.store,
}


def _sorted(entries: list[StoreEntry], sort: str | None) -> list[StoreEntry]:
    if sort is None:
        return entries
    key, _, order = sort.partition(":")
    if key not in _KEYS or order not in ("", "asc", "desc"):
        raise UsageError(f"{sort!r} is no order", hint=f"{', '.join(_KEYS)}, with :desc for the other order")
    return sorted(entries, key=_KEYS[key], reverse=order == "desc")
