"""Lists the items of sources: globs, folders, buckets, organisations of the Hub, manifests. The order is that of the
names, the same on every machine."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from glob import iglob
from pathlib import Path
from typing import Any, Final, Literal

from weighbridge.adapters.parquet import read_rows
from weighbridge.adapters.remote import hub_models
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers import model_suffixes
from weighbridge.containers.numbered import numbered
from weighbridge.conversion.merging.sources import RECIPES, read_any_recipe
from weighbridge.fleets.job import Item, digest
from weighbridge.io.location import RemotePath, is_remote, open_source, split_credentials, walk
from weighbridge.reports.scan import walk as scan_walk

_MANIFESTS: Final = (".jsonl", ".ndjson", ".parquet")
_WILDCARD: Final = re.compile(r"[*?\[]")
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)  # servers have no listings, and `?` starts a query
_ADDRESS: Final = re.compile(r"^[A-Za-z0-9+.-]+://|@[0-9a-f]{40}(?=/|$)")  # parts that aren't part of a name
#: The items of a command.
ItemKind = Literal["file", "model", "recipe"]
_HINTS: Final[Mapping[ItemKind, str]] = {
    "file": "list models with wb ls", "model": "list models with wb ls", "recipe": "name .yaml files of wb merge",
}  # fmt: skip
_MMPROJ: Final = re.compile(r"(^|[/\\])mmproj[^/\\]*\.gguf$")
_CONFIG: Final = "config.json"
_GIT: Final = ".git"


def items(sources: Iterable[str], *, kind: ItemKind, pairs: bool = False) -> Iterator[Item]:
    """Yields the items of sources, each once: every file, every model, or every recipe of a merge. `pairs`: an mmproj
    file is part of the model next to it. Raises UsageError if a source has no items, or if two items have the same
    name."""
    seen: dict[int, int] = {}  # hashes, since a fleet may have millions of names
    for source in sources:
        empty = True
        _check_public(source)
        for item in _expand(source, kind):
            if pairs and _MMPROJ.search(item.source):
                continue
            empty = False
            _check_public(item.source)
            name, origin = hash(item.name), hash(item.source)
            if (first := seen.get(name)) is None:
                seen[name] = origin
                yield item
            elif first != origin:
                raise UsageError(
                    f"{item.source} and another source have the same name {item.name}",
                    hint="name a folder above both, or a manifest with a name for each",
                )
        if empty:
            raise UsageError(f"{source} has no {kind}s", hint=_HINTS[kind])


def _expand(source: str, kind: ItemKind) -> Iterator[Item]:
    """Yields the items of a manifest, a glob, an organisation or a path."""
    if source.endswith(_MANIFESTS):
        yield from _manifest_items(source, kind)
        return
    wildcard = None if _WEB.match(source) else _WILDCARD.search(source)
    root = _root(source) if wildcard is None else source[: wildcard.start()].rpartition("/")[0]
    paths: Iterable[str] = [source]
    if (owner := hub_models.owner_of(source)) is not None:
        paths = hub_models.models_of(owner)
    elif wildcard is not None:
        if is_remote(source):
            remote = (str(base / name) for base, _, names in walk(resolve_path(root)) for name in names)
            paths = (path for path in remote if fnmatchcase(path, source))
        else:
            paths = sorted(iglob(source, recursive=True))
    for path in paths:
        yield from _below(path, kind, root)


def _check_public(source: str) -> None:
    """Raises UsageError for an address with a password, which the job's manifest would store."""
    address, secret = split_credentials(source)
    if secret is not None:
        raise UsageError(
            f"{address} contains a password, which the records of the fleet would store",
            hint="put the user and the password in ~/.netrc",
        )


def _manifest_items(path: str, kind: ItemKind) -> Iterator[Item]:
    """Yields the items of a manifest: rows with `source`, and optionally `name`, `size`, `pin`."""
    for number, row in enumerate(_rows(path)):
        source = row.get("source")
        if not isinstance(source, str) or not source:
            raise FormatError(
                "a row without a source", path=path, field=f"row {number + 1}", expected='{"source": ...}'
            )
        if isinstance(row.get("name"), str):
            pin = row.get("pin") if isinstance(row.get("pin"), str) else None
            size = row["size"] if isinstance(row.get("size"), int) else None
            yield _item(source, row["name"], kind, pin=pin, size=size)
        else:
            yield from _below(source, kind, _root(source))


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


