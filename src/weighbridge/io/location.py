"""Paths to files that lie elsewhere. A `RemotePath` answers what a folder's or a file's path is asked; `open_source`
opens any path. What a scheme means is decided in `adapters/remote`, by which every path of a user goes."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from weighbridge.base.errors import UsageError
from weighbridge.io.source import FileSource, Source

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class RemoteTree(Protocol):
    """The files below one root, each of one version. Names have slashes; "" is the root. `title`: the root as a user
    would write it."""

    title: str

    def size(self, name: str) -> int | None:
        """A file's bytes; None where there is no such file."""

    def children(self, folder: str) -> Mapping[str, bool] | None:
        """The names in a folder and whether each is a folder; None where there is no such folder."""

    def version(self, name: str) -> str:
        """What changes when the file's bytes do."""

    def digest(self, name: str) -> tuple[str, str] | None:
        """A file's digest as the place lists it: "sha256" or "git", and hex; None where it lists none."""

    def open(self, name: str) -> Source:
        """A file of the tree. FileNotFoundError where there is none."""


class TargetTree(RemoteTree, Protocol):
    """A tree that can be written to."""

    def check(self, name: str, *, overwrite: bool, folder: bool | None) -> None:
        """Checks for obstacles to a write under a name, before any work. RefusedError where something is there."""

    def sink(self, name: str, **how: Any) -> Any:
        """What is written under a name, with the interface of `weighbridge.io.sink.Sink`."""

    def staged(self, size: int, late: int) -> int:
        """Bytes of this machine's disk that a write of `size` bytes takes, `late` of them in files whose first bytes
        depend on the last."""


_TREES: Final[dict[str, RemoteTree]] = {}


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a file elsewhere, by its scheme."""
    text = os.fspath(path)
    return "://" in text and _SCHEME.match(text) is not None


def check_local(path: str | os.PathLike[str]) -> None:
    """UsageError for an address, where only a path on this machine will do."""
    if is_remote(path) or isinstance(path, RemotePath):
        raise UsageError(f"{path} isn't a path on this machine", hint=f"fetch it first: wb fetch {path} DIR")


def open_source(path: Path | str) -> Source:
    """The file at a path, here or elsewhere."""
    return path.open_source() if isinstance(path, RemotePath) else FileSource(path)


def expect(paths: Iterable[Path], length: int) -> None:
    """Begin to read the first `length` bytes of files elsewhere, of all at the same time. What is under way survives
    its source: it is kept for the next one. Of a file here, nothing."""
    far = [path for path in paths if isinstance(path, RemotePath)]
    prepare(far)
    for path in far:
        source = path.open_source()
        source.stream(length) if source.remote else source.close()


def prepare(paths: Iterable[Path]) -> None:
    """Learn at the same time what opening these files takes, where a place must be asked about each."""
    names: dict[RemoteTree, list[str]] = {}
    for tree, name in (path._tree() for path in paths if isinstance(path, RemotePath)):
        names.setdefault(tree, []).append(name)
    for tree, some in names.items():
        if (ask := getattr(tree, "prepare", None)) is not None:
            ask(some)


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk` of any path: folder, names of folders (may be changed), names of files."""
    if not isinstance(root, RemotePath):
        yield from ((Path(base), folders, files) for base, folders, files in os.walk(root))
        return
    below = root.children()
    folders = sorted(name for name, is_folder in below.items() if is_folder)
    yield root, folders, sorted(name for name, is_folder in below.items() if not is_folder)
    for name in folders:
        yield from walk(root / name)


class StoredPath(type(Path())):  # type: ignore[misc]  # pathlib's class for this system
    """A model's weights in a store on this machine. `title`: what the store calls the model; `parts`: its files, each
    with its kind; `sidecars`: the kinds of those that aren't weights; `adapters`: those that belong to the model."""

    title: str = ""
    parts: tuple[tuple[str, Path], ...] = ()
    sidecars: tuple[str, ...] = ()
    adapters: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(file for _, file in self.parts)


