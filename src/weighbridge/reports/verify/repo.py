"""What the checks of `verify` look at: the files under a path, each identified and parsed once, the sets they form. All
of it is lenient; nothing here raises because a file is wrong, and nothing decides whether something is wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.closeable import Closing
from weighbridge.base.errors import FormatError, WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON, FOLDER_FILES, INDEX_JSON, SHARDS
from weighbridge.containers import sharded
from weighbridge.containers.base import Finding, Index
from weighbridge.containers.gguf.split import parse_shard_name
from weighbridge.containers.numbered import numbered
from weighbridge.containers.sharded import ShardIndex
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.sniff.probe import Identity
from weighbridge.io.location import RemotePath, StoredPath, open_source, prepare, walk
from weighbridge.io.source import Source
from weighbridge.models.modelfile import is_modelfile, read_modelfile, referred
from weighbridge.models.tensor_parallel.rank_set import rank_of
from weighbridge.reports import lenient, sidecars
from weighbridge.reports.verify.zeros import ZeroTail, zero_tail_of

Progress = Callable[[int, int, str], None]
# Folders below folders that are checked: repositories nest two deep, the cache of Hugging Face three.
_DEPTH: Final = 3
# Formats without tensors that have rules of their own.
_CHECKED: Final = frozenset({"imatrix-dat"})
# Suffixes of the small files that lie beside weights.
_SMALL: Final = frozenset(
    {"", ".json", ".jsonl", ".txt", ".md", ".model", ".jinja", ".py", ".yaml", ".yml", ".png", ".jpg"}
)
# Names of what Weighbridge is writing, or was when it was killed (`io.sink`, `conversion.edit`).
LEFTOVER: Final = re.compile(r"\.(?P<name>.+)\.(?:journal|\d+\.(?P<kind>partial|old))")


@dataclass(frozen=True)
class RepoFile:
    """One file: its format and the findings of its container. `trouble`: why it can't be opened."""

    name: str
    path: Path
    size: int = 0
    identity: Identity | None = None
    source: Source | None = None
    index: Index | None = None
    findings: tuple[Finding, ...] = ()
    trouble: str | None = None

    @property
    def format(self) -> str:
        return self.identity.format if self.identity else ""

    @property
    def base(self) -> str:
        return self.path.name

    @property
    def parsed(self) -> tuple[Source, Index]:
        """Source and index of a file of `Repo.weights`."""
        assert self.source is not None
        assert self.index is not None
        return self.source, self.index

    @cached_property
    def zeros(self) -> ZeroTail:
        """The zeros at the end of a file of `Repo.weights`."""
        return zero_tail_of(self.parsed[0])


@dataclass(frozen=True)
class Listed:
    """An index JSON: what it says (None where nothing can be made of it), names in it that leave the folder."""

    file: RepoFile
    map: ShardIndex | None
    outside: Mapping[str, object]
    why: str | None = None


