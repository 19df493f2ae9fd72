"""The header of a file for edits: typed metadata, and everything else as bytes that are preserved.

`open_header(source)` returns one of two kinds. `render(metadata)` returns the bytes of the same header with other
metadata. Tensor entries are spliced, never decoded and re-encoded, so everything in them (duplicates, array-form
entries, odd white space, unknown fields) survives an edit.

`fit(metadata)` renders to exactly the old length, or returns None if tensor data would have to move.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Final, Protocol

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import MIB, SAFETENSORS_HEADER
from weighbridge.containers.formats import GGUF_MAGIC
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.read import ALIGNMENT_KEY, KeyValue, padded, walk
from weighbridge.containers.gguf.rules import Collector
from weighbridge.containers.gguf.values import KV
from weighbridge.containers.gguf.write import layout
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.safetensors.json_scan import Scanner
from weighbridge.io.source import Source

PAGE: Final = 4096
_EDITED: Final = "wb edit takes GGUF and safetensors files; wb convert makes such a file of a model"
_PREAMBLE: Final = 24  # of a GGUF from version 2 on: magic, version, two counts
# A GGUF's data begins at the first multiple of the alignment after the directory, so a shorter header needs padding.
# Readers ignore keys they don't know.
RESERVED: Final = "weighbridge.reserved"


class Header(Protocol):
    """The interface of both kinds."""

    format: str
    start: int  # current offset of the tensor data
    metadata: dict[str, KV]

    def fit(self, metadata: Mapping[str, KV]) -> bytes | None: ...

    def render(self, metadata: Mapping[str, KV], reserve: int = 0) -> bytes: ...


class SafetensorsHeader:
    """`N`, then JSON of N bytes. The metadata is one member of the object; white space may follow the object."""

    format: str = "safetensors"

    def __init__(self, source: Source) -> None:
        index = safetensors.parse_stored(source)
        self.start = index.data_start[0]
        self.metadata = {key: KV("str", value) for key, value in index.metadata.items()}
        self.source = source

    @cached_property
    def around(self) -> tuple[bytes, bytes]:
        """The header's bytes before and after its metadata, found by scanning the JSON."""
        raw = self.source.read(8, self.start - 8)
        scan = Scanner(raw, 8, self.source.name)
        scan.peek()
        member = next((p for p in scan.members() if p.key == "__metadata__"), None)
        opening = raw.index(b"{") + 1
        before = raw[: member.key_at if member else opening]
        return before, raw[member.end if member else opening :].rstrip(b" \t\n\r")

    def _json(self, metadata: Mapping[str, KV]) -> bytes:
        for key, kv in metadata.items():
            if kv.type != "str":
                raise UsageError(f"{key}: safetensors metadata holds text only, not {kv.type}")
        before, after = self.around
        if not metadata:  # remove the member, and the comma that separates it from its neighbour
            after = after.lstrip(b" \t\n\r")
            if after.startswith(b","):
                return before + after[1:]
            before = before.rstrip(b" \t\n\r")
            return (before[:-1] if before.endswith(b",") else before) + after
        text = json.dumps({key: kv.value for key, kv in metadata.items()}, ensure_ascii=False, separators=(",", ":"))
        comma = b"," if after.lstrip(b" \t\n\r")[:1] == b'"' else b""
        return before + b'"__metadata__":' + text.encode() + comma + after

    def _padded(self, text: bytes, size: int) -> bytes:
        if size - 8 > SAFETENSORS_HEADER:
            raise UsageError(f"a safetensors header has at most {SAFETENSORS_HEADER} bytes, this needs {size - 8}")
        return (size - 8).to_bytes(8, "little") + text.ljust(size - 8)

    def fit(self, metadata: Mapping[str, KV]) -> bytes | None:
        text = self._json(metadata)
        return self._padded(text, self.start) if len(text) + 8 <= self.start else None

    def render(self, metadata: Mapping[str, KV], reserve: int = 0) -> bytes:
        text = self._json(metadata)
        # Page-aligned data stays page-aligned. Otherwise, the reference writer's multiple of 8 applies.
        unit = PAGE if self.start % PAGE == 0 else 8
        return self._padded(text, padded(8 + len(text) + reserve, unit))


