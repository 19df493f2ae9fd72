"""Reads a zip as less strict readers might: every directory that an end record could refer to, and the local headers in
file order. Used if the strict reader (`containers/archive/zip.py`) refuses a zip: all views are scanned, none is
trusted.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from weighbridge.base.limits import MIB, ZIP_TAIL
from weighbridge.containers.archive.zip_peek import directory
from weighbridge.containers.archive.zip_records import DEFLATED, END, HAS_DESCRIPTOR, LOCAL, LOCAL_FORM, STORED, UTF8
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.source import BytesSource, Source

ENDS: Final = 8  # end records that are tried
_UNPACKED: Final = 64 * MIB  # of one member
_BZIP2: Final = 12
_NAME: Final = 256  # bytes of a name


class ViewedMember(NamedTuple):
    """A member as one view has it: its local header at `at`, `packed` bytes of data from `start`."""

    name: str
    method: int
    at: int
    start: int
    packed: int
    size: int


def ends(source: Source) -> list[int]:
    """Offsets where end records may begin, from the last one backwards."""
    base = max(source.size - ZIP_TAIL, 0)
    tail = source.read(base, source.size - base)
    offsets: list[int] = []
    at = tail.rfind(END)
    while at >= 0 and len(offsets) < ENDS:
        if len(tail) - at >= 22:
            offsets.append(base + at)
        at = tail.rfind(END, 0, at)
    return offsets


def listed(source: Source) -> Iterator[ViewedMember]:
    """The members of every directory that an end record could refer to."""
    for end in ends(source):
        length = 22 + int.from_bytes(source.read(end + 20, 2), "little")
        view = source.window(0, min(end + length, source.size))
        candidate = directory(Probe(view, depth=1))
        for m in candidate.members if candidate else ():
            header = _local_header(source, m.offset)
            start = header.start if header else m.offset + LOCAL_FORM.size
            if 0 <= start <= source.size:
                yield ViewedMember(m.name, m.method, m.offset, start, min(m.packed, source.size - start), m.size)


def walked(source: Source, at: int, end: int, by_offset: dict[int, ViewedMember]) -> Iterator[ViewedMember]:
    """Members by their local headers, one after the other from `at`. If a header leaves its length open, the member of
    `by_offset` at the same offset has it."""
    while at < end:
        header = _local_header(source, at)
        if header is None:
            return
        if header.packed == 0 and at in by_offset:
            header = header._replace(packed=by_offset[at].packed, method=by_offset[at].method)
        yield header._replace(packed=min(header.packed, source.size - header.start))
        # The next header, after a descriptor if there is one.
        at = header.start + header.packed
        near = source.read(at, min(28, max(source.size - at, 0))) if at < source.size else b""
        skipped = near.find(LOCAL)
        at = at + skipped if skipped >= 0 else source.size


def headers(source: Source, start: int, end: int) -> Iterator[ViewedMember]:
    """Members by the local headers in a range that no member covers (its first MiB)."""
    data = source.read(start, max(min(end - start, MIB), 0))
    at = data.find(LOCAL)
    while at >= 0:
        header = _local_header(source, start + at)
        if header is not None:
            yield header._replace(packed=min(header.packed, source.size - header.start))
        at = data.find(LOCAL, at + 1)


def _local_header(source: Source, at: int) -> ViewedMember | None:
    if at < 0 or at + LOCAL_FORM.size > source.size:
        return None
    fields = LOCAL_FORM.unpack(source.read(at, LOCAL_FORM.size))
    magic, _, flags, method, _, _, _, packed, size, n_name, n_extra = fields
    start = at + LOCAL_FORM.size + n_name + n_extra
    if magic != LOCAL or start > source.size:
        return None
    kept = min(n_name, _NAME)  # its end, with the suffix: names may contain other headers
    raw = source.read(at + LOCAL_FORM.size + n_name - kept, kept)
    name = raw.decode("utf-8" if flags & UTF8 else "cp437", "replace")
    packed = 0 if flags & HAS_DESCRIPTOR and packed == 0xFFFFFFFF else packed
    return ViewedMember(name, method, at, start, packed, size)


def contents(source: Source, m: ViewedMember) -> Source | None:
    """The contents of a member as far as they can be unpacked: damaged data yields what precedes the damage. None if
    the method is unknown."""
    if m.method == STORED:
        return source.window(m.start, m.packed, m.name)
    data = source.read(m.start, min(m.packed, _UNPACKED))
    try:
        if m.method == DEFLATED:
            return BytesSource(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, _UNPACKED), m.name)
        if m.method == _BZIP2:
            return BytesSource(bz2.BZ2Decompressor().decompress(data, _UNPACKED), m.name)
    except (zlib.error, OSError):
        if m.method == DEFLATED:
            intact, unpacker = bytearray(), zlib.decompressobj(-zlib.MAX_WBITS)
            with suppress(zlib.error):
                for at in range(0, len(data), 256):
                    intact += unpacker.decompress(data[at : at + 256], MIB)
                    if len(intact) >= MIB:
                        break
            return BytesSource(bytes(intact), m.name)
    return None
