"""The B-trees of an HDF5 file: of old groups (version 1), of links and attributes in fractal heaps (version 2)."""

from __future__ import annotations

from collections.abc import Iterator

from weighbridge.reports.scan.hdf5.structure import Hdf5

_HEAD = 10  # of a node of version 2: signature, version, type, checksum


def leaves(file: Hdf5, address: int) -> Iterator[int]:
    """The addresses of the symbol tables below a B-tree of version 1. A node is entered once."""
    stack, seen = [address], {address}
    while stack:
        f = file.fields(stack.pop(), 8 + 2 * file.offsets)
        f.sign(b"TREE")
        kind, level, count = f.numbers(1, 1, 2)
        if kind != 0:
            raise file.wrong("the tree of a group is one of a dataset", f.at)
        step = file.lengths + file.offsets
        f = file.fields(f.at - file.base + 8 + 2 * file.offsets, count * step + file.lengths if count else 0)
        for _ in range(count):
            f.length()
            child = f.address()
            if child is None or child in seen:
                continue
            seen.add(child)
            if level:
                stack.append(child)
            else:
                yield child


def _bytes_for(number: int) -> int:
    return (max(number, 1).bit_length() - 1) // 8 + 1


class _Level:
    """How many records a node of a level holds at most, with those below it (`total`), and the bytes of a pointer."""

    def __init__(self, node: int, record: int, pointer: int, below: int) -> None:
        self.most = max((node - _HEAD - pointer) // (record + pointer), 0)
        self.total = (self.most + 1) * below + self.most


def records(file: Hdf5, address: int) -> Iterator[bytes]:
    """The records of a B-tree of version 2."""
    f = file.fields(address, 22 + file.offsets + file.lengths)
    f.sign(b"BTHD")
    f.take(2)
    node, size, depth = f.numbers(4, 2, 2)
    f.take(2)
    root, count = f.address(), f.number(2)
    if root is None:
        return
    if not size or depth > 32 or node > file.source.size:
        raise file.wrong("a tree has nodes that no tree has", f.at)
    levels, widths = [_Level(node, size, 0, 0)], [0]
    most = _bytes_for(levels[0].most)
    for _ in range(depth):
        pointer = file.offsets + most + widths[-1]
        levels.append(_Level(node, size, pointer, levels[-1].total))
        widths.append(_bytes_for(levels[-1].total))
    stack, seen = [(root, count, depth)], {root}
    while stack:
        at, count, level = stack.pop()
        f = file.fields(at, min(node, file.source.size - file.base - at))
        f.sign(b"BTIN" if level else b"BTLF")
        f.take(2)
        yield from (f.take(size) for _ in range(count))
        for _ in range(count + 1 if level else 0):
            child, below, _ = f.address(), f.number(most), f.number(widths[level - 1])
            if child is not None and child not in seen:
                seen.add(child)
                stack.append((child, below, level - 1))
