"""The heaps of an HDF5 file: names (local), values of any length (global), links and attributes (fractal)."""

from __future__ import annotations

from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.hdf5.structure import Fields, Hdf5

_STEP: Final = 256


class LocalHeap:
    """Names of links, by their offsets."""

    def __init__(self, file: Hdf5, address: int) -> None:
        f = file.fields(address, 8 + 2 * file.lengths + file.offsets)
        f.expect(b"HEAP")
        f.take(4)
        self.file, self.size = file, f.length()
        f.length()
        self.at = f.address()

    def text(self, offset: int) -> str:
        """The text at `offset`, up to its NUL or the end of the heap."""
        text, step = b"", _STEP
        while self.at is not None and offset < self.size:
            piece = self.file.upto(self.at + offset, min(step, self.size - offset)).data
            end = piece.find(b"\0")
            text += piece if end < 0 else piece[:end]
            if end >= 0 or not piece:
                break
            offset, step = offset + len(piece), 4 * step
        return text.decode("utf-8", "replace")


class GlobalHeap:
    """Objects of collections, by the address of the collection and a number."""

    def __init__(self, file: Hdf5) -> None:
        self.file = file
        self.collections: dict[int, dict[int, tuple[int, int]]] = {}

    def get(self, address: int, index: int) -> tuple[int, int] | None:
        """The address and size of an object, or None."""
        if address not in self.collections:
            f = self.file.fields(address, 8 + self.file.lengths)
            f.expect(b"GCOL")
            f.take(4)
            end, at, head = address + f.length(), address + f.place, 8 + self.file.lengths
            objects: list[tuple[int, tuple[int, int]]] = []
            while at + head <= end:
                f = self.file.fields(at, head)
                number = f.number(2)
                f.take(6)
                size = f.length()
                if number:
                    objects.append((number, (at + head, size)))
                at += head + -(-size // 8) * 8 if number else max(size, head)  # 0: free space, with its head
            self.collections[address] = dict(objects)
            if len(self.collections[address]) != len(objects):
                raise self.file.error("two objects of a heap have the same number", self.file.base + address)
        return self.collections[address].get(index)


class _Table(NamedTuple):
    """The doubling table of a fractal heap: rows of `width` blocks, each row from the third with blocks twice as large
    as the row before."""

    width: int
    start: int
    largest: int

    def size(self, row: int) -> int:
        return self.start << max(row - 1, 0)

    def begin(self, row: int) -> int:
        return 0 if row == 0 else self.width * self.start << (row - 1)

    @property
    def direct_rows(self) -> int:
        return self.largest.bit_length() - self.start.bit_length() + 2

    def rows_of(self, size: int) -> int:
        """The rows of an indirect block that covers `size` bytes."""
        return size.bit_length() - (self.start * self.width).bit_length() + 1


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


class FractalHeap:
    """Links or attributes, by the identifiers in a B-tree. Raises UnsupportedError for objects that are stored outside
    the blocks, and for filtered blocks."""

    def __init__(self, file: Hdf5, address: int) -> None:
        self.file = file
        f = file.upto(address, 64 + 13 * file.lengths + 3 * file.offsets)
        f.expect(b"FRHP")
        _, _, filtered, _, managed = f.numbers(1, 2, 2, 1, 4)
        if filtered:
            raise UnsupportedError("a heap of links or attributes is compressed")
        f.take(f.lengths * 10 + f.offsets * 2)
        width, start, largest, bits, _ = f.number(2), f.length(), f.length(), f.number(2), f.number(2)
        self.root, self.rows = f.address(), f.number(2)
        if not (_is_power(width) and _is_power(start) and _is_power(largest) and start <= largest) or bits > 64:
            raise file.error("a heap has invalid block sizes", file.base + address)
        self.table = _Table(width, start, largest)
        self.offset_size = -(-bits // 8)
        self.length_size = min((largest.bit_length() + 6) // 8, (managed.bit_length() + 7) // 8 or 1)
        self.blocks: dict[int, dict[int, int | None]] = {}  # indirect block -> addresses, by their index in the table

    def get(self, identifier: bytes) -> Fields:
        """The object with this identifier."""
        f = Fields(identifier, 0, self.file.offsets, self.file.lengths, self.file.source.name)
        flags = f.number(1)
        if flags >> 4 & 3 == 2:
            return f.part((flags & 15) + 1)
        if flags >> 4 & 3 == 1 or flags >> 6:
            raise UnsupportedError("a long link or attribute is stored outside its heap")
        offset, size = f.number(self.offset_size), f.number(self.length_size)
        if self.root is None:
            raise self.file.error("an object of an empty heap")
        at, begin, rows = self.root, 0, self.rows
        while rows:
            at, begin, rows = self._descend(at, begin, rows, offset)
        return self.file.fields(at + offset - begin, size)

    def _descend(self, block: int, begin: int, rows: int, offset: int) -> tuple[int, int, int]:
        """The child of an indirect block that covers `offset`: its address, its first offset, its rows."""
        t, relative = self.table, offset - begin
        row = 0 if relative < t.width * t.start else (relative // (t.width * t.start)).bit_length()
        if relative < 0 or row >= rows:
            raise self.file.error("an object is outside its heap")
        column = (relative - t.begin(row)) // t.size(row)
        if block not in self.blocks:
            head = 5 + self.file.offsets + self.offset_size
            f = self.file.fields(block, head + rows * t.width * self.file.offsets)
            f.expect(b"FHIB")
            f.take(head - 4)
            self.blocks[block] = {n: f.address() for n in range(rows * t.width)}
        child = self.blocks[block].get(row * t.width + column)
        if child is None:
            raise self.file.error("an object is in a missing block of the heap")
        deeper = t.rows_of(t.size(row)) if row >= t.direct_rows else 0
        if deeper >= rows:
            raise self.file.error("the blocks of a heap don't get smaller")
        return child, begin + t.begin(row) + column * t.size(row), deeper
