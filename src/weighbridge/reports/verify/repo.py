"""The input of `verify`'s checks: the files under a path, each identified and parsed once, and the sets they form.
Everything is lenient: nothing here raises because of a bad file, or decides whether something is wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.closeable import Closing
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON, FOLDER_FILES, INDEX_JSON, SHARDS
from weighbridge.base.records import dataclass
from weighbridge.containers import sharded
from weighbridge.containers.base import Finding, Index, Severity
from weighbridge.containers.formats import DFLOAT11, ORBAX
from weighbridge.containers.gguf.split import parse_shard_name
from weighbridge.containers.numbered import numbered
from weighbridge.containers.sharded import ShardIndex
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.sniff.probe import Identity
from weighbridge.containers.zero_tail import ZeroTail, zero_tail_of
from weighbridge.io.location import RemotePath, StoredPath, open_source, prepare, walk
from weighbridge.io.source import Source
from weighbridge.models.arch.family import Family
from weighbridge.models.archives import resolve
from weighbridge.models.locate import DCP_METADATA, Place
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.modelfile import is_modelfile, read_modelfile, referred
from weighbridge.models.tensor_parallel.rank_set import rank_of
from weighbridge.reports import lenient, sidecars

Progress = Callable[[int, int, str], None]
# Levels of folders that are checked: repositories nest two deep, the cache of Hugging Face three.
_DEPTH: Final = 3
# Suffixes of the small files next to weights.
_SMALL: Final = frozenset(
    {"", ".json", ".jsonl", ".txt", ".md", ".model", ".jinja", ".py", ".yaml", ".yml", ".png", ".jpg"}
)
# Names of files that Weighbridge is writing, or was writing when it was killed (`io.sink`, `conversion.edit`).
LEFTOVER: Final = re.compile(r"\.(?P<name>.+)\.(?:journal|\d+\.(?P<kind>partial|old))")


@dataclass(frozen=True)
class RepoFile:
    """A file, its format and the findings of its container. `trouble`: why it can't be opened."""

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
    """An index JSON, and its map (None if it is broken). `outside`: its entries that lead out of the folder."""

    file: RepoFile
    map: ShardIndex | None
    outside: Mapping[str, object]
    error: str | None = None


class OrbaxItems(NamedTuple):
    """Checkpoints that can be opened, and the errors of others, by their folders."""

    models: tuple[tuple[Path, OpenModel], ...]
    errors: tuple[tuple[Path, WeighbridgeError], ...]


#: The key of `Repo.memo` with the error of a model whose code can't be read.
CODED: Final = "coded"


