"""Archives and compressed files as trees of files (`io/location.py`), so that a model in them is read as in a folder.

Stored members of a zip, files of a tar and frames of seekable zstd are read in place. Other data is decoded
into a temporary file when it is first read (`spool.py`). Nothing is unpacked under a member's name: a name that leads
out of the archive is an error.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB, SNIFF_HEAD, WRAPPED_LINKS, WRAPPED_MEMBERS
from weighbridge.base.words import plural
from weighbridge.containers import BUILT_IN
from weighbridge.containers.archive import seven_zip, tar, zip
from weighbridge.containers.archive.seekable import SeekableSource, frames_of
from weighbridge.containers.archive.spool import SpooledSource
from weighbridge.containers.archive.zip_records import STARTS, STORED
from weighbridge.containers.formats import SEVEN_ZIP_MAGIC
from weighbridge.containers.sniff.detect import sniff
from weighbridge.io.decompress import WITH_MAGIC, codec_of, pieces
from weighbridge.io.source import Source

#: Suffix of a wrapped file -> the rest of the name of its content.
SUFFIXES: Final = MappingProxyType(
    {
        **dict.fromkeys((".zip", ".tar", ".7z", ".gz", ".xz", ".bz2", ".zst", ".lz4"), ""),
        **dict.fromkeys((".tgz", ".txz", ".tbz2", ".tzst"), ".tar"),
    }
)
#: Files that systems add to archives.
_JUNK: Final = frozenset({"__MACOSX", ".DS_Store", "pax_global_header"})
_LISTED: Final = 4


class WrappedFile(NamedTuple):
    """A file in an archive. `size`: its bytes, None if only decoding shows them."""

    size: int | None
    open: Callable[[], Source]


class WrappedContents(NamedTuple):
    """`files` by their names with slashes. `left_out`: members without readable data, each with its kind."""

    files: dict[str, WrappedFile]
    left_out: list[str]


def member_name(name: str, where: str, at: int | None = None) -> str:
    """Returns a member's normal name. FormatError if it leads out of the archive `where`."""
    normal = posixpath.normpath(name.replace("\\", "/"))
    if not name or normal.startswith(("/", "../")) or normal == ".." or "\0" in name or ":" in name[:3]:
        raise FormatError("a member's name leads out of the archive", path=where, offset=at, found=repr(name),
                          hint="wb scan lists what is wrong with it")  # fmt: skip
    return normal


def _is_junk(name: str) -> bool:
    return any(part in _JUNK or part.startswith("._") for part in name.split("/"))


def _inflated(source: Source, member: zip.ZipMember) -> Source:
    """Returns a deflated member's bytes, which are checked on the way."""
    inner = zip.open_member(source, member)
    steps = range(0, inner.size, SNIFF_HEAD)
    decoded = (inner.read(at, min(SNIFF_HEAD, inner.size - at)) for at in steps)
    return SpooledSource(decoded, inner.size, inner.name, memory=inner.size <= MIB)


def _zip_contents(source: Source) -> WrappedContents:
    files: dict[str, WrappedFile] = {}
    for member in zip.read(source).members:
        check_count(source.name, len(files))
        name = member_name(member.name, source.name, member.at)
        if not member.name.endswith("/") and not _is_junk(name):
            opener = zip.open_member if member.method == STORED else _inflated
            files[name] = WrappedFile(member.size, partial(opener, source, member))
    return WrappedContents(files, [])


def check_count(where: str, count: int) -> None:
    """Raises UnsupportedError unless an archive with `count` files may have another one."""
    if count >= WRAPPED_MEMBERS:
        raise UnsupportedError(f"{where} has more than {WRAPPED_MEMBERS} members", hint="unpack it first")


def _tar_contents(source: Source) -> WrappedContents:
    contents = WrappedContents({}, [])
    links: dict[str, str] = {}
    for member in tar.members(source):
        name = member_name(member.name, source.name, member.at)
        if name in contents.files or name in links:
            raise FormatError("two members have one name", path=source.name, offset=member.at, field=repr(name))
        check_count(source.name, len(contents.files) + len(links) + len(contents.left_out))
        if member.kind == "folder" or _is_junk(name):
            continue
        if member.kind == "file":
            contents.files[name] = WrappedFile(member.size, partial(source.window, member.start, member.size))
        elif member.link:
            folder = posixpath.dirname(name) if member.kind == "symbolic link" else ""
            links[name] = posixpath.normpath(posixpath.join(folder, member.link))
        else:
            contents.left_out.append(f"{name} ({member.kind})")
    _follow(links, contents)
    return contents


def _follow(links: Mapping[str, str], contents: WrappedContents) -> None:
    """Adds links as the files that they lead to; lists the others as left out."""
    for name, target in links.items():
        for _ in range(WRAPPED_LINKS):
            target = links.get(target, target)
        if target in contents.files:
            contents.files[name] = contents.files[target]
        else:
            contents.left_out.append(f"{name} (link to {target}, which isn't a file in the archive)")