def _below(source: str, kind: ItemKind, root: str) -> Iterator[Item]:
    """Yields the files, the models, or the recipes at and below a path, with names relative to `root`."""
    if kind == "file":
        for file in scan_walk.files([source]):
            if file.reason != scan_walk.GIT_HISTORY:
                passed = (file.reason, file.rule) if file.reason is not None else None
                yield _item(file.path, _name(file.path, root), kind, passed=passed)
    else:
        for path in (_models if kind == "model" else _recipes)(resolve_path(source)):
            yield _item(str(path), _name(str(path), root), kind)


def _root(source: str) -> str:
    """Returns the folder that names are relative to: the parent of a local source, the scheme of an address."""
    return "" if is_remote(source) else source.rstrip("/").rpartition("/")[0]


def _name(path: str, root: str) -> str:
    """Returns a safe name below the target: without the root, the scheme, and `.` and `..`."""
    short = path[len(root) :] if root and path.startswith(root + "/") else path
    parts = _ADDRESS.sub("", short).replace(os.sep, "/").split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))


def _models(path: Path) -> Iterator[Path]:
    """Yields the models at and below a path: folders with a config, otherwise each file or set of weights."""
    if not path.is_dir():
        yield path
        return
    for base, folders, names in walk(path):
        folders[:] = sorted(f for f in folders if f != _GIT)
        weights = [n for n in sorted(names) if n.endswith(model_suffixes()) and not n.endswith(".npy")]
        if _CONFIG in names and any(not n.endswith(".gguf") for n in weights):
            yield base
            continue
        yield from (base / n for n in weights if (part := numbered(n)) is None or part.number == 1)


def _recipes(path: Path) -> Iterator[Path]:
    """Yields the recipes at and below a path."""
    if not path.is_dir():
        yield path
        return
    for base, folders, names in walk(path):
        folders[:] = sorted(f for f in folders if f != _GIT)
        yield from (base / n for n in sorted(names) if n.endswith(RECIPES))


def _item(
    source: str, name: str, kind: ItemKind, *, passed: tuple[str, str | None] | None = None, pin: str | None = None,
    size: int | None = None,
) -> Item:  # fmt: skip
    if passed is not None:
        return Item(source, name, 0, "", passed)
    if pin is not None and size is not None:
        return Item(source, name, size, pin)
    try:
        actual_size, actual_pin = (state_of_recipe if kind == "recipe" else state_of)(source)
    except (OSError, FormatError, UsageError) as error:  # missing or unreadable, which the task reports
        return Item(source, name, 0, f"unreadable: {getattr(error, 'strerror', None) or error}")
    return Item(source, name, actual_size if size is None else size, actual_pin if pin is None else pin)


def state_of(source: str) -> tuple[int, str]:
    """Returns the size of a source, and a pin that changes with its contents: size and time, an ETag, a commit, or for
    a folder a digest of those of its files."""
    if not is_remote(source):
        status = os.stat(source)
        if not stat.S_ISDIR(status.st_mode):
            return _local_state(status)
    path = resolve_path(source)
    if not path.is_dir():
        return _file_state(path)
    rows: list[tuple[str, int, str]] = []
    for base, folders, names in walk(path):
        folders[:] = sorted(f for f in folders if f != _GIT)
        rows += [(str(base / n), *_file_state(base / n)) for n in sorted(names)]
    return sum(row[1] for row in rows), digest(rows)


def state_of_recipe(source: str) -> tuple[int, str]:
    """Returns the size of a recipe's models, and a pin that changes with the recipe and each of them."""
    recipe = read_any_recipe(resolve_path(source))
    states = [state_of(part) for model in recipe.models for part in model.split("+")]
    return sum(size for size, _ in states), digest([state_of(source), *states])


def _file_state(path: Path) -> tuple[int, str]:
    if isinstance(path, RemotePath):
        return path.stat().st_size, path.version
    return _local_state(path.stat())


def _local_state(status: os.stat_result) -> tuple[int, str]:
    return status.st_size, f"{status.st_size}-{status.st_mtime_ns}"
