"""The attributes of an object whose values are text or bytes, which programs take configs and pickles from."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.hdf5 import trees
from weighbridge.containers.hdf5.headers import ATTRIBUTE, ATTRIBUTE_INFO, DATASPACE, DATATYPE, Message, resolved
from weighbridge.containers.hdf5.heaps import FractalHeap, GlobalHeap
from weighbridge.containers.hdf5.structure import Fields, Hdf5

# Classes of types (File Format Specification, IV.A.2.d).
_FIXED, _TEXT, _OPAQUE, _ANY_LENGTH = 0, 3, 5, 9
NO_ELEMENT: Final = 2  # kind of a dataspace


class Dataspace(NamedTuple):
    """The head of a dataspace, before the sizes of its `rank` dimensions."""

    version: int
    rank: int
    kind: int | None


def dataspace(f: Fields) -> Dataspace:
    """Reads the head; the sizes are next in `f`."""
    version, rank, _ = f.numbers(1, 1, 1)
    kind = f.number(1) if version >= 2 else None
    f.take(0 if version >= 2 else 5)
    return Dataspace(version, rank, kind)


class Datatype(NamedTuple):
    """`base`: the type of the elements of a value of any length; None for text."""

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


class Attribute(NamedTuple):
    """`values`: the elements as (address, size); empty unless they are text or bytes."""

    name: str
    values: list[tuple[int, int]]


def of_message(file: Hdf5, heap: GlobalHeap, message: Message) -> Iterator[Attribute]:
    """The attributes in a message, or in the heap that it refers to."""
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
    name, type_, space_part = parts
    type_fields = resolved(file, DATATYPE, type_) if version > 1 and flags & 1 else type_
    space_fields = resolved(file, DATASPACE, space_part) if version > 1 and flags & 2 else space_part
    if type_fields is None or space_fields is None:
        raise UnsupportedError("the type of an attribute is in the heap of shared messages")
    text = name.data.split(b"\0")[0].decode("utf-8", "replace")
    kind, values = datatype(type_fields), list[tuple[int, int]]()
    space = dataspace(space_fields)
    count = 0 if space.kind == NO_ELEMENT else prod(space_fields.length() for _ in range(space.rank))
    if not kind.is_bytes:
        return Attribute(text, values)
    at = f.at + f.place - file.base
    if kind.kind == _FIXED:
        return Attribute(text, [(at, min(count, f.left))])
    size = 4 + file.offsets + 4 if kind.kind == _ANY_LENGTH else kind.size
    for number in range(min(count, f.left // size if size else 0)):
        if kind.kind != _ANY_LENGTH:
            values.append((at + number * size, size))
            continue
        length, address, index = f.number(4), f.address(), f.number(4)
        value = heap.get(address, index) if address else None
        if value is not None:
            values.append((value[0], min(value[1], max(length, 0))))
    return Attribute(text, values)