class Repo(Closing):
    """The files under `path`: one file (for a model in a store all its files), the set of a split GGUF, or a folder.
    `progress`: of checks that read data; `values`: whether all data is read; `families`: tables that are tried first;
    `mmproj`: a projector that is checked with the model.
    Close it when done."""

    def __init__(
        self, path: str | os.PathLike[str], progress: Progress | None = None, *, values: bool = False,
        families: Sequence[Family] = (), mmproj: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        self._mmproj = mmproj
        self.families = families
        self.path, self.progress, self.values = resolve_path(path), progress, values
        self.archive_error: FormatError | UnsupportedError | None = None
        try:
            self.path = resolve(path)
        except (FormatError, UnsupportedError) as error:  # a rule reports it
            self.archive_error = error
        self.stored = tuple(p.name for p in self.path.files) if isinstance(self.path, StoredPath) else ()
        self.single = not self.path.is_dir()
        self.modelfile = self.path if self.single and is_modelfile(self.path) else None
        if self.modelfile is not None:  # check the model of its FROM line; a rule reports an unreadable Modelfile
            with suppress(WeighbridgeError):
                parsed = read_modelfile(self.modelfile)
                self.path = resolve(referred(parsed, parsed.values("FROM")[0], self.modelfile.parent))
            self.single = not self.path.is_dir()
        named = sharded.is_index(self.path.name) or self.path.name == DCP_METADATA
        if named and self.single:  # check the folder of the list
            self.path, self.single = self.path.parent, False
        self.root = self.path.parent if self.single else self.path
        if self.single:
            self.path.stat()  # raises the system's own error
        self.memo: dict[str, Any] = {}  # results that several checks need

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
        same = (n for n in near if (s := parse_shard_name(n)) and (s[0], s[2]) == (declared[0], declared[2]))
        return tuple(sorted(same))

    @cached_property
    def files(self) -> tuple[RepoFile, ...]:
        return _with_chunks(tuple(_read_file(name, self.root / name, among=len(self.names)) for name in self.names))

    @cached_property
    def orbax(self) -> OrbaxItems:
        """The checkpoints of Orbax in the folder and below it."""
        models: list[tuple[Path, OpenModel]] = []
        errors: list[tuple[Path, WeighbridgeError]] = []
        for file in self.files if not self.single else ():
            if file.base == ORBAX:
                try:
                    models.append((file.path.parent, open_weights(file.path.parent)))
                except WeighbridgeError as error:
                    errors.append((file.path.parent, error))
        return OrbaxItems(tuple(models), tuple(errors))

    @cached_property
    def mmproj(self) -> RepoFile | None:
        """The projector that is checked with the model."""
        return None if self._mmproj is None else _read_file(os.fspath(self._mmproj), resolve(self._mmproj))

    @property
    def weights(self) -> tuple[RepoFile, ...]:
        """Files with parsed tensors."""
        return tuple(f for f in self.files if f.index is not None)

    @property
    def checked(self) -> tuple[RepoFile, ...]:
        """Files that verify checks: those with tensors, and indexes of shards."""
        return tuple(f for f in self.files if f.index is not None or sharded.is_index(f.base) or self._in_orbax(f))

    def _in_orbax(self, file: RepoFile) -> bool:
        """Whether a file is part of a checkpoint of Orbax."""
        items = [path for path, _ in (*self.orbax.models, *self.orbax.errors)]
        return any(file.path.is_relative_to(item) for item in items)

    @property
    def unchecked(self) -> tuple[RepoFile, ...]:
        """Files that verify doesn't check. In a folder the small files next to the weights don't count."""
        checked = {f.name for f in self.checked}
        data = {source.name for f in self.weights for source in f.parsed[1].files}
        small = () if self.single and not self.stored else _SMALL
        return tuple(
            f
            for f in self.files
            if f.name not in checked and f.source and str(f.path) not in data and f.path.suffix not in small
        )

    def folder(self, name: str) -> str:
        return name.rpartition("/")[0]

    @cached_property
    def folders(self) -> Mapping[str, tuple[RepoFile, ...]]:
        """Folder -> its files."""
        files: dict[str, list[RepoFile]] = {}
        for file in self.files:
            files.setdefault(self.folder(file.name), []).append(file)
        return {folder: tuple(members) for folder, members in files.items()}

    # ---------------------------------------------------------------- sets

    @cached_property
    def listed(self) -> tuple[Listed, ...]:
        """The index JSONs."""
        return tuple(_listed(f) for f in self.files if sharded.is_index(f.base) and f.source)

    def shards(self, listed: Listed) -> dict[str, Index]:
        """The parsed files of an index's set, by name."""
        names = set(listed.map.files) if listed.map else set()
        return {f.base: f.index for f in self.folders[self.folder(listed.file.name)] if f.base in names and f.index}

    @cached_property
    def splits(self) -> Mapping[tuple[str, str, int], tuple[RepoFile, ...]]:
        """GGUF splits by folder, prefix and count."""
        splits: dict[tuple[str, str, int], list[RepoFile]] = {}
        for file in self.weights:
            declared = parse_shard_name(file.base)
            if file.format == "gguf" and declared:
                splits.setdefault((self.folder(file.name), declared[0], declared[2]), []).append(file)
        return {key: tuple(files) for key, files in splits.items()}

    # ---------------------------------------------------------------- small files

    def json(self, name: str) -> dict[str, Any] | None:
        """The JSON object in a file by its name relative to the root, or None."""
        file = next((f for f in self.files if f.name == name and f.source), None)
        value = _decoded(file.source) if file and file.source and file.size <= CONFIG_JSON else None
        return value if isinstance(value, dict) else None

    @cached_property
    def config(self) -> dict[str, Any]:
        return {} if self.single else self.json("config.json") or {}

    @cached_property
    def model(self) -> Index | None:
        """The model in the folder itself: the set of the first index, or model.safetensors. None if there is none, it
        is too incomplete, or its code can't be read; then `memo` has the error."""
        index = self._stored_model()
        if index is None or not any(entry.name.endswith(DFLOAT11) for entry in index.entries):
            return index
        from weighbridge.models.dfloat11 import decoded  # late: few models are in its code

        try:
            return decoded(OpenModel(Place(self.root, (), self.root), index)).index
        except WeighbridgeError as error:
            self.memo[CODED] = error
            return None

    def _stored_model(self) -> Index | None:
        top = [x for x in self.listed if "/" not in x.file.name and x.map and not rank_of(x.file.base)]
        if top and top[0].map:
            shards = self.shards(top[0])
            try:
                return sharded.merge(list(shards.values()), top[0].map) if shards else None
            except FormatError:  # incomplete: reported by other rules
                return None
        candidates = (f.index for f in self.folders.get("", ()) if f.base == "model.safetensors" and f.index)
        return next(candidates, None)

    def close(self) -> None:
        for _, model in self.orbax.models if "orbax" in self.__dict__ else ():
            model.close()
        for file in (*self.__dict__.get("files", ()), self.__dict__.get("mmproj")):
            if file is not None and file.source:
                file.source.close()


def _read_file(name: str, path: Path, among: int = 1) -> RepoFile:
    """A file with its format and findings. `among`: the number of files that are open together."""
    file = RepoFile(name, path)
    try:
        source = open_source(file.path, among)
    except OSError as error:
        broken_link = file.path.is_symlink() and not file.path.exists()
        target = f"a link to {os.readlink(file.path)}, which does not exist" if broken_link else None
        return replace(file, trouble=target or error.strerror or str(error))
    except WeighbridgeError as error:
        return replace(file, trouble=error.message)
    identity = sniff(source)
    file = replace(file, size=source.size, source=source, identity=identity)
    if not identity.readable or LEFTOVER.fullmatch(file.base):
        return file
    index, findings = lenient.lenient(source, file.format)
    if index is not None and len(index.files) > 1:
        from weighbridge.models.data_files import open_data_files  # late: few files name others

        try:
            index = open_data_files(index, file.path.parent)
        except FormatError as error:
            index, findings = None, (*findings, lenient.broken(f"{file.format}/broken", error, source.name))
        except RefusedError as error:
            refused = Finding(f"{file.format}/unread", Severity.WARNING, error.message, source.name, hint=error.hint)
            index, findings = None, (*findings, refused)
    return replace(file, index=index, findings=findings)


def _with_chunks(files: tuple[RepoFile, ...]) -> tuple[RepoFile, ...]:
    """The files, with the chunks that the `.metadata` of their folder lists in each data file."""
    found = {f.path.parent: f.source for f in files if f.base == DCP_METADATA and f.index is not None and f.source}
    if not found:
        return files
    from weighbridge.containers.torch import dcp
    from weighbridge.models.distributed import chunk_index

    listed = {folder: dcp.inspect(source) for folder, source in found.items()}
    out: list[RepoFile] = []
    for file in files:
        metadata = listed.get(file.path.parent)
        if metadata is not None and file.source and file.base in metadata.files:
            index, findings = chunk_index(metadata, file.base, file.source)
            file = replace(file, index=index, findings=findings)
        out.append(file)
    return tuple(out)


def _walk(root: Path) -> Iterator[str]:
    """Files below `root`, as relative names with slashes; links to folders and leftovers aren't followed."""
    for base, folders, files in walk(root):
        inner = base.relative_to(root)
        kept = sorted(f for f in folders if f != ".git" and not LEFTOVER.fullmatch(f))
        folders[:] = kept if len(inner.parts) < _DEPTH else []
        yield from ((inner / file).as_posix() for file in sorted(files))


def _unlisted(root: Path, listed: Set[str]) -> set[str]:
    """Existing files that indexes and numbered names refer to, on a web server, which lists no files."""
    if not isinstance(root, RemotePath):
        return set()
    names = {name for file in listed for name in _files_of_set(root, file)} - listed
    prepare(root / name for name in names)
    return {name for name in names if (root / name).is_file()}


def _files_of_set(root: Path, name: str) -> Iterable[str]:
    """The files of the set that a file belongs to. Other code reports errors in it."""
    if sharded.is_index(name):
        with suppress(OSError, FormatError), open_source(root / name) as source:
            return [str(PurePosixPath(name).parent / file) for file in sharded.parse_index(source).files]
    number = numbered(name)
    return number.names() if number and number.total <= SHARDS else ()


def _decoded(source: Source) -> Any:
    try:
        return sidecars.decode(source.read(0, source.size))
    except FormatError:  # the file shrank
        return None


def _listed(file: RepoFile) -> Listed:
    """An index JSON. Names that lead out of the folder are removed, so that the others can still be checked."""
    assert file.source is not None
    try:
        return Listed(file, sharded.parse_index(file.source), {})
    except FormatError as error:
        reason = error.reason
    doc = _decoded(file.source) if file.size <= INDEX_JSON else None
    weight_map = doc.get("weight_map") if isinstance(doc, dict) else None
    if not isinstance(weight_map, dict) or all(map(_is_inside, weight_map.values())):
        return Listed(file, None, {}, reason)
    inside = {t: n for t, n in weight_map.items() if _is_inside(n)}
    outside = {t: n for t, n in weight_map.items() if t not in inside}
    metadata = doc.get("metadata") if isinstance(doc, dict) else None
    return Listed(file, ShardIndex(file.source.name, inside, metadata if isinstance(metadata, dict) else {}), outside)


def _is_inside(name: object) -> bool:
    """Whether a name in an index is a plain file name of its folder."""
    try:
        sharded.shard_name(name, "", "")
    except FormatError:
        return False
    return True
