"""The manifest of a signed model: its files with their digests, as model_signing lists them.

A folder's files are all below it, hidden ones too, except ignored paths. A single file has the name `.`. A link is
refused unless the signer allows links to files; a link to a folder always, since its files wouldn't be listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import SIGNED_FILES
from weighbridge.base.options import Progress
from weighbridge.base.records import dataclass
from weighbridge.reports.hash.digests import Tally, hash_range, map_parallel

#: Paths that model_signing ignores unless configured otherwise (1.1.1, `hashing.Config.hash`).
GIT_PATHS: Final = (".git", ".gitattributes", ".github", ".gitignore")
#: The name of a model that is a single file.
SINGLE: Final = "."
#: hash_type of model_signing -> the algorithm of `wb hash`, and the name of its digests.
HASH_TYPES: Final = {"sha256": "sha256", "blake2": "blake2b", "blake2b": "blake2b", "blake3": "blake3"}


class SignedItem(NamedTuple):
    """The digest of a file, or with `end` of its bytes `start` to `end`."""

    name: str
    algorithm: str
    digest: str
    start: int = 0
    end: int | None = None

    @property
    def identifier(self) -> str:
        return self.name if self.end is None else f"{self.name}:{self.start}:{self.end}"

    @property
    def order(self) -> tuple[list[str], int, int]:
        """The order of model_signing: by the parts of the path, then by offset."""
        return self.name.split("/"), self.start, self.end or 0


@dataclass(frozen=True, slots=True)
class HashMethod:
    """`hash_type`: as model_signing names it. `shard_size`: None if whole files are hashed."""

    hash_type: str = "sha256"
    shard_size: int | None = None

    @property
    def algorithm(self) -> str:
        """The name of the digests."""
        algo = HASH_TYPES[self.hash_type]
        return algo if self.shard_size is None else f"{algo}-sharded-{self.shard_size}"


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """`ignored`: paths relative to the model that the signature doesn't cover."""

    model: str
    items: tuple[SignedItem, ...]
    method: HashMethod = HashMethod()
    allow_symlinks: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a model by name. `ignored`: files and folders left out. `refused`: reasons by name."""

    files: dict[str, Path]
    ignored: tuple[str, ...]
    refused: dict[str, str]


def list_files(model: Path, ignored: Iterable[str], allow_symlinks: bool) -> Listing:
    """Lists the files of a model. `ignored`: paths relative to it; that of a folder includes everything below it."""
    if model.is_symlink() and not allow_symlinks:
        return Listing({}, (), {SINGLE: "a link"})
    if not model.is_dir():
        return Listing({SINGLE: model}, (), {})
    skipped = frozenset(ignored)
    files: dict[str, Path] = {}
    left_out: list[str] = []
    refused: dict[str, str] = {}
    folders = [model]
    while folders:
        for entry in sorted(os.scandir(folders.pop()), key=lambda e: e.name):
            path = Path(entry.path)
            name = path.relative_to(model).as_posix()
            if name in skipped:
                left_out.append(name)
            elif reason := _refusal(entry, allow_symlinks):
                refused[name] = reason
            elif entry.is_dir(follow_symlinks=False):
                folders.append(path)
            else:
                files[name] = path
            if len(files) + len(refused) > SIGNED_FILES:
                raise UnsupportedError(f"{model} has more than {SIGNED_FILES:,} files", hint="leave some out: --ignore")
    return Listing(dict(sorted(files.items())), tuple(sorted(left_out)), refused)


def _refusal(entry: os.DirEntry[str], allow_symlinks: bool) -> str:
    """Why an entry of a folder can't be signed; empty if it can."""
    if entry.is_symlink():
        if not allow_symlinks:
            return "a link"
        return "a link to a folder" if entry.is_dir() else "" if entry.is_file() else "a broken link"
    if not (entry.is_file() or entry.is_dir()):
        return "neither a file nor a folder"
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return "a name that isn't UTF-8"
    return ""


def hash_files(
    files: Mapping[str, Path], method: HashMethod, *, jobs: int | None = None, progress: Progress | None = None
) -> tuple[SignedItem, ...]:
    """Computes the digests of files, in threads, in the order of a manifest. An empty file has no shards."""
    tasks = [(name, path, *part) for name, path in files.items() for part in _parts(path.stat().st_size, method)]
    tally = Tally(sum(end - start for *_, start, end in tasks), progress)
    algo = HASH_TYPES[method.hash_type]

    def item(task: tuple[str, Path, int, int]) -> SignedItem:
        name, path, start, end = task
        digest = hash_range(path, algo, start, end, tally.of(name))
        return SignedItem(name, method.algorithm, digest, start, None if method.shard_size is None else end)

    return tuple(sorted(map_parallel(item, tasks, jobs), key=lambda item: item.order))


def _parts(size: int, method: HashMethod) -> Iterator[tuple[int, int]]:
    if method.shard_size is None:
        yield 0, size
    elif size:
        yield from pairwise([*range(0, size, method.shard_size), size])
