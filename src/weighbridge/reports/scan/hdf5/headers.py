"""Object headers: the messages that make an object a group, a dataset or a type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from weighbridge.reports.scan.hdf5.structure import Fields, Hdf5

# Types of messages (File Format Specification, IV.A.2).
DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL, LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
FILTERS, ATTRIBUTE, CONTINUATION, SYMBOLS, DRIVER, ATTRIBUTE_INFO = 0x0B, 0x0C, 0x10, 0x11, 0x14, 0x15
_SHARED: Final = 0x02


class Message(NamedTuple):
    """`shared`: the body names where the message itself is."""

    kind: int
    shared: bool
    body: Fields


def messages(file: Hdf5, address: int) -> Iterator[Message]:
    """The messages of the object header at `address`, those of its further chunks behind."""
    new = file.upto(address, 4).data == b"OHDR"
    first, flags = _new_chunk(file, address) if new else (_old_chunk(file, address), 0)
    chunks, seen = [first], {first.at}
    for chunk in chunks:
        for message in _of_chunk(chunk, new, flags):
            if message.kind != CONTINUATION:
                yield message
                continue
            at, size = message.body.address(), message.body.length()
            if at is not None and file.base + at not in seen:
                seen.add(file.base + at)
                chunks.append(_continued(file, at, size, new))


def _old_chunk(file: Hdf5, address: int) -> Fields:
    f = file.fields(address, 16)
    version = f.number(1)
    if version != 1:
        raise file.wrong("an object header is none", file.base + address)
    f.take(7)
    return file.fields(address + 16, f.number(4))


def _new_chunk(file: Hdf5, address: int) -> tuple[Fields, int]:
    f = file.upto(address, 40)
    f.sign(b"OHDR")
    _, flags = f.numbers(1, 1)
    f.take((16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0))
    size = f.number(1 << (flags & 3))
    return file.fields(address + f.place, size), flags


def _continued(file: Hdf5, address: int, size: int, new: bool) -> Fields:
    if not new:
        return file.fields(address, size)
    f = file.fields(address, size)
    f.sign(b"OCHK")
    return f.part(max(f.left - 4, 0))


def _of_chunk(chunk: Fields, new: bool, flags: int) -> Iterator[Message]:
    """The messages of one chunk. What is left at its end is too short for one."""
    head = (4 + (2 if flags & 4 else 0)) if new else 8
    while chunk.left >= head:
        if new:
            kind, size, of_message = chunk.numbers(1, 2, 1)
        else:
            kind, size, of_message = chunk.numbers(2, 2, 1)
        chunk.take(head - (4 if new else 5))
        yield Message(kind, bool(of_message & _SHARED), chunk.part(size))


def resolved(file: Hdf5, kind: int, body: Fields) -> Fields | None:
    """What a shared message of `kind` stands for; None where it lies in the heap of shared messages."""
    version, where = body.numbers(1, 1)
    if version == 1:
        body.take(6)
    elif version == 3 and where == 1:
        return None
    address = body.address()
    found = messages(file, address) if address is not None else ()
    return next((m.body for m in found if m.kind == kind and not m.shared), None)
