"""Reports the disk usage of stores with duplicates and unused files, and shares the space of duplicates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from weighbridge.base.records import dataclass
from weighbridge.io.sink.share import SharedFile, share
from weighbridge.reports.links import links_outside
from weighbridge.reports.stores.files import StoreFile, same_size, store_files, total
from weighbridge.reports.stores.forms import Forms, forms_of
from weighbridge.reports.stores.leftovers import Leftover, leftovers
from weighbridge.reports.stores.listing import StoreEntry, list_models
from weighbridge.reports.stores.places import StorePlace, describe_error, roots_of

Progress = Callable[[int, int, str], None]
SCHEMA_DU: Final = "weighbridge/du/1"
SCHEMA_DEDUPE: Final = "weighbridge/dedupe/1"


@dataclass(frozen=True, slots=True)
class StoreUsage:
    store: str
    path: str
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Files with equal bytes that don't share disk space. `wasted`: bytes that sharing would free."""

    digest: str
    bytes: int
    wasted: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """`uncompared`: models whose tensors couldn't be compared, and why. `unreadable`: folders and files that couldn't
    be read. `wider`: models of F32 values that samples show to be of a 16-bit type, the largest saving first."""

    usage: tuple[StoreUsage, ...]
    bytes: int
    duplicates: tuple[Duplicate, ...]
    leftovers: tuple[Leftover, ...]
    forms: tuple[Forms, ...]
    uncompared: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    wider: tuple[StoreEntry, ...] = ()
    schema: str = SCHEMA_DU


@dataclass(frozen=True, slots=True)
class DedupeReport:
    """`shared`: the files that were (or with `dry_run` would be) shared. `unreadable`: files that weren't compared."""

    shared: tuple[SharedFile, ...]
    freed: int
    dry_run: bool
    unreadable: tuple[str, ...] = ()
    schema: str = SCHEMA_DEDUPE


def usage(paths: Sequence[str | os.PathLike[str]] = (), *, progress: Progress | None = None) -> UsageReport:
    """Reports the disk usage of this machine's stores, or of the folders `paths`. Files with equal sizes are read and
    compared, unless a store names them by digest; so are models with equal architecture, size and type."""
    roots, unreadable = roots_of(paths), list[str]()
    files = store_files(roots, unreadable)
    unreadable += links_outside(map(Path, paths))
    by_root = tuple(StoreUsage(p.store, str(p.root), *total(_files_in(p, files, roots))) for p in roots)
    unused = leftovers(files, roots, unreadable)
    duplicates = _duplicates(files, unreadable, progress)
    entries = list_models(paths).entries
    forms, uncompared = forms_of(entries)
    wider = tuple(sorted((entry for entry in entries if entry.wider), key=lambda entry: -entry.spare))
    return UsageReport(
        by_root, total(files)[0], duplicates, unused, forms, uncompared, tuple(dict.fromkeys(unreadable)), wider
    )


def dedupe(
    paths: Sequence[str | os.PathLike[str]] = (),
    *,
    hard_link: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> DedupeReport:
    """Lets files with equal bytes share disk space: with the file system's sharing (btrfs, XFS: the kernel compares the
    bytes), or with `hard_link` as one file with several names, after comparing every byte. Nothing is deleted, and all
    names remain."""
    shared, unreadable = list[SharedFile](), list[str]()
    for duplicate in _duplicates(store_files(roots_of(paths), unreadable), unreadable, progress):
        first, *copies = duplicate.paths
        shared += (share(Path(first), Path(copy), hard_link=hard_link, dry_run=dry_run) for copy in copies)
    freed = sum(file.bytes for file in shared if file.how != "not shared")
    return DedupeReport(tuple(shared), freed, dry_run, tuple(unreadable))


def _files_in(place: StorePlace, files: Iterable[StoreFile], roots: Iterable[StorePlace]) -> Iterator[StoreFile]:
    """Yields the files below a root, except those of nested stores."""
    root = place.root.resolve()
    inner = [r for p in roots if (r := p.root.resolve()) != root and r.is_relative_to(root)]
    for file in files:
        if file.path.is_relative_to(root) and not any(file.path.is_relative_to(r) for r in inner):
            yield file


def _duplicates(files: Sequence[StoreFile], unreadable: list[str], progress: Progress | None) -> tuple[Duplicate, ...]:
    """Returns groups of files with equal bytes that don't share disk space, the largest waste first."""
    alike = [list({f.space: f for f in reversed(group)}.values())[::-1] for group in same_size(files)]
    alike = [group for group in alike if len(group) > 1]
    whole, done, duplicates = sum(f.stat.st_size for g in alike for f in g), 0, []
    for group in alike:
        digests: dict[str, list[StoreFile]] = {}
        for file in group:
            try:
                digests.setdefault(file.digest(), []).append(file)
            except OSError as error:
                unreadable.append(describe_error(error))
            done += file.stat.st_size
            if progress is not None:
                progress(done, whole, file.path.name)
        for digest, copies in digests.items():
            size = copies[0].stat.st_size
            if len(copies) > 1:
                paths = tuple(str(f.path) for f in copies)
                duplicates.append(Duplicate(digest, size, size * (len(copies) - 1), paths))
    return tuple(sorted(duplicates, key=lambda d: -d.wasted))
