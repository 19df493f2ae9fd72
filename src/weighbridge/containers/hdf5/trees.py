"""The B-trees of an HDF5 file: of old groups (version 1), of links and attributes in fractal heaps (version 2)."""

from __future__ import annotations

from collections.abc import Iterator

from weighbridge.containers.hdf5.structure import Hdf5

_HEAD = 10  # of a node of version 2: signature, version, type, checksum


def leaves(file: Hdf5, address: int) -> Iterator[int]:
    """The addresses of the symbol tables in a B-tree of version 1. Each node is visited once."""
    stack, seen = [address], {address}
    while stack:
        f = file.fields(stack.pop(), 8 + 2 * file.offsets)
        f.expect(b"TREE")
        kind, level, count = f.numbers(1, 1, 2)
        if kind != 0:
            raise file.error("a group has the tree of a dataset", f.at)
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


def records(file: Hdf5, address: int) -> Iterator[bytes]:
    """The records of a B-tree of version 2."""
    f = file.fields(address, 22 + file.offsets + file.lengths)
    f.expect(b"BTHD")
    f.take(2)
    node, size, depth = f.numbers(4, 2, 2)
    f.take(2)
    root, count = f.address(), f.number(2)
    if root is None:
        return
    if not size or depth > 32 or node > file.source.size:
        raise file.error("a tree has invalid nodes", f.at)
    # For each level: the most records that a node and the nodes below it hold, and the width of that number.
    leaf = total = max((node - _HEAD) // size, 0)
    widths = [0]
    for _ in range(depth):
        pointer = file.offsets + _bytes_for(leaf) + widths[-1]
        most = max((node - _HEAD - pointer) // (size + pointer), 0)
        total = (most + 1) * total + most
        widths.append(_bytes_for(total))
    stack, seen = [(root, count, depth)], {root}
    while stack:
        at, count, level = stack.pop()
        f = file.fields(at, min(node, file.source.size - file.base - at))
        f.expect(b"BTIN" if level else b"BTLF")
        f.take(2)
        yield from (f.take(size) for _ in range(count))
        for _ in range(count + 1 if level else 0):
            child, below, _ = f.address(), f.number(_bytes_for(leaf)), f.number(widths[level - 1])
            if child is not None and child not in seen:
                seen.add(child)
                stack.append((child, below, level - 1))
