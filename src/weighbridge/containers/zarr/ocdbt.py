"""OCDBT, TensorStore's database of keys and values in a folder: `manifest.ocdbt`, and data files that it names.

    record     u32 magic (big-endian); u64 bytes of the record; varint version 0; varint compression (0, or 1: zstd);
               body; u32 CRC-32C of all before
    manifest   16 bytes id; varints kind (0), inline bytes, node bytes; u8 arity; varint compression and, for zstd, its
               level (u32); table of files; versions of the root, in columns: generation, height, file, offset, length
    node       u8 height; table of files; entries in columns: prefix and suffix lengths of keys, for height > 0 those
               that a subtree shares, suffixes; places of values or of nodes below, or inline values

Reference: google/tensorstore, kvstore/ocdbt/index.rst ("Storage format")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.containers.data_files import check_name
from weighbridge.containers.formats import OCDBT_MANIFEST, OCDBT_NODE
from weighbridge.containers.frameworks.sstable import crc32c
from weighbridge.io.decompress import decompressed
from weighbridge.io.source import Source

_LEAST: Final = 18  # bytes of a record: magic, length, two varints, checksum
_NODE: Final = 64 * MIB  # decoded bytes of a node; TensorStore's own limit is 8 MiB
_NODES: Final = 256 * MIB  # of all nodes, and of all keys
_HEIGHT: Final = 32
_INLINE, _OUTSIDE = 0, 1


class StoredValue(NamedTuple):
    """A value: bytes [offset, offset + length) of a file, whose path is relative to the database; or `inline`."""

    file: str
    offset: int
    length: int
    inline: bytes | None = None


class _DataFile(NamedTuple):
    """`base`: the beginning of `path` that applies to the files of a node's children too."""

    base: str
    path: str


class _Child(NamedTuple):
    """A node: where it is, its height, and the prefix of its keys."""

    file: _DataFile
    offset: int
    length: int
    height: int
    prefix: bytes


