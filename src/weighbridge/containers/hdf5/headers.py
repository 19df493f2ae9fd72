"""Object headers: the messages that make an object a group, a dataset or a type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from weighbridge.containers.hdf5.structure import Fields, Hdf5

# Types of messages (File Format Specification, IV.A.2).
DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL, LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
FILTERS, ATTRIBUTE, CONTINUATION, SYMBOLS, DRIVER, ATTRIBUTE_INFO = 0x0B, 0x0C, 0x10, 0x11, 0x14, 0x15
_SHARED: Final = 0x02


class Message(NamedTuple):
    """`shared`: the body only has the address of the message."""

    kind: int
    shared: bool
    body: Fields


def messages(file: Hdf5, address: int) -> Iterator[Message]:
    """The messages of the object header at `address`, including those of its continuation chunks."""
    new = file.upto(address, 4).data == b"OHDR"
    flags = 0
    if new:
        f = file.upto(address, 40)
        f.expect(b"OHDR")
        _, flags = f.numbers(1, 1)
        f.take((16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0))
        size = f.number(1 << (flags & 3))
        first = file.fields(address + f.place, size)
    else:
        f = file.fields(address, 16)
        if f.number(1) != 1:
            raise file.error("an object header has an unknown version", file.base + address)
        f.take(7)
        first = file.fields(address + 16, f.number(4))
    chunks, seen = [first], {first.at}
    head = (4 + (2 if flags & 4 else 0)) if new else 8
    for chunk in chunks:
        while chunk.left >= head:  # it may end with bytes too few for another message
            kind, size, message_flags = chunk.numbers(1, 2, 1) if new else chunk.numbers(2, 2, 1)
            chunk.take(head - (4 if new else 5))
            message = Message(kind, bool(message_flags & _SHARED), chunk.part(size))
            if message.kind != CONTINUATION:
                yield message
                continue
            at, size = message.body.address(), message.body.length()
            if at is not None and file.base + at not in seen:
                seen.add(file.base + at)
                more = file.fields(at, size)
                if new:
                    more.expect(b"OCHK")
                    more = more.part(max(more.left - 4, 0))
                chunks.append(more)


def resolved(file: Hdf5, kind: int, body: Fields) -> Fields | None:
    """The body of the message of `kind` that a shared message refers to; None if it is in the heap of shared
    messages."""
    version, location = body.numbers(1, 1)
    if version == 1:
        body.take(6)
    elif version == 3 and location == 1:
        return None
    address = body.address()
    candidates = messages(file, address) if address is not None else ()
    return next((m.body for m in candidates if m.kind == kind and not m.shared), None)
