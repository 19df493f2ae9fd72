"""Paths to files in trees: remote ones, and members of archives. A `TreePath` supports the operations of a path to a
file or folder; `open_source` opens any path. `adapters/remote` interprets schemes, and `models/archives` archives."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit, urlunsplit

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import OPEN_FILES
from weighbridge.io.source import FileSource, ReopenedFile, Source

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_IPV6: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/\[]*\[[^/\]]*\]")
_WEB: Final = frozenset({"http", "https"})


class FileTree(Protocol):
    """The files below one root, each of one version. Names have slashes; "" is the root. `title`: the root as a user
    would write it."""

    title: str

    def size(self, name: str) -> int | None:
        """Returns a file's bytes; None if the file is missing."""

    def children(self, folder: str) -> Mapping[str, bool] | None:
        """Returns the names in a folder and whether each is a folder; None if the folder is missing."""

    def version(self, name: str) -> str:
        """What changes when the file's bytes do."""

    def digest(self, name: str) -> tuple[str, str] | None:
        """Returns the digest that the store lists for a file: "sha256" or "git", and hex; None without one."""

    def open(self, name: str) -> Source:
        """Opens a file of the tree. Raises FileNotFoundError if it is missing."""


class TargetTree(FileTree, Protocol):
    """A tree that can be written to."""

    def check(self, name: str, *, overwrite: bool, folder: bool | None) -> None:
        """Checks for obstacles to a write under a name, before any work. RefusedError where something is there."""

    def sink(self, name: str, **how: Any) -> Any:
        """Returns a sink for a name, with the interface of `weighbridge.io.sink.Sink`."""

    def staged(self, size: int, late: int) -> int:
        """Bytes of this machine's disk that a write of `size` bytes takes, `late` of them in files whose first bytes
        depend on the last."""


_TREES: Final[dict[str, FileTree]] = {}


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a file elsewhere, by its scheme."""
    text = os.fspath(path)
    return "://" in text and _SCHEME.match(text) is not None


def parse_address(text: str) -> SplitResult:
    """The parts of an address. Raises UsageError if it is invalid."""
    try:
        return urlsplit(text)
    except ValueError as error:
        shown, hint = text.rpartition("@")[2], "write SCHEME://HOST/PATH, and an IPv6 address as [::1]"
        raise UsageError(f"{shown}: no valid address: {error}", hint=hint) from None


def split_tensor(text: str) -> tuple[str, str, str]:
    """Parts `PATH::TENSOR` as `str.partition` does, but not within the brackets of an IPv6 address."""
    host = _IPV6.match(text)
    cut = host.end() if host else 0
    path, colons, name = text[cut:].partition("::")
    return text[:cut] + path, colons, name


def split_credentials(text: str) -> tuple[str, str | None]:
    """Splits a web server's URL into the URL without `USER:PASSWORD@` and these; returns any other text unchanged."""
    if "@" not in text or not is_remote(text):
        return text, None
    parts = parse_address(text)
    if parts.scheme not in _WEB:
        return text, None
    user, at, host = parts.netloc.rpartition("@")
    if at:
        return urlunsplit(parts._replace(netloc=host)), user
    try:
        _ = parts.port
    except ValueError:  # nothing of the text is shown: it has what may be a password
        hint = "percent-encode special characters in user and password: %23 is #, %2F is /, %3F is ?"
        raise UsageError("an address with @ has no valid port", hint=hint) from None
    return text, None


def path_text(path: str | os.PathLike[str]) -> str:
    """Returns a path for reports: unchanged, without a password."""
    return split_credentials(os.fspath(path))[0]


def check_local(path: str | os.PathLike[str]) -> None:
    """UsageError for an address, where only a path on this machine will do."""
    if isinstance(path, WrappedPath):
        raise UsageError(f"{path} is inside an archive, a compressed file or an OCI layout", hint="unpack it first")
    if is_remote(path) or isinstance(path, RemotePath):
        shown = path_text(path)
        raise UsageError(f"{shown} isn't a path on this machine", hint=f"fetch it first: wb fetch {shown} DIR")


def open_source(path: Path | str, among: int = 1) -> Source:
    """The file at a path, here or elsewhere. `among`: the number of files that are open together; the files of a large
    set are opened for each read."""
    if isinstance(path, TreePath):
        return path.open_source()
    return FileSource(path) if among <= OPEN_FILES else ReopenedFile(path)


