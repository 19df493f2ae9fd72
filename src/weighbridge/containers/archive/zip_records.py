"""The records of a zip archive as stored: structs, signatures, flags, directory entries. The policies are elsewhere:
`zip.py` refuses contradictions, `zip_peek.py` reads as much as it can, `zip_write.py` writes.

Reference: PKWARE APPNOTE 6.3.10 (4.3.7 local header, 4.3.9 descriptor, 4.3.12 directory, 4.3.14-16 end records, 4.5.3
zip64).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

STORED: Final = 0
DEFLATED: Final = 8

LOCAL: Final = b"PK\x03\x04"
CENTRAL: Final = b"PK\x01\x02"
END: Final = b"PK\x05\x06"
END64: Final = b"PK\x06\x06"
LOCATOR: Final = b"PK\x06\x07"
DESCRIPTOR: Final = b"PK\x07\x08"
#: The first bytes of an archive: a member, or the end of an empty one.
STARTS: Final = (LOCAL, END)

LOCAL_FORM: Final = struct.Struct("<4s5H3I2H")
CENTRAL_FORM: Final = struct.Struct("<4s6H3I5H2I")
END_FORM: Final = struct.Struct("<4s4H2IH")
END64_FORM: Final = struct.Struct("<4sQ2H2I4Q")
LOCATOR_FORM: Final = struct.Struct("<4sIQI")

# General purpose flags (4.4.4).
ENCRYPTED: Final = 1
HAS_DESCRIPTOR: Final = 1 << 3
PATCH: Final = 1 << 5
STRONGLY_ENCRYPTED: Final = 1 << 6
UTF8: Final = 1 << 11
MASKED: Final = 1 << 13
#: A member's bytes aren't its content: it is encrypted or a patch.
UNREADABLE: Final = ENCRYPTED | PATCH | STRONGLY_ENCRYPTED | MASKED

FULL16: Final = 0xFFFF
FULL32: Final = 0xFFFFFFFF
ZIP64: Final = 1  # the id of the extra field of 64-bit numbers


class ZipFault(StrEnum):
    """The codes of the strict reader's errors (`zip.py`)."""

    NO_END = "no-end"
    COUNT = "count"
    PREFIX = "prefix"
    DIRECTORY = "directory"
    ZIP64 = "zip64"
    LOCAL_HEADER = "local-header"
    OVERLAP = "overlap"
    DUPLICATE = "duplicate"
    NAME = "name"
    OUTSIDE = "outside"
    ENCRYPTED = "encrypted"
    METHOD = "method"
    VOLUMES = "volumes"


class CentralEntry(NamedTuple):
    """A directory entry: 32-bit numbers as stored, `extra` with those that don't fit; it ends at `end`."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    at: int
    disk: int
    extra: bytes
    end: int


def central_entry(data: bytes, at: int) -> CentralEntry | None:
    """The entry at `at`; None if there is none. If its `end` is beyond the data, it is truncated."""
    if len(data) - at < CENTRAL_FORM.size or not data.startswith(CENTRAL, at):
        return None
    fields = CENTRAL_FORM.unpack_from(data, at)
    _, _, _, flags, method, _, _, crc, packed, size, n_name, n_extra, n_comment, disk, _, _, place = fields
    start = at + CENTRAL_FORM.size
    middle = start + n_name
    return CentralEntry(
        data[start:middle], flags, method, crc, packed, size, place, disk, data[middle : middle + n_extra],
        middle + n_extra + n_comment,
    )  # fmt: skip


def extra_fields(extra: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Each extra field: its id, its declared length, its bytes (fewer if truncated)."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        yield kind, length, extra[at + 4 : at + 4 + length]
        at += 4 + length


def widened(extra: bytes, numbers: Sequence[int], disk: int = 0) -> list[int | None]:
    """Sizes and offset, then the disk; saturated ones come from the zip64 field in its fixed order (4.5.3); None if
    it lacks one."""
    if FULL32 not in numbers and disk != FULL16:
        return [*numbers, disk]
    fields = (*((n, FULL32, 8) for n in numbers), (disk, FULL16, 4))
    wide = b"".join(value for kind, _, value in extra_fields(extra) if kind == ZIP64)
    out: list[int | None] = []
    at = 0
    for number, full, width in fields:
        if number != full:
            out.append(number)
        elif at + width <= len(wide):
            out.append(int.from_bytes(wide[at : at + width], "little"))
            at += width
        else:
            out.append(None)
    return out
