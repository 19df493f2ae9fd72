"""The links of a group, whether in a symbol table, in messages or in a fractal heap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from weighbridge.containers.hdf5 import trees
from weighbridge.containers.hdf5.headers import LINK, LINK_INFO, SYMBOLS, Message
from weighbridge.containers.hdf5.heaps import FractalHeap, LocalHeap
from weighbridge.containers.hdf5.structure import Fields, Hdf5

_HARD, _SOFT, _EXTERNAL = 0, 1, 64
_SOFT_ENTRY: Final = 2  # of a symbol table


class Hdf5Link(NamedTuple):
    """`address`: of an object in this file; `outside`: the other file that it leads to; `kind`: of a plug-in's link."""

    name: str
    address: int | None = None
    outside: str | None = None
    kind: int | None = None


def of_message(file: Hdf5, message: Message) -> Iterator[Hdf5Link]:
    """The links in a message of a group's header, or in the structure that it refers to."""
    body = message.body
    if message.kind == LINK:
        yield _link(body)
    elif message.kind == SYMBOLS:
        yield from of_table(file, body.address(), body.address())
    elif message.kind == LINK_INFO:
        _, flags = body.numbers(1, 1)
        body.take(8 if flags & 1 else 0)
        heap, tree = body.address(), body.address()
        if heap is not None and tree is not None:
            objects = FractalHeap(file, heap)
            for record in trees.records(file, tree):
                yield _link(objects.get(record[4:]))


def of_table(file: Hdf5, tree: int | None, heap: int | None) -> Iterator[Hdf5Link]:
    """The links of an old group."""
    if tree is None or heap is None:
        return
    names = LocalHeap(file, heap)
    for leaf in trees.leaves(file, tree):
        f = file.fields(leaf, 8)
        f.expect(b"SNOD")
        f.take(2)
        f = file.fields(leaf + 8, f.number(2) * (2 * file.offsets + 24))
        while f.left:
            name, address = f.number(file.offsets), f.address()
            kind = f.number(4)
            f.take(20)
            yield Hdf5Link(names.text(name), None if kind == _SOFT_ENTRY else address)


def _link(f: Fields) -> Hdf5Link:
    _, flags = f.numbers(1, 1)
    kind = f.number(1) if flags & 8 else _HARD
    f.take((8 if flags & 4 else 0) + (1 if flags & 0x10 else 0))
    name = f.take(f.number(1 << (flags & 3))).decode("utf-8", "replace")
    if kind == _HARD:
        return Hdf5Link(name, f.address())
    if kind == _SOFT:
        return Hdf5Link(name)
    if kind == _EXTERNAL:
        value = f.part(f.number(2))
        value.take(1)
        return Hdf5Link(name, outside=value.text())
    return Hdf5Link(name, kind=kind)