class Repo(Closing):
    """The files under `path`: one file (of a model in a store all its files), the set that a split GGUF belongs to, or
    a folder. `progress`: of checks that read data. Close it when done."""

    def __init__(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        self.path, self.progress = resolve_path(path), progress
        self.stored = tuple(p.name for p in self.path.files) if isinstance(self.path, StoredPath) else ()
        self.single = not self.path.is_dir()
        self.modelfile = self.path if self.single and is_modelfile(self.path) else None
        if self.modelfile is not None:  # it stands for the model that it describes, where it can be read
            self.path = _described(self.modelfile)
            self.single = not self.path.is_dir()
        if sharded.is_index(self.path.name) and self.single:  # an index stands for its folder
            self.path, self.single = self.path.parent, False
        self.root = self.path.parent if self.single else self.path
        if self.single:
            self.path.stat()  # no such file: the system's own words
        self.memo: dict[str, Any] = {}  # what several checks need, worked out once

    # ---------------------------------------------------------------- files

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the files, relative to the root, sorted."""
        if not self.single:
            listed = set(islice(_walk(self.root), FOLDER_FILES))
            return tuple(sorted(listed | _unlisted(self.root, listed)))
        declared = parse_shard_name(self.path.name)
        if declared is None:
            return tuple(sorted({self.path.name, *self.stored}))
        listed = {self.path.name, *(p.name for p in self.root.iterdir())}
        near = listed | _unlisted(self.root, listed)
        siblings = (n for n in near if (s := parse_shard_name(n)) and (s[0], s[2]) == (declared[0], declared[2]))
        return tuple(sorted(siblings))

    @cached_property
    def files(self) -> tuple[RepoFile, ...]:
        return tuple(self._file(name) for name in self.names)

    def _file(self, name: str) -> RepoFile:
        file = RepoFile(name, self.root / name)
        try:
            source = open_source(file.path)
        except OSError as error:
            return replace(file, trouble=_words(error, file.path))
        except WeighbridgeError as error:
            return replace(file, trouble=error.message)
        identity = sniff(source)
        file = replace(file, size=source.size, source=source, identity=identity)
        if not identity.readable or LEFTOVER.fullmatch(file.base):
            return file
        index, findings = lenient.lenient(source, file.format)
        return replace(file, index=index, findings=findings)

    @property
    def weights(self) -> tuple[RepoFile, ...]:
        """Files whose tensors are known."""
        return tuple(f for f in self.files if f.index is not None)

    @property
    def checked(self) -> tuple[RepoFile, ...]:
        """Files of formats that verify checks: those with tensors, and indexes of shards."""
        return tuple(f for f in self.files if f.index is not None or f.format in _CHECKED or sharded.is_index(f.base))

    @property
    def unchecked(self) -> tuple[RepoFile, ...]:
        """Files of formats that it doesn't check. In a folder the small files beside the weights don't count."""
        known = {f.name for f in self.checked}
        small = () if self.single and not self.stored else _SMALL
        return tuple(f for f in self.files if f.name not in known and f.source and f.path.suffix not in small)

    def folder(self, name: str) -> str:
        return name.rpartition("/")[0]

    @cached_property
    def folders(self) -> Mapping[str, tuple[RepoFile, ...]]:
        """Folder -> its files."""
        out: dict[str, list[RepoFile]] = {}
        for file in self.files:
            out.setdefault(self.folder(file.name), []).append(file)
        return {folder: tuple(files) for folder, files in out.items()}

    # ---------------------------------------------------------------- sets

    @cached_property
    def listed(self) -> tuple[Listed, ...]:
        """The index JSONs."""
        return tuple(_listed(f) for f in self.files if sharded.is_index(f.base) and f.source)

    def shards(self, listed: Listed) -> dict[str, Index]:
        """The parsed files of an index's set, by name."""
        named = set(listed.map.files) if listed.map else set()
        return {f.base: f.index for f in self.folders[self.folder(listed.file.name)] if f.base in named and f.index}

    @cached_property
    def splits(self) -> Mapping[tuple[str, str, int], tuple[RepoFile, ...]]:
        """GGUF splits by folder, prefix and count."""
        out: dict[tuple[str, str, int], list[RepoFile]] = {}
        for file in self.weights:
            declared = parse_shard_name(file.base)
            if file.format == "gguf" and declared:
                out.setdefault((self.folder(file.name), declared[0], declared[2]), []).append(file)
        return {key: tuple(files) for key, files in out.items()}

    # ---------------------------------------------------------------- small files

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON object by its name in the root; None where it isn't there or is none."""
        found = next((f for f in self.files if f.name == name and f.source), None)
        value = _decoded(found.source) if found and found.source and found.size <= CONFIG_JSON else None
        return value if isinstance(value, dict) else None

    @cached_property
    def config(self) -> dict[str, Any]:
        return {} if self.single else self.json("config.json") or {}

    @cached_property
    def model(self) -> Index | None:
        """The model of the folder itself: the set of the first index, else `model*.safetensors`; None where there is
        none or it isn't whole enough to be spoken of."""
        top = [x for x in self.listed if "/" not in x.file.name and x.map and not rank_of(x.file.base)]
        if top and top[0].map:
            shards = self.shards(top[0])
            try:
                return sharded.merge(list(shards.values()), top[0].map) if shards else None
            except FormatError:  # not whole: reported by other rules
                return None
        own = [f.index for f in self.folders.get("", ()) if f.base == "model.safetensors" and f.index]
        return own[0] if own else None

    def close(self) -> None:
        for file in self.__dict__.get("files", ()):
            if file.source:
                file.source.close()


def _walk(root: Path) -> Iterator[str]:
    """Files below `root`, as relative names with slashes; neither links to folders nor leftovers are followed."""
    for base, folders, files in walk(root):
        inner = base.relative_to(root)
        near = sorted(f for f in folders if f != ".git" and not LEFTOVER.fullmatch(f))
        folders[:] = near if len(inner.parts) < _DEPTH else []
        yield from ((inner / file).as_posix() for file in sorted(files))


def _unlisted(root: Path, listed: Set[str]) -> set[str]:
    """The files that indices and the numbers in names speak of, as far as they are there: a web server lists none."""
    if not isinstance(root, RemotePath):
        return set()
    names = {name for one in listed for name in _spoken_of(root, one)} - listed
    prepare(root / name for name in names)
    return {name for name in names if (root / name).is_file()}


def _spoken_of(root: Path, name: str) -> Iterable[str]:
    """The other files of the set that a file belongs to. What is wrong with it is found elsewhere."""
    if sharded.is_index(name):
        with suppress(OSError, FormatError), open_source(root / name) as source:
            return [str(PurePosixPath(name).parent / file) for file in sharded.parse_index(source).files]
    one = numbered(name)
    return one.names() if one and one.total <= SHARDS else ()


def _words(error: OSError, path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return f"a link to {os.readlink(path)}, which does not exist"
    return error.strerror or str(error)


def _decoded(source: Source) -> Any:
    try:
        return sidecars.decoded(source.read(0, source.size))
    except FormatError:  # it shrank
        return None


def _listed(file: RepoFile) -> Listed:
    """An index JSON. Where names in it leave the folder they are taken out, so that the rest can still be checked."""
    assert file.source is not None
    try:
        return Listed(file, sharded.parse_index(file.source), {})
    except FormatError as error:
        why = error.reason
    doc = _decoded(file.source) if file.size <= INDEX_JSON else None
    where = doc.get("weight_map") if isinstance(doc, dict) else None
    outside = {t: n for t, n in where.items() if not _plain(n)} if isinstance(where, dict) else {}
    if not isinstance(where, dict) or not outside:
        return Listed(file, None, {}, why)
    good = {t: n for t, n in where.items() if t not in outside}
    metadata = doc.get("metadata") if isinstance(doc, dict) else None
    return Listed(file, ShardIndex(file.source.name, good, metadata if isinstance(metadata, dict) else {}), outside)


def _plain(name: object) -> bool:
    try:
        sharded.shard_name(name, "", "")
    except FormatError:
        return False
    return True


def _described(modelfile: Path) -> Path:
    """The path of a Modelfile's FROM line; the Modelfile's own where it can't be read, which a check reports."""
    try:
        file = read_modelfile(modelfile)
        return resolve_path(referred(file, file.values("FROM")[0], modelfile.parent))
    except WeighbridgeError:
        return modelfile
