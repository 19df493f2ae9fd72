"""The attributes of an object whose values are text or bytes: what programs take configs and pickles from."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.reports.scan.hdf5 import trees
from weighbridge.reports.scan.hdf5.headers import ATTRIBUTE, ATTRIBUTE_INFO, DATASPACE, DATATYPE, Message, resolved
from weighbridge.reports.scan.hdf5.heaps import FractalHeap, GlobalHeap
from weighbridge.reports.scan.hdf5.structure import Fields, Hdf5

# Classes of types (File Format Specification, IV.A.2.d).
_FIXED, _TEXT, _OPAQUE, _ANY_LENGTH = 0, 3, 5, 9
_NO_ELEMENT: Final = 2  # a dataspace


class Datatype(NamedTuple):
    """`base`: of what a value of any length is made; None for text."""

    kind: int
    size: int
    base: Datatype | None = None

    @property
    def is_bytes(self) -> bool:
        """Whether a value is text, or bytes that may be anything."""
        if self.kind == _ANY_LENGTH:
            return self.base is None or self.base.is_bytes
        return self.kind in (_TEXT, _OPAQUE) or (self.kind == _FIXED and self.size == 1)


def datatype(f: Fields) -> Datatype:
    kind, flags = f.number(1) & 15, f.number(3)
    size = f.number(4)
    of_any_length = kind == _ANY_LENGTH and flags & 15 == 0
    return Datatype(kind, size, datatype(f) if of_any_length and f.left >= 8 else None)


def elements(f: Fields) -> int:
    """How many elements a dataspace has."""
    version, rank, _ = f.numbers(1, 1, 1)
    kind = f.number(1) if version >= 2 else None
    f.take(0 if version >= 2 else 5)
    return 0 if kind == _NO_ELEMENT else prod(f.length() for _ in range(rank))


class Attribute(NamedTuple):
    """`values`: where its elements are, as (address, size); none where they are no text or bytes."""

    name: str
    values: list[tuple[int, int]]


def of_message(file: Hdf5, heap: GlobalHeap, message: Message) -> Iterator[Attribute]:
    """The attributes that a message holds or leads to."""
    if message.kind == ATTRIBUTE:
        if message.shared:
            raise UnsupportedError("an attribute is shared between objects")
        yield _attribute(file, heap, message.body)
    elif message.kind == ATTRIBUTE_INFO:
        body = message.body
        _, flags = body.numbers(1, 1)
        body.take(2 if flags & 1 else 0)
        place, tree = body.address(), body.address()
        if place is not None and tree is not None:
            objects = FractalHeap(file, place)
            for record in trees.records(file, tree):
                if record[8] & 2:
                    raise UnsupportedError("an attribute is shared between objects")
                yield _attribute(file, heap, objects.get(record[:8]))


def _attribute(file: Hdf5, heap: GlobalHeap, f: Fields) -> Attribute:
    version, flags, *sizes = f.numbers(1, 1, 2, 2, 2)
    f.take(1 if version >= 3 else 0)
    step = 8 if version == 1 else 1
    parts = []
    for size in sizes:
        parts.append(f.part(size))
        f.take(min(-size % step, f.left))
    name, type_, space = parts
    known = resolved(file, DATATYPE, type_) if version > 1 and flags & 1 else type_
    spread = resolved(file, DATASPACE, space) if version > 1 and flags & 2 else space
    if known is None or spread is None:
        raise UnsupportedError("the type of an attribute lies in the heap of shared messages")
    text = name.data.split(b"\0")[0].decode("utf-8", "replace")
    return Attribute(text, _values(file, heap, f, datatype(known), elements(spread)))


def _values(file: Hdf5, heap: GlobalHeap, f: Fields, kind: Datatype, count: int) -> list[tuple[int, int]]:
    if not kind.is_bytes:
        return []
    at = f.at + f.place - file.base
    if kind.kind == _FIXED:
        return [(at, min(count, f.left))]
    size = 4 + file.offsets + 4 if kind.kind == _ANY_LENGTH else kind.size
    count = min(count, f.left // size if size else 0)
    if kind.kind != _ANY_LENGTH:
        return [(at + n * size, size) for n in range(count)]
    found = []
    for _ in range(count):
        length, address, index = f.number(4), f.address(), f.number(4)
        value = heap.get(address, index) if address else None
        if value is not None:
            found.append((value[0], min(value[1], max(length, 0))))
    return found