class RemotePath(type(Path())):  # type: ignore[misc]  # pathlib's class for this system
    """The path of a file or folder elsewhere: pathlib's arithmetic, and a `RemoteTree`'s answers."""

    @classmethod
    def root(cls, text: str, tree: RemoteTree) -> RemotePath:
        """The root of a tree, written `scheme://...`."""
        path = cls(text.replace("://", ":/", 1))
        _TREES[_plain(path)] = tree
        return path

    def _found(self) -> tuple[RemoteTree, str] | None:
        """The tree, and the name in it."""
        parts = self.parts
        for cut in range(len(parts), 1, -1):
            if (tree := _TREES.get("/".join(parts[:cut]))) is not None:
                return tree, "/".join(parts[cut:])
        return None

    def _tree(self) -> tuple[RemoteTree, str]:
        if (found := self._found()) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(self))
        return found

    def open_source(self) -> Source:
        """The file's bytes."""
        tree, name = self._tree()
        if tree.size(name) is None and tree.children(name) is not None:
            raise IsADirectoryError(f"{self} is a folder, not a file")
        return tree.open(name)

    @property
    def place(self) -> tuple[TargetTree, str]:
        """The tree to write to, and the name in it. UsageError for a path that is only read."""
        tree, name = self._tree()
        if not hasattr(tree, "sink"):
            raise UsageError(f"{self} is only read", hint="write to this machine, a bucket or hf://")
        return tree, name  # type: ignore[return-value]  # a `TargetTree`, by its method

    @property
    def sidecars(self) -> tuple[str, ...]:
        """What the place has of the model in files that aren't in the tree."""
        found = self._found()
        sidecars: tuple[str, ...] = getattr(found[0], "sidecars", ()) if found else ()
        return sidecars

    @property
    def version(self) -> str:
        """What changes when the file's bytes do."""
        tree, name = self._tree()
        return tree.version(name)

    @property
    def digest(self) -> tuple[str, str] | None:
        """The file's digest as its place lists it: "sha256" or "git", and hex."""
        tree, name = self._tree()
        return tree.digest(name)

    def children(self) -> Mapping[str, bool]:
        """The names in this folder, and whether each is a folder."""
        tree, name = self._tree()
        below = tree.children(name)
        if below is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(self))
        return below

    def __str__(self) -> str:
        if (found := self._found()) is None:
            return _plain(self)
        tree, name = found
        return f"{tree.title}/{name}" if name else tree.title

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        return RemotePath, (_plain(self),)

    @property
    def parent(self) -> Any:
        """The folder above; a root's is the root itself."""
        found = self._found()
        return self if found is not None and not found[1] else super().parent

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found = self._found()
        size = found[0].size(found[1]) if found else None
        if size is not None:
            return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, size, 0, 0, 0))
        if found and found[0].children(found[1]) is not None:
            return os.stat_result((stat.S_IFDIR | 0o555, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(self))

    def lstat(self) -> os.stat_result:
        return self.stat()

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        found = self._found()
        return found is not None and found[0].size(found[1]) is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        found = self._found()
        return found is not None and found[0].children(found[1]) is not None

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Iterator[Any]:
        return iter([self / name for name in self.children()])

    def rglob(self, pattern: str, **_: Any) -> Iterator[Any]:
        found = (base / name for base, folders, files in walk(self) for name in (*folders, *files))
        return (path for path in found if path.match(pattern))

    def glob(self, pattern: str, **_: Any) -> Iterator[Any]:
        depth = len(self.parts) + pattern.count("/") + 1
        return (path for path in self.rglob(pattern) if len(path.parts) == depth)

    def resolve(self, strict: bool = False) -> RemotePath:
        return self

    def absolute(self) -> RemotePath:
        return self

    def read_bytes(self) -> bytes:
        with self.open_source() as source:
            return source.read(0, source.size)

    def read_text(self, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")


def _plain(path: Path) -> str:
    """The parts with slashes between them, whatever pathlib does on this system."""
    return "/".join(path.parts)
