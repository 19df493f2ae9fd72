"""A zip as readers that are less strict than ours might see it: every directory that an end record could mean, and the
local headers as they lie. Used where the strict reader (`containers/archive/zip.py`) has refused: all views are then
scanned, and none is trusted.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from weighbridge.base.limits import MIB, ZIP_TAIL
from weighbridge.containers.archive.zip_peek import directory
from weighbridge.containers.archive.zip_records import DEFLATED, END, HAS_DESCRIPTOR, LOCAL, LOCAL_FORM, STORED, UTF8
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.source import BytesSource, Source

ENDS: Final = 8  # end records that are tried
_UNPACKED: Final = 64 * MIB  # of one member
_BZIP2: Final = 12


class Seen(NamedTuple):
    """A member as some view has it: its local header at `at`, `packed` bytes of data from `start` on."""

    name: str
    method: int
    at: int
    start: int
    packed: int
    size: int


def ends(source: Source) -> list[int]:
    """Where end records may begin, from the last one on."""
    base = max(source.size - ZIP_TAIL, 0)
    tail = source.read(base, source.size - base)
    out: list[int] = []
    at = tail.rfind(END)
    while at >= 0 and len(out) < ENDS:
        if len(tail) - at >= 22:
            out.append(base + at)
        at = tail.rfind(END, 0, at)
    return out


def listed(source: Source) -> Iterator[Seen]:
    """Members of every directory that an end record could mean."""
    for end in ends(source):
        length = 22 + int.from_bytes(source.read(end + 20, 2), "little")
        view = source.window(0, min(end + length, source.size))
        found = directory(Probe(view, depth=1))
        for m in found.members if found else ():
            head = _local(source, m.offset)
            start = head.start if head else m.offset + LOCAL_FORM.size
            if 0 <= start <= source.size:
                yield Seen(m.name, m.method, m.offset, start, min(m.packed, source.size - start), m.size)


def walked(source: Source, at: int, end: int, known: dict[int, Seen]) -> Iterator[Seen]:
    """Members by their local headers, one behind the other from `at` on. A length that a header leaves open is that of
    the member of `known` at the same place."""
    while at < end:
        head = _local(source, at)
        if head is None:
            return
        if head.packed == 0 and at in known:
            head = head._replace(packed=known[at].packed, method=known[at].method)
        yield head._replace(packed=min(head.packed, source.size - head.start))
        at = _next(source, head.start + head.packed)


def headers(source: Source, start: int, end: int) -> Iterator[int]:
    """Where local headers may begin in a stretch that no member covers (its first MiB)."""
    data = source.read(start, max(min(end - start, MIB), 0))
    at = data.find(LOCAL)
    while at >= 0:
        yield start + at
        at = data.find(LOCAL, at + 1)


def _next(source: Source, at: int) -> int:
    """Where the next local header begins, behind a descriptor if there is one."""
    near = source.read(at, min(28, max(source.size - at, 0))) if at < source.size else b""
    found = near.find(LOCAL)
    return at + found if found >= 0 else source.size


def _local(source: Source, at: int) -> Seen | None:
    if at < 0 or at + LOCAL_FORM.size > source.size:
        return None
    fields = LOCAL_FORM.unpack(source.read(at, LOCAL_FORM.size))
    magic, _, flags, method, _, _, _, packed, size, n_name, n_extra = fields
    start = at + LOCAL_FORM.size + n_name + n_extra
    if magic != LOCAL or start > source.size:
        return None
    name = source.read(at + LOCAL_FORM.size, n_name).decode("utf-8" if flags & UTF8 else "cp437", "replace")
    packed = 0 if flags & HAS_DESCRIPTOR and packed == 0xFFFFFFFF else packed
    return Seen(name, method, at, start, packed, size)


def contents(source: Source, m: Seen) -> Source | None:
    """What a member holds, as far as it can be had: broken data gives what comes before the break. None of a method
    that is not known."""
    if m.method == STORED:
        return source.window(m.start, m.packed, m.name)
    data = source.read(m.start, min(m.packed, _UNPACKED))
    try:
        if m.method == DEFLATED:
            return BytesSource(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, _UNPACKED), m.name)
        if m.method == _BZIP2:
            return BytesSource(bz2.BZ2Decompressor().decompress(data, _UNPACKED), m.name)
    except (zlib.error, OSError):
        return BytesSource(_before_break(data), m.name) if m.method == DEFLATED else None
    return None


def _before_break(data: bytes) -> bytes:
    out, unpacker = bytearray(), zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for at in range(0, len(data), 256):
            out += unpacker.decompress(data[at : at + 256], MIB)
            if len(out) >= MIB:
                break
    except zlib.error:
        pass
    return bytes(out)
