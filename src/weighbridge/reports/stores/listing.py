"""The models on this machine: in the Hub's cache, in Ollama, LM Studio and llama.cpp, in folders. One line a model, by
headers alone; what several models share counts once in the sum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote import ollama
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.models.locate import locate, models_in
from weighbridge.reports.inspect.report import InspectReport, inspect
from weighbridge.reports.stores.places import DEPTH, FOLDER, HUB, StorePlace, kind_of, roots_of

#: Store, name, address, what is opened, files.
Found = tuple[str, str, str, Path, tuple[Path, ...]]
SCHEMA: Final = "weighbridge/ls/1"


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A model. `address`: what `wb inspect` takes; `bytes`: of its files; `used`: when one was last read or written;
    `trouble`: why nothing more is known."""

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
    used: str
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
    wanted = [m for m in found if not filter or any(fnmatchcase(m[1], pattern) for pattern in filter)]
    entries = _sorted([_entry(*model) for model in wanted], sort)
    seen = {(s.st_dev, s.st_ino): s.st_size for m in wanted for s in _stats(m[4])}
    return StoreReport(tuple(entries), sum(seen.values()), tuple(unreadable))


def _models(place: StorePlace, unreadable: list[str]) -> Iterator[Found]:
    """Store, name, address, what is opened, files."""
    readers = {HUB: hub_models, "ollama": ollama_models}
    try:
        yield from readers.get(place.store, folder_models)(place)
    except PermissionError as error:
        unreadable.append(f"{error.filename or place.root}: not readable by you")


def hub_models(place: StorePlace) -> Iterator[Found]:
    """One a revision and model of each repository of the Hub's cache."""
    for repository in sorted(place.root.glob("models--*")):
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        refs = {p.read_text().strip(): p.relative_to(repository / "refs").as_posix()
                for p in repository.glob("refs/**/*") if p.is_file()}  # fmt: skip
        for snapshot in sorted(p for p in repository.glob("snapshots/*") if p.is_dir()):
            ref = refs.get(snapshot.name, snapshot.name)
            title = name if ref == "main" else f"{name}@{ref[:12] if ref == snapshot.name else ref}"
            address = f"hf://{name}" if ref == "main" else f"hf://{name}@{ref}"
            yield from _in_folder(HUB, snapshot, title, address)


def ollama_models(place: StorePlace) -> Iterator[Found]:
    """One a manifest."""
    for path in sorted(place.root.glob("manifests/*/*/*/*")):
        name = ollama.OllamaName(*path.relative_to(place.root / "manifests").parts)
        try:
            layers = ollama.read_manifest(path).layers
            weights = next(ollama.blob(place.root, x) for x in layers if x.media == ollama.MODEL)
        except (WeighbridgeError, StopIteration):
            yield "ollama", str(name), f"ollama://{name}", path, (path,)
            continue
        files = tuple(f for x in layers if (f := ollama.blob(place.root, x)).is_file())
        yield "ollama", str(name), f"ollama://{name}", weights, files


def folder_models(place: StorePlace) -> Iterator[Found]:
    """The models at and below a folder, at most three folders deep; the stores there are places of their own."""
    if place.root.is_file():
        yield place.store, place.root.name, str(place.root), place.root, (place.root,)
        return
    for folder in _folders(place.root, DEPTH):
        title = folder.relative_to(place.root).as_posix() if folder != place.root else folder.resolve().name
        address = f"lmstudio://{title}" if place.store == "lmstudio" else str(folder)
        yield from _in_folder(place.store, folder, title, address)


def _folders(root: Path, depth: int) -> Iterator[Path]:
    yield root
    if depth:
        for folder in sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")):
            if kind_of(folder) == FOLDER:
                yield from _folders(folder, depth - 1)


def _in_folder(store: str, folder: Path, title: str, address: str) -> Iterator[Found]:
    """The model of a folder; of a folder of several one a model."""
    several = models_in(folder)
    for path in several:
        yield store, f"{title}/{path.name}", f"{address}/{path.name}", path, _weights(path)
    if not several and (weights := _weights(folder)):
        sidecars = tuple(p for p in sorted(folder.iterdir()) if p.is_file() and p not in weights)
        yield store, title, address, folder, (*weights, *sidecars)


def _weights(path: Path) -> tuple[Path, ...]:
    try:
        return locate(path).weights
    except (OSError, WeighbridgeError):
        return ()


def _entry(store: str, name: str, address: str, path: Path, files: tuple[Path, ...]) -> StoreEntry:
    stats = list(_stats(files))
    last = max((max(s.st_atime, s.st_mtime) for s in stats), default=0.0)
    used = datetime.fromtimestamp(int(last), UTC).isoformat()
    size = sum({(s.st_dev, s.st_ino): s.st_size for s in stats}.values())
    plain = StoreEntry(store, name, address, str(path), "unknown", None, None, None, size, len(files), used)
    try:
        return _with_headers(plain, inspect(path, limit=0))
    except (OSError, WeighbridgeError) as error:
        return replace(plain, trouble=str(error).splitlines()[0])


def _with_headers(entry: StoreEntry, report: InspectReport) -> StoreEntry:
    model = report.model
    words = model.quantization.words if model.quantization else None
    kinds = max(report.dtypes, key=lambda d: d.nbytes).dtype if report.dtypes else None
    return replace(
        entry, format=report.format, quantization=words or kinds, architecture=model.architecture,
        parameters=report.parameters,
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
    "used": lambda e: e.used,
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
