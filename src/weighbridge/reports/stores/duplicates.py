"""Where the disk went: what each store takes, what is there twice, what nothing refers to. And what can be shared."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import MIB
from weighbridge.io.digest import digest_of
from weighbridge.io.location import open_source
from weighbridge.io.sink.share import SharedFile, share
from weighbridge.reports.stores.listing import StoreEntry, list_models
from weighbridge.reports.stores.places import HUB, StorePlace, roots_of

Progress = Callable[[int, int, str], None]
SCHEMA_DU: Final = "weighbridge/du/1"
SCHEMA_DEDUPE: Final = "weighbridge/dedupe/1"
#: Shorter files aren't worth a comparison.
LEAST: Final = MIB
_BLOB: Final = re.compile(r"(?:sha256-)?([0-9a-f]{64})\Z")
_BLOBS: Final = (HUB, "ollama")  # stores whose blobs something refers to
_LEFTOVER: Final = re.compile(r".*(\.incomplete|-partial(-\d+)?|\.downloadInProgress|\.part|\.partial)\Z")


@dataclass(frozen=True, slots=True)
class StoreUsage:
    store: str
    path: str
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Files of the same bytes. `wasted`: bytes that sharing would free."""

    digest: str
    bytes: int
    wasted: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that no model uses: `kind` is "interrupted download" or "orphan"."""

    path: str
    kind: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Forms:
    """Entries that are one model in several forms, by architecture and number of parameters. `types`: of each entry's
    weights; `same`: groups of entries with the same values in every tensor, whatever the container."""

    architecture: str
    parameters: int
    names: tuple[str, ...]
    types: tuple[str, ...]
    same: tuple[tuple[str, ...], ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    usage: tuple[StoreUsage, ...]
    bytes: int
    duplicates: tuple[Duplicate, ...]
    leftovers: tuple[Leftover, ...]
    forms: tuple[Forms, ...]
    schema: str = SCHEMA_DU


@dataclass(frozen=True, slots=True)
class DedupeReport:
    """`shared`: what was (or with `dry_run` would be) done, file by file."""

    shared: tuple[SharedFile, ...]
    freed: int
    dry_run: bool
    schema: str = SCHEMA_DEDUPE


class _File:
    """A regular file of a store, by where it really is."""

    __slots__ = ("path", "stat", "store")

    def __init__(self, store: str, path: Path) -> None:
        self.store, self.path, self.stat = store, path, path.stat()

    @property
    def inode(self) -> tuple[int, int]:
        return self.stat.st_dev, self.stat.st_ino


def usage(paths: Sequence[str | os.PathLike[str]] = (), *, progress: Progress | None = None) -> UsageReport:
    """What the stores of this machine, or the folders `paths`, take. Files of the same size are read to compare them,
    unless a store calls them by their digest; so are models of one architecture, size and type."""
    roots = roots_of(paths)
    files = list(_files(roots))
    by_root = [StoreUsage(p.store, str(p.root), *_sum(_within(p, files, roots))) for p in roots]
    entries = list_models(paths).entries
    return UsageReport(
        tuple(by_root), _sum(files)[0], tuple(_duplicates(files, progress)),
        tuple(_leftovers(files, roots)), tuple(_forms(entries)),
    )  # fmt: skip


def dedupe(
    paths: Sequence[str | os.PathLike[str]] = (),
    *,
    hard_link: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> DedupeReport:
    """Let files of the same bytes share their space: by the file system's own sharing (btrfs, XFS: the kernel compares
    the bytes itself), else with `hard_link` as one file under several names, after comparing every byte. Nothing is
    deleted, and a name stays what it was."""
    done: list[SharedFile] = []
    for duplicate in _duplicates(list(_files(roots_of(paths))), progress):
        first, *others = duplicate.paths
        done += (share(Path(first), Path(other), hard_link=hard_link, dry_run=dry_run) for other in others)
    return DedupeReport(tuple(done), sum(d.bytes for d in done if d.how != "not shared"), dry_run)


def _within(place: StorePlace, files: Iterable[_File], roots: Iterable[StorePlace]) -> Iterator[_File]:
    """The files below a root, but for those of the stores in it."""
    root = place.root.resolve()
    inner = [r for p in roots if (r := p.root.resolve()) != root and r.is_relative_to(root)]
    for file in files:
        if file.path.is_relative_to(root) and not any(file.path.is_relative_to(r) for r in inner):
            yield file


def _files(roots: Sequence[StorePlace]) -> Iterator[_File]:
    """Every regular file below the roots once, however many links lead to it."""
    seen, places = set(), {place.root for place in roots}
    for place in roots:
        for base, folders, names in os.walk(place.root):
            folders[:] = sorted(f for f in folders if f not in (".locks", ".git") and Path(base, f) not in places)
            for name in sorted(names):
                path = Path(base, name)
                if not path.is_symlink() and path.is_file() and path not in seen:
                    seen.add(path)
                    yield _File(place.store, path.resolve())


def _sum(files: Iterable[_File]) -> tuple[int, int]:
    """Bytes and number of the files, each inode once."""
    sizes = {f.inode: f.stat.st_size for f in files}
    return sum(sizes.values()), len(sizes)


def _duplicates(files: Sequence[_File], progress: Progress | None) -> Iterator[Duplicate]:
    """Groups of inodes of the same bytes, the largest waste first."""
    by_inode = {f.inode: f for f in files if f.stat.st_size >= LEAST and not _LEFTOVER.fullmatch(f.path.name)}
    ordered = sorted(by_inode.values(), key=lambda f: f.stat.st_size)
    groups = [list(g) for _, g in groupby(ordered, key=lambda f: f.stat.st_size)]
    alike = [g for g in groups if len(g) > 1]
    total, done, found = sum(f.stat.st_size for g in alike for f in g), 0, []
    for group in alike:
        digests: dict[str, list[_File]] = {}
        for file in group:
            digests.setdefault(_digest(file), []).append(file)
            done += file.stat.st_size
            if progress is not None:
                progress(done, total, file.path.name)
        for digest, same in digests.items():
            size = same[0].stat.st_size
            if len(same) > 1:
                paths = tuple(str(f.path) for f in same)
                found.append(Duplicate(digest, size, size * (len(same) - 1), paths))
    yield from sorted(found, key=lambda d: -d.wasted)


def _digest(file: _File) -> str:
    """SHA-256: by the name that the store gave it, else of the bytes."""
    if (named := _BLOB.fullmatch(file.path.name)) and file.path.parent.name == "blobs":
        return named[1]
    with open_source(file.path) as source:
        return digest_of(source, "sha256")


def _leftovers(files: Sequence[_File], roots: Iterable[StorePlace]) -> Iterator[Leftover]:
    """Interrupted downloads, and blobs that no model refers to."""
    used = _referred(roots)
    for file in files:
        name, blob = file.path.name, file.store in _BLOBS and file.path.parent.name == "blobs"
        if _LEFTOVER.fullmatch(name):
            yield Leftover(str(file.path), "interrupted download", file.stat.st_size)
        elif blob and file.inode not in used:
            yield Leftover(str(file.path), "orphan", file.stat.st_size)


def _referred(roots: Iterable[StorePlace]) -> set[tuple[int, int]]:
    """The blobs that snapshots and manifests lead to."""
    from weighbridge.adapters.remote import ollama

    used = set()
    for place in roots:
        links = place.root.glob("models--*/snapshots/*/**/*") if place.store == HUB else ()
        paths = [p for p in links if p.is_file()]
        for path in place.root.glob("manifests/*/*/*/*") if place.store == "ollama" else ():
            try:
                paths += [ollama.blob(place.root, layer) for layer in ollama.read_manifest(path).layers]
            except WeighbridgeError:
                continue
        used |= {(s.st_dev, s.st_ino) for p in paths if p.is_file() and (s := p.stat())}
    return used


def _forms(entries: Iterable[StoreEntry]) -> Iterator[Forms]:
    alike: dict[tuple[str, int], list[StoreEntry]] = {}
    for entry in entries:
        if entry.architecture and entry.parameters:
            alike.setdefault((_plain(entry.architecture), entry.parameters), []).append(entry)
    for (architecture, parameters), forms in alike.items():
        if len(forms) > 1:
            types = tuple(e.quantization or "" for e in forms)
            names = tuple(e.name for e in forms)
            yield Forms(architecture, parameters, names, types, tuple(_same(forms)), sum(e.bytes for e in forms))


def _same(forms: Iterable[StoreEntry]) -> Iterator[tuple[str, ...]]:
    """The names of entries with the same values, group by group. Those of one type are read and compared."""
    groups: list[list[StoreEntry]] = []
    for entry in forms:
        found = next((g for g in groups if g[0].quantization == entry.quantization and _equal(g[0], entry)), None)
        groups.append([entry]) if found is None else found.append(entry)
    return (tuple(e.name for e in group) for group in groups if len(group) > 1)


def _equal(a: StoreEntry, b: StoreEntry) -> bool:
    from weighbridge.reports.diff.report import diff  # late: it needs numpy

    try:
        return a.path == b.path or diff(a.path, b.path).same
    except (OSError, WeighbridgeError):
        return False


def _plain(architecture: str) -> str:
    """`LlamaForCausalLM` and GGUF's `llama` are one."""
    return re.sub(r"For[A-Z]\w*\Z", "", architecture).lower()