def expect(paths: Iterable[Path], length: int) -> None:
    """Begins to read the first `length` bytes of all remote files concurrently. Pending reads outlive their source and
    serve the next one. Local files aren't read."""
    far = [path for path in paths if isinstance(path, RemotePath)]
    prepare(far)
    for path in far:
        source = path.open_source()
        source.stream(length) if source.remote else source.close()


def prepare(paths: Iterable[Path]) -> None:
    """Fetches concurrently the metadata for opening these files, from stores with one request per file."""
    names: dict[FileTree, list[str]] = {}
    for tree, name in (path._tree() for path in paths if isinstance(path, RemotePath)):
        names.setdefault(tree, []).append(name)
    for tree, some in names.items():
        if (ask := getattr(tree, "prepare", None)) is not None:
            ask(some)


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk` of any path: folder, names of folders (may be changed), names of files."""
    if not isinstance(root, TreePath):
        yield from ((Path(base), folders, files) for base, folders, files in os.walk(root))
        return
    below = root.children()
    folders = sorted(name for name, is_folder in below.items() if is_folder)
    yield root, folders, sorted(name for name, is_folder in below.items() if not is_folder)
    for name in folders:
        yield from walk(root / name)


class StoredPath(type(Path())):  # type: ignore[misc]  # pathlib's class for this system
    """A model's weights in a store on this machine. `title`: the model's name in the store; `parts`: its files, each
    with its kind; `sidecars`: the kinds of files without weights; `adapters`: the adapters that belong to the model."""

    title: str = ""
    parts: tuple[tuple[str, Path], ...] = ()
    sidecars: tuple[str, ...] = ()
    adapters: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(file for _, file in self.parts)


class TreePath(type(Path())):  # type: ignore[misc]  # pathlib's class for this system
    """The path of a file or folder in a tree: pathlib's arithmetic, and a `FileTree`'s answers."""

    @classmethod
    def root(cls, text: str, tree: FileTree) -> Any:
        """The root of a tree, written `scheme://...`."""
        path = cls(text.replace("://", ":/", 1))
        _TREES[_plain(path)] = tree
        return path

    def _found(self) -> tuple[FileTree, str] | None:
        """The tree, and the name in it."""
        parts = self.parts
        for cut in range(len(parts), 0, -1):
            if (tree := _TREES.get("/".join(parts[:cut]))) is not None:
                return tree, "/".join(parts[cut:])
        return None

    def _tree(self) -> tuple[FileTree, str]:
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
        """The kinds of the model's files that the store keeps outside the tree."""
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

    @property
    def commit(self) -> str | None:
        """The commit of the repository that is read; None of a place without commits."""
        commit: str | None = getattr(self._tree()[0], "commit", None)
        return commit

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
        return type(self), (_plain(self),)

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

    def resolve(self, strict: bool = False) -> Any:
        return self

    def absolute(self) -> Any:
        return self

    def read_bytes(self) -> bytes:
        with self.open_source() as source:
            return source.read(0, source.size)

    def read_text(self, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")


class RemotePath(TreePath):
    """The path of a file or folder elsewhere."""


class WrappedPath(TreePath):
    """The path of a file or folder in an archive, or of the content of a compressed file. The last part of a root ends
    in `!`, which `str` and `name` omit: an archive in an archive is a file in one tree and the root of another."""

    @classmethod
    def root(cls, text: str, tree: FileTree) -> Any:
        return super().root(f"{text}!", tree)

    @property
    def name(self) -> str:
        found = self._found()
        return found[0].title.replace("\\", "/").rpartition("/")[2] if found and not found[1] else super().name

    @property
    def notes(self) -> tuple[str, ...]:
        """The archives around the file, outermost first, and the members that were left out."""
        notes: tuple[str, ...] = getattr(self._tree()[0], "notes", ())
        return notes

    @property
    def blobs(self) -> tuple[tuple[Path, str, str], ...]:
        """The files that the model consists of, each with the algorithm and hex digits that its manifest lists."""
        blobs: tuple[tuple[Path, str, str], ...] = getattr(self._tree()[0], "blobs", ())
        return blobs


def forget(root: TreePath) -> None:
    """Releases the tree of a root. Open sources stay readable."""
    _TREES.pop(_plain(root), None)


def _plain(path: Path) -> str:
    """The parts with slashes between them, whatever pathlib does on this system."""
    return "/".join(path.parts)