class _Body:
    """The decoded body of a record, read from front to back."""

    def __init__(self, data: bytes, source: Source, at: int) -> None:
        self.data, self.source, self.record, self.at = data, source, at, 0

    def wrong(self, reason: str) -> FormatError:
        return FormatError(f"a record of the database is damaged: {reason}", path=self.source.name, offset=self.record)

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise self.wrong("it ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
        raise self.wrong("a number is too long")

    def column(self, count: int) -> list[int]:
        """Numbers, of which each has a byte at least."""
        if count > len(self.data) - self.at:
            raise self.wrong("it has more entries than bytes")
        return [self.varint() for _ in range(count)]

    def texts(self, count: int, more: int = 0) -> tuple[list[bytes], list[int]]:
        """Texts, each with the beginning of the one before it; and `more` numbers for each, which are between."""
        shared = [0, *self.column(max(count - 1, 0))]
        own = self.column(count)
        extra = self.column(count * more)
        texts: list[bytes] = []
        total = 0
        for n, length in zip(shared, own, strict=True):
            previous = texts[-1] if texts else b""
            total += n + length
            if n > len(previous) or total > _NODES:
                raise self.wrong("a key is impossible")
            texts.append(previous[:n] + self.take(length))
        return texts, extra

    def files(self, base: str) -> list[_DataFile]:
        """The table of files. `base`: the beginning of all paths."""
        count = self.varint()
        paths, lengths = self.texts(count, 1) if count else ([], [])
        return [self._file(base, path, length) for path, length in zip(paths, lengths, strict=True)]

    def _file(self, base: str, path: bytes, length: int) -> _DataFile:
        try:
            text = path.decode()
        except UnicodeDecodeError:
            raise self.wrong("the path of a file isn't text") from None
        name = check_name(base + text, self.source.name, self.record)
        return _DataFile(base + path[:length].decode(errors="replace"), name)


def _record(source: Source, at: int, length: int, magic: bytes) -> _Body:
    """The body of a record. Raises FormatError unless its length and checksum are right."""
    if not _LEAST <= length <= source.size - at:
        raise FormatError("a record of the database is outside its file", path=source.name, offset=at, found=length)
    data = source.read(at, length)
    if data[:4] != magic or int.from_bytes(data[4:12], "little") != length:
        found = f"{data[:4].hex()} of {int.from_bytes(data[4:12], 'little')} bytes"
        raise FormatError("a record of the database is damaged, or of another step: its header is wrong",
                          path=source.name, offset=at, expected=f"{magic.hex()} of {length} bytes", found=found,
                          hint="copy the whole folder again, or use another step")  # fmt: skip
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise FormatError("a record of the database doesn't have its checksum", path=source.name, offset=at,
                          hint="download or copy it again")  # fmt: skip
    version, compression = data[12], data[13]
    if version or compression > 1:
        raise UnsupportedError(f"{source.name}: a database of version {version}, compression {compression}")
    try:
        return _Body(decompressed("zstd", data[14:-4], _NODE) if compression else data[14:-4], source, at)
    except ValueError as error:
        raise FormatError(f"a record of the database can't be unpacked: {error}", path=source.name, offset=at) from None


def newest_root(manifest: Source) -> _Child | None:
    """The root of the newest version; None for an empty database."""
    body = _record(manifest, 0, manifest.size, OCDBT_MANIFEST)
    body.take(16)
    if kind := body.varint():
        raise UnsupportedError(f"{manifest.name}: a database with numbered manifests (kind {kind})",
                               hint="save it again with orbax-checkpoint")  # fmt: skip
    body.column(2)
    body.take(1)
    if body.varint():
        body.take(4)
    files = body.files("")
    versions = body.varint()
    body.column(versions)
    heights = body.take(versions)
    numbers, offsets, lengths = body.column(versions), body.column(versions), body.column(versions)
    if not versions or not lengths[-1]:
        return None
    if numbers[-1] >= len(files) or heights[-1] > _HEIGHT:
        raise body.wrong("the root's file or height is impossible")
    return _Child(files[numbers[-1]], offsets[-1], lengths[-1], heights[-1], b"")


def read_database(manifest: Source, file: Callable[[str], Source]) -> dict[str, StoredValue]:
    """The newest values by their keys. `file`: opens a data file by its path, relative to the manifest's folder. Raises
    FormatError for a damaged database; each node is read once, and all of them may take as much as their files have."""
    root = newest_root(manifest)
    waiting = [root] if root is not None else []
    seen: set[tuple[str, int]] = set()
    values: dict[str, StoredValue] = {}
    memory = 0
    while waiting:
        child = waiting.pop()
        place = child.file.path, child.offset
        body = _record(file(child.file.path), child.offset, child.length, OCDBT_NODE)
        if place in seen or body.take(1)[0] != child.height:
            raise body.wrong("a node is in two places, or of another height")
        seen.add(place)
        files = body.files(child.file.base)
        if child.height:
            below = list(nodes_below(body, files, child))
            waiting += reversed(below)
            memory += sum(len(node.prefix) for node in below)
        else:
            leaf = list(values_of(body, files, child.prefix))
            values.update(leaf)
            memory += sum(len(key) + len(value.inline or b"") for key, value in leaf)
        memory += len(body.data)
        if memory > _NODES:
            raise UnsupportedError(f"{manifest.name}: the keys of its database take more than {_NODES // MIB} MiB")
    return values


def nodes_below(body: _Body, files: list[_DataFile], parent: _Child) -> Iterator[_Child]:
    count = body.varint()
    keys, shared = body.texts(count, 1)
    numbers, offsets, lengths = body.column(count), body.column(count), body.column(count)
    for key, common, number, offset, length in zip(keys, shared, numbers, offsets, lengths, strict=True):
        if number >= len(files) or common > len(key):
            raise body.wrong("the place of a node is impossible")
        yield _Child(files[number], offset, length, parent.height - 1, parent.prefix + key[:common])


def values_of(body: _Body, files: list[_DataFile], prefix: bytes) -> Iterator[tuple[str, StoredValue]]:
    count = body.varint()
    keys, _ = body.texts(count)
    lengths, kinds = body.column(count), body.column(count)
    outside = [n for n, kind in enumerate(kinds) if kind == _OUTSIDE]
    numbers, offsets = body.column(len(outside)), body.column(len(outside))
    if any(kind > _OUTSIDE for kind in kinds) or any(number >= len(files) for number in numbers):
        raise body.wrong("the place of a value is impossible")
    places = {n: (files[number].path, offset) for n, number, offset in zip(outside, numbers, offsets, strict=True)}
    for n, (key, length) in enumerate(zip(keys, lengths, strict=True)):
        name = (prefix + key).decode("utf-8", "replace")
        if n in places:
            yield name, StoredValue(*places[n], length)
        else:
            yield name, StoredValue("", 0, length, body.take(length))
