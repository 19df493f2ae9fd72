"""Where the disk went: what each store takes, what is there twice, what nothing refers to. And what can be shared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weighbridge.io.sink.share import SharedFile, share
from weighbridge.reports.stores.files import StoreFile, same_size, store_files, total
from weighbridge.reports.stores.forms import Forms, forms_of
from weighbridge.reports.stores.leftovers import Leftover, leftovers
from weighbridge.reports.stores.listing import list_models
from weighbridge.reports.stores.places import StorePlace, not_readable, roots_of

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
    """Files of the same bytes that don't share their space. `wasted`: bytes that sharing would free."""

    digest: str
    bytes: int
    wasted: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """`uncompared`: models whose tensors couldn't be compared with the others', and why. `unreadable`: folders and
    files that nothing is known of."""

    usage: tuple[StoreUsage, ...]
    bytes: int
    duplicates: tuple[Duplicate, ...]
    leftovers: tuple[Leftover, ...]
    forms: tuple[Forms, ...]
    uncompared: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    schema: str = SCHEMA_DU


@dataclass(frozen=True, slots=True)
class DedupeReport:
    """`shared`: what was (or with `dry_run` would be) done, file by file. `unreadable`: what wasn't compared."""

    shared: tuple[SharedFile, ...]
    freed: int
    dry_run: bool
    unreadable: tuple[str, ...] = ()
    schema: str = SCHEMA_DEDUPE


def usage(paths: Sequence[str | os.PathLike[str]] = (), *, progress: Progress | None = None) -> UsageReport:
    """What the stores of this machine, or the folders `paths`, take. Files of the same size are read to compare them,
    unless a store calls them by their digest; so are models of one architecture, size and type."""
    roots, unreadable = roots_of(paths), list[str]()
    files = store_files(roots, unreadable)
    by_root = [StoreUsage(p.store, str(p.root), *total(_within(p, files, roots))) for p in roots]
    left = leftovers(files, roots, unreadable)
    duplicates = _duplicates(files, unreadable, progress)
    forms, uncompared = forms_of(list_models(paths).entries)
    return UsageReport(
        tuple(by_root), total(files)[0], duplicates, left, forms, uncompared, tuple(dict.fromkeys(unreadable))
    )


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
    done, unreadable = list[SharedFile](), list[str]()
    for duplicate in _duplicates(store_files(roots_of(paths), unreadable), unreadable, progress):
        first, *others = duplicate.paths
        done += (share(Path(first), Path(other), hard_link=hard_link, dry_run=dry_run) for other in others)
    freed = sum(d.bytes for d in done if d.how != "not shared")
    return DedupeReport(tuple(done), freed, dry_run, tuple(unreadable))


def _within(place: StorePlace, files: Iterable[StoreFile], roots: Iterable[StorePlace]) -> Iterator[StoreFile]:
    """The files below a root, but for those of the stores in it."""
    root = place.root.resolve()
    inner = [r for p in roots if (r := p.root.resolve()) != root and r.is_relative_to(root)]
    for file in files:
        if file.path.is_relative_to(root) and not any(file.path.is_relative_to(r) for r in inner):
            yield file


def _duplicates(files: Sequence[StoreFile], unreadable: list[str], progress: Progress | None) -> tuple[Duplicate, ...]:
    """Groups of files of the same bytes in several spaces, the largest waste first."""
    alike = [list({f.space: f for f in reversed(group)}.values())[::-1] for group in same_size(files)]
    alike = [group for group in alike if len(group) > 1]
    whole, done, found = sum(f.stat.st_size for g in alike for f in g), 0, []
    for group in alike:
        digests: dict[str, list[StoreFile]] = {}
        for file in group:
            try:
                digests.setdefault(file.digest(), []).append(file)
            except OSError as error:
                unreadable.append(not_readable(error))
            done += file.stat.st_size
            if progress is not None:
                progress(done, whole, file.path.name)
        for digest, same in digests.items():
            size = same[0].stat.st_size
            if len(same) > 1:
                found.append(Duplicate(digest, size, size * (len(same) - 1), tuple(str(f.path) for f in same)))
    return tuple(sorted(found, key=lambda d: -d.wasted))
