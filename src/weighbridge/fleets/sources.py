"""From what a user names to items: globs, folders, buckets, organisations of the Hub, manifests. The order is that of
the names, the same on every machine."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from glob import iglob
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.parquet import read_rows
from weighbridge.adapters.remote import hub_models
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers import model_suffixes
from weighbridge.containers.numbered import numbered
from weighbridge.fleets.job import Item, digest
from weighbridge.io.location import RemotePath, is_remote, open_source, walk
from weighbridge.reports.scan import walk as scan_walk

_MANIFESTS: Final = (".jsonl", ".ndjson", ".parquet")
_MAGIC: Final = re.compile(r"[*?\[]")
_ADDRESS: Final = re.compile(r"^[A-Za-z0-9+.-]+://|@[0-9a-f]{40}(?=/|$)")  # what is no part of a name
_CONFIG: Final = "config.json"
_GIT: Final = ".git"


def items(sources: Iterable[str], *, by_file: bool) -> Iterator[Item]:
    """The items that sources name, each once. `by_file`: every file, else every model. UsageError where a source names
    nothing, or two items would have one name."""
    seen: dict[int, int] = {}  # hashes, as a fleet may have millions of names
    for source in sources:
        found = False
        for item in _expanded(source, by_file):
            found = True
            name, origin = hash(item.name), hash(item.source)
            if (first := seen.get(name)) is None:
                seen[name] = origin
                yield item
            elif first != origin:
                words = f"{item.source} and another source would both be called {item.name}"
                raise UsageError(words, hint="name a folder above both, or a manifest with a name for each")
        if not found:
            raise UsageError(f"{source} names no {'file' if by_file else 'model'}", hint="see what is there: wb ls")


def _expanded(source: str, by_file: bool) -> Iterator[Item]:
    if source.endswith(_MANIFESTS):
        yield from _listed(source, by_file)
        return
    glob = _MAGIC.search(source)
    root = source[: glob.start()].rpartition("/")[0] if glob else _root(source)
    for path in _paths(source):
        yield from _below(path, by_file, root)


def _paths(source: str) -> Iterator[str]:
    """The files and folders that a glob, an organisation or a plain path stands for."""
    if (owner := hub_models.owner_of(source)) is not None:
        yield from hub_models.models_of(owner)
    elif not _MAGIC.search(source):
        yield source
    elif is_remote(source):
        yield from _remote_glob(source)
    else:
        yield from sorted(iglob(source, recursive=True))


def _remote_glob(source: str) -> Iterator[str]:
    """The files below the part of an address before its first wildcard that match it."""
    above = source[: _MAGIC.search(source).start()].rpartition("/")[0]  # type: ignore[union-attr]  # it has one
    for base, _, names in walk(resolve_path(above)):
        yield from (text for name in names if fnmatchcase(text := str(base / name), source))


def _listed(path: str, by_file: bool) -> Iterator[Item]:
    """The items of a manifest: rows with `source`, and perhaps `name`, `size`, `pin`."""
    for number, row in enumerate(_rows(path)):
        source = row.get("source")
        if not isinstance(source, str) or not source:
            raise FormatError(
                "a row without a source", path=path, field=f"row {number + 1}", expected='{"source": ...}'
            )
        if isinstance(row.get("name"), str):
            pinned = row.get("pin") if isinstance(row.get("pin"), str) else None
            size = row["size"] if isinstance(row.get("size"), int) else None
            yield _item(source, row["name"], pin=pinned, size=size)
        else:
            yield from _below(source, by_file, _root(source))


def _rows(path: str) -> Iterator[Mapping[str, Any]]:
    if path.endswith(".parquet"):
        yield from read_rows(path)
        return
    with open_source(resolve_path(path)) as source:
        lines = source.read(0, source.size).decode("utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise FormatError(str(error), path=path, field=f"line {number + 1}") from None
            yield row if isinstance(row, dict) else {}


def _below(source: str, by_file: bool, root: str) -> Iterator[Item]:
    """The files, or the models, at and below a path, with names below `root`."""
    if by_file:
        for met in scan_walk.files([source]):
            if met.why == scan_walk.GIT_HISTORY:
                continue
            passed = (met.why, met.rule) if met.why is not None else None
            yield _item(met.path, _name(met.path, root), passed=passed)
    else:
        for path in _models(resolve_path(source)):
            yield _item(str(path), _name(str(path), root))


def _root(source: str) -> str:
    """What names are relative to: the folder above a source, of an address its scheme."""
    return "" if is_remote(source) else source.rstrip("/").rpartition("/")[0]


def _name(path: str, root: str) -> str:
    """A name below the target: without the folders above the source, a scheme, or parts that lead elsewhere."""
    short = path[len(root) :] if root and path.startswith(root + "/") else path
    parts = _ADDRESS.sub("", short).replace(os.sep, "/").split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))


def _models(path: Path) -> Iterator[Path]:
    """The models at and below a path: a folder with a config is one, else each file of weights, or set of files."""
    if not path.is_dir():
        yield path
        return
    for base, folders, names in walk(path):
        folders[:] = sorted(f for f in folders if f != _GIT)
        weights = [n for n in sorted(names) if n.endswith(model_suffixes()) and not n.endswith(".npy")]
        if _CONFIG in names and any(not n.endswith(".gguf") for n in weights):
            yield base
            continue
        yield from (base / n for n in weights if (one := numbered(n)) is None or one.number == 1)


def _item(
    source: str, name: str, *, passed: tuple[str, str | None] | None = None, pin: str | None = None,
    size: int | None = None,
) -> Item:  # fmt: skip
    if passed is not None:
        return Item(source, name, 0, "", passed)
    if pin is not None and size is not None:
        return Item(source, name, size, pin)
    try:
        found_size, found = state_of(source)
    except OSError as error:  # it isn't there, or may not be read: the task says so
        return Item(source, name, 0, f"unreadable: {error.strerror or error}")
    return Item(source, name, found_size if size is None else size, found if pin is None else pin)


def state_of(source: str) -> tuple[int, str]:
    """A source's bytes, and what changes when they do: size and time, an ETag, a commit; of a folder those of its
    files."""
    if not is_remote(source):
        found = os.stat(source)
        if not stat.S_ISDIR(found.st_mode):
            return _local_state(found)
    path = resolve_path(source)
    if not path.is_dir():
        return _file_state(path)
    rows: list[tuple[str, int, str]] = []
    for base, folders, names in walk(path):
        folders[:] = sorted(f for f in folders if f != _GIT)
        rows += [(str(base / n), *_file_state(base / n)) for n in sorted(names)]
    return sum(row[1] for row in rows), digest(rows)


def _file_state(path: Path) -> tuple[int, str]:
    if isinstance(path, RemotePath):
        return path.stat().st_size, path.version
    return _local_state(path.stat())


def _local_state(found: os.stat_result) -> tuple[int, str]:
    return found.st_size, f"{found.st_size}-{found.st_mtime_ns}"