class GGUFHeader:
    """Preamble, keys, tensor directory, padding to the alignment. Offsets count from there, so they never change."""

    format: str = "gguf"

    def __init__(self, source: Source) -> None:
        head = walk(source, Collector(source.name, strict=True))
        self.name = source.name
        # Variants that are read but not written: their keys can be listed.
        self.frozen = "big-endian" if head.order == ">" else "version 1" if head.version == 1 else ""
        self.start, self.alignment = head.data_start, head.alignment
        self.pairs: dict[str, KeyValue] = {pair.key: pair for pair in head.pairs}
        self.metadata = {key: pair.kv for key, pair in self.pairs.items() if key != RESERVED}
        self.raw = source.read(0, head.end)
        keys_end = head.pairs[-1].end if head.pairs else _PREAMBLE
        self.directory = self.raw[keys_end:]

    def _bytes(self, metadata: Mapping[str, KV]) -> bytes:
        if self.frozen:
            raise UnsupportedError(
                f"{self.name}: a {self.frozen} GGUF can't be edited",
                hint="make it little-endian and version 3: wb convert SRC.gguf DST.gguf",
            )
        if metadata.get(ALIGNMENT_KEY) != self.metadata.get(ALIGNMENT_KEY):
            raise UnsupportedError(
                f"{ALIGNMENT_KEY} can't be edited: every tensor would have to move", hint="wb convert SRC DST --align N"
            )
        parts = [self.raw[:16] + len(metadata).to_bytes(8, "little")]
        for key, kv in metadata.items():
            old = self.pairs.get(key)
            if old is not None and old.kv is kv:  # unchanged
                parts.append(self.raw[old.start : old.end])
            else:  # encoded as in a file that has only this key
                parts.append(layout((), {key: kv}).pieces[0][1][_PREAMBLE:])
        return b"".join((*parts, self.directory))

    def _with_room(self, metadata: Mapping[str, KV], room: int) -> bytes:
        return self._bytes({**metadata, RESERVED: KV("str", " " * room)})

    def fit(self, metadata: Mapping[str, KV]) -> bytes | None:
        bare = self._bytes(metadata)
        if padded(len(bare), self.alignment) == self.start:
            return bare.ljust(self.start, b"\0")
        room = self.start - len(self._with_room(metadata, 0))
        return self._with_room(metadata, room) if room >= 0 else None

    def render(self, metadata: Mapping[str, KV], reserve: int = 0) -> bytes:
        body = self._with_room(metadata, reserve) if reserve else self._bytes(metadata)
        return body.ljust(padded(len(body), self.alignment), b"\0")


def open_header(source: Source) -> Header:
    """The header of a safetensors or GGUF file, by its first bytes. Raises UsageError for other formats."""
    if source.head(4) == GGUF_MAGIC:
        return GGUFHeader(source)
    try:
        return SafetensorsHeader(source)
    except FormatError:
        from weighbridge.containers.sniff.detect import sniff  # late: few files are of other formats

        if (identity := sniff(source)).format in ("safetensors", "text", "unknown"):
            raise
        raise UsageError(
            f"{source.name}: {identity.title}, whose metadata can't be edited",
            hint=_EDITED if identity.readable else identity.advice or _EDITED,
        ) from None


class Edited(Source):
    """The file after the edit: `header`, then the old file's bytes from `start`."""

    def __init__(self, old: Source, start: int, header: bytes) -> None:
        self.old, self.start, self.header = old, start, header
        self.name, self.size = old.name, len(header) + max(old.size - start, 0)

    def _readinto(self, offset: int, out: memoryview) -> int:
        head = self.header[offset : offset + len(out)]
        out[: len(head)] = head
        if len(head) < len(out):
            self.old.readinto(offset + len(head) - len(self.header) + self.start, out[len(head) :])
        return len(out)


def frozen(file: Source) -> Edited:
    """The file with its header in memory, because another process may change it in place between two reads.

    A plan must be derived from the bytes that are compared before it is applied.
    """
    start = open_header(file).start
    return Edited(file, start, file.read(0, min(start, file.size)))


def check(old: Source, edited: Edited, metadata: Mapping[str, KV]) -> None:
    """Parses the edited file before it exists: tensors and their data must be unchanged, metadata as requested.

    Raises FormatError if the file was already broken. Any other failure is a bug: AssertionError.
    """
    parse = gguf.parse if edited.header[:4] == GGUF_MAGIC else safetensors.parse
    before = parse(old)
    try:
        after = parse(edited)
    except FormatError as error:
        raise AssertionError(f"an edit would have broken the file: {error}") from error
    moved = after.data_start[0] - before.data_start[0]
    same = [(e.name, e.dtype, e.shape, e.offset + moved) for e in before] == [
        (e.name, e.dtype, e.shape, e.offset) for e in after
    ]
    if not same or {k: after.metadata[k] for k in metadata} != {k: kv.value for k, kv in metadata.items()}:
        raise AssertionError("an edit would have changed more than requested")


def changed_span(old: bytes, new: bytes) -> range:
    """The bytes of `new` to write over `old`: from the first difference to the last."""
    if old == new:
        return range(0)
    first = next((i for i in range(0, len(new), MIB) if old[i : i + MIB] != new[i : i + MIB]), 0)
    while old[first] == new[first]:
        first += 1
    last = len(new)
    while old[last - 1] == new[last - 1]:
        last -= 1
    return range(first, last)
