"""The members in a zip's directory, as far as it can be read: to recognise an archive, and to find out what less strict
readers than `zip.py` see."""

from __future__ import annotations

import struct
from typing import NamedTuple

from weighbridge.base.limits import SNIFF_WHOLE, SNIFF_ZIP_MEMBERS
from weighbridge.containers.archive.zip_records import (
    END,
    END64,
    END64_FORM,
    END_FORM,
    LOCAL,
    LOCAL_FORM,
    LOCATOR,
    LOCATOR_FORM,
    central_entry,
    widened,
)  # fmt: skip
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.source import Source


class ListedMember(NamedTuple):
    """A directory entry; `offset` is that of its local header, from the start of the file."""

    name: str
    method: int
    offset: int
    packed: int
    size: int


class Directory(NamedTuple):
    """`shift`: bytes before the archive that its offsets don't count; negative if some are missing. `cut`: it lists
    more than was read."""

    members: list[ListedMember]
    shift: int
    cut: bool


def directory(probe: Probe) -> Directory | None:
    """The central directory that the last end record points to; None if there is none."""
    end = probe.tail.rfind(END)
    if end < 0 or len(probe.tail) - end < END_FORM.size:
        return None
    _, _, _, _, count, length, start, _ = END_FORM.unpack_from(probe.tail, end)
    end += probe.size - len(probe.tail)
    # torch always writes the zip64 record, other writers only for big archives. It is at the place in its locator, or
    # (with bytes before the archive) right before the locator.
    locator = probe.at(end - 20, 20)
    for at in (struct.unpack("<Q", locator[8:16])[0], end - 76) if locator[:4] == LOCATOR else ():
        record = probe.at(at, END64_FORM.size)
        if len(record) == END64_FORM.size and record[:4] == END64:
            count, length, start = END64_FORM.unpack(record)[-3:]
            end = at
            break
    if length > end:
        return None
    # If there are other bytes before the archive (an executable), or some of its bytes are missing, the directory ends
    # right before its end record, whatever offset is stored.
    shift = end - length - start
    data = probe.at(start + shift, min(length, SNIFF_WHOLE))
    members = _members(data, SNIFF_ZIP_MEMBERS, shift)  # all entries: zipfile ignores the count
    return Directory(members, shift, cut=len(members) != count)


def _members(data: bytes, count: int, shift: int) -> list[ListedMember]:
    out: list[ListedMember] = []
    at = 0
    while len(out) < count and (entry := central_entry(data, at)):
        stored = (entry.size, entry.packed, entry.at)
        size, packed, offset = (
            n if wide is None else wide for n, wide in zip(stored, widened(entry.extra, stored), strict=False)
        )
        out.append(ListedMember(entry.name.decode("utf-8", "replace"), entry.method, offset + shift, packed, size))
        at = entry.end
    return out


def payload(probe: Probe, member: ListedMember) -> int | None:
    """The offset of a member's data (its local header repeats the lengths of name and extra); None if it is broken."""
    head = probe.at(member.offset, LOCAL_FORM.size)
    if len(head) < LOCAL_FORM.size or head[:4] != LOCAL:
        return None
    start: int = member.offset + LOCAL_FORM.size + sum(struct.unpack_from("<HH", head, 26))
    return start if start + member.packed <= probe.size else None


def begin_of(source: Source, end: int) -> int | None:
    """The first byte of the archive without a comment that ends at `end`, by its end records; None if none does."""
    at = end - END_FORM.size
    record = source.read(at, END_FORM.size) if at >= 0 else b""
    if record[:4] != END or record[-2:] != b"\0\0":
        return None
    _, _, _, _, _, length, start, _ = END_FORM.unpack(record)
    wide = at - LOCATOR_FORM.size - END64_FORM.size
    if wide >= 0 and source.read(wide, 4) == END64 and source.read(at - LOCATOR_FORM.size, 4) == LOCATOR:
        at = wide
        length, start = END64_FORM.unpack(source.read(wide, END64_FORM.size))[-2:]
    begin: int = at - length - start
    return begin if 0 <= begin < end else None


def consecutive(source: Source) -> list[tuple[int, int]]:
    """The first and last bytes of archives that follow each other without a gap, each of which still has to be read;
    [] if the file has other bytes too."""
    spans: list[tuple[int, int]] = []
    end = source.size
    while end:
        begin = begin_of(source, end)
        if begin is None:
            return []
        spans.append((begin, end))
        end = begin
    return spans[::-1]