def _stream_contents(codec: str, source: Source) -> WrappedContents:
    name = content_name(source.name)
    if codec == "zstd" and (frames := frames_of(source)):
        inside = SeekableSource(source, frames)
        return WrappedContents({name: WrappedFile(inside.size, lambda: inside)}, [])
    return WrappedContents(
        {name: WrappedFile(None, lambda: SpooledSource(pieces(source, codec), None, source.name))}, []
    )


def _seven_zip_contents(source: Source) -> WrappedContents:
    archive = seven_zip.SevenZip(source)
    files = {
        member_name(name, source.name): WrappedFile(size, partial(archive.open, name))
        for name, size in archive.files.items()
    }
    return WrappedContents({name: file for name, file in files.items() if not _is_junk(name)}, archive.left_out)


#: Format -> the function that lists the files in it.
WRAPPERS: Final[Mapping[str, Callable[[Source], WrappedContents]]] = MappingProxyType(
    {
        **dict.fromkeys(("zip", "torchserve"), _zip_contents),
        **dict.fromkeys(("tar", "tf-hub"), _tar_contents),
        "7z": _seven_zip_contents,
        **{codec: partial(_stream_contents, codec) for codec in sorted(WITH_MAGIC)},
    }
)


def wrapper_of(source: Source) -> str | None:
    """The format of an archive or compressed file; None for any other."""
    head = source.head(tar.BLOCK)
    is_tar = len(head) == tar.BLOCK and tar.is_header(head)
    if not (is_tar or codec_of(head) in WITH_MAGIC or head[:4] in STARTS or head.startswith(SEVEN_ZIP_MAGIC)):
        return None
    format = sniff(source).format
    return format if format in WRAPPERS else None


def content_name(name: str) -> str:
    """Returns the name of a compressed file's content: model.gguf of model.gguf.gz."""
    stem, suffix = posixpath.splitext(name.replace("\\", "/").rpartition("/")[2])
    return stem + SUFFIXES[suffix.lower()] if stem and suffix.lower() in SUFFIXES else f"{stem}{suffix} (content)"


def _folders(names: Iterable[str]) -> dict[str, dict[str, bool]]:
    """Returns each folder's entries, with whether an entry is a folder."""
    folders: dict[str, dict[str, bool]] = {"": {}}
    for name in names:
        parts = name.split("/")
        for depth, part in enumerate(parts):
            folders.setdefault("/".join(parts[:depth]), {}).setdefault(part, depth < len(parts) - 1)
    return folders


class WrappedTree:
    """The files in an archive. `what`: its kind, for notes. `version`: changes if the archive does. `around`: the notes
    of the trees around this one. `blobs`: the files whose digests a manifest lists, each with the algorithm and hex
    digits."""

    def __init__(
        self, contents: WrappedContents, what: str, title: str, version: str, around: tuple[str, ...] = (),
        blobs: tuple[tuple[Path, str, str], ...] = (),
    ) -> None:  # fmt: skip
        self.title, self._version, self.blobs = title, version, blobs
        self.files = contents.files
        self._folders = _folders(self.files)
        if "." in self.files:
            raise FormatError("a file has the name of the folder that contains it", path=title, field="'.'")
        if clash := next((name for name in self.files if name in self._folders), None):
            raise FormatError("a member is both a file and a folder", path=title, field=repr(clash))
        self._open: dict[str, Source] = {}
        self._lock = threading.Lock()
        self.notes = (*around, *_notes(title, what, contents.left_out))

    def size(self, name: str) -> int | None:
        """Returns a file's bytes; None if the file is missing. Decodes a compressed file."""
        file = self.files.get(name)
        return None if file is None else self._source(name).size if file.size is None else file.size

    def children(self, folder: str) -> Mapping[str, bool] | None:
        """Returns the names in a folder and whether each is a folder; None if the folder is missing."""
        return self._folders.get(folder)

    def version(self, name: str) -> str:
        """What changes when the file's bytes do."""
        return f"{self._version}/{name}"

    def digest(self, name: str) -> None:
        """Archives list no digests."""

    def _source(self, name: str) -> Source:
        with self._lock:
            if name not in self._open:
                self._open[name] = self.files[name].open()
            return self._open[name]

    def open(self, name: str) -> Source:
        """Opens a file, whose decoded data is shared. Raises FileNotFoundError if it is missing."""
        if name not in self.files:
            raise FileNotFoundError(2, "no such file in the archive", f"{self.title}/{name}")
        inner = self._source(name)
        return inner.window(0, inner.size, f"{self.title}/{name}")


def _notes(title: str, what: str, left_out: list[str]) -> Iterator[str]:
    """Notes that name the wrapper, and the members that were left out."""
    yield f"read from inside {title}, {what}"
    if left_out:
        more = f" and {len(left_out) - _LISTED} more" if len(left_out) > _LISTED else ""
        yield f"left out of {title}: {', '.join(left_out[:_LISTED])}{more}"


def open_tree(source: Source, format: str, title: str, version: str, around: tuple[str, ...] = ()) -> WrappedTree:
    """Returns the tree of the files in a source of a format of `WRAPPERS`."""
    contents = WRAPPERS[format](source)
    holds = "" if format in WITH_MAGIC else f" with {plural(len(contents.files), 'file')}"
    return WrappedTree(contents, f"a {BUILT_IN[format].title}{holds}", title, version, around)
