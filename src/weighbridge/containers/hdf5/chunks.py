"""Datasets in chunks: boxes of one shape, each stored and compressed on its own, found through a B-tree.

Reading unpacks one band at a time: the chunks that have the same rows. All chunks must be stored, so a dataset is at
most as large as its chunks can unpack to.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import HDF5_BAND
from weighbridge.base.spec import Spec, c_strides
from weighbridge.containers.hdf5.datasets import pipeline
from weighbridge.containers.hdf5.headers import Message
from weighbridge.containers.hdf5.structure import Fields, Hdf5
from weighbridge.io.inflate import MAX_RATIO
from weighbridge.io.source import Source

_DEFLATE, _SHUFFLE, _CHECKSUM = 1, 2, 3
_SINGLE: Final = 1  # an index of version 4: there is one chunk
_KEPT: Final = 2  # bands that are remembered


class _Chunk(NamedTuple):
    """`nbytes` stored bytes at `address`; `mask`: the filters that weren't applied."""

    address: int
    nbytes: int
    mask: int


class ChunkedSource(Source):
    """The elements of a dataset in C order. `layout`: the fields after version and class. Raises UnsupportedError if
    the chunks are filtered or indexed in another way, or are too large."""

    def __init__(
        self, file: Hdf5, path: str, layout: Fields, version: int, filters: Message | None, spec: Spec
    ) -> None:  # fmt: skip
        self.name, self.size = f"{file.source.name}::{path}", spec.nbytes
        self.remote = file.source.remote
        self._file, self._spec = file, spec
        self._filters = pipeline(filters) if filters is not None else []
        if unknown := [number for number in self._filters if number not in (_DEFLATE, _SHUFFLE, _CHECKSUM)]:
            raise UnsupportedError(f"its chunks are compressed by filter {unknown[0]}")
        dims, single, tree = _layout(layout, version, file)
        *self._box, width = dims
        rank = len(spec.shape)
        if len(self._box) != rank or not rank or min(dims) < 1 or width != spec.dtype.size:
            raise FormatError("the chunks don't fit the dataset", path=self.name, offset=layout.at, found=dims)
        self._row = spec.nbytes // max(spec.shape[0], 1)
        self._nbytes = prod(dims)
        if max(self._row * self._box[0], self._nbytes) > HDF5_BAND:
            raise UnsupportedError(f"a row of its chunks has more than {HDF5_BAND:,} bytes")
        grid = [-(-n // c) for n, c in zip(spec.shape, self._box, strict=True)]
        self._chunks = (
            {(0,) * rank: single} if single else dict(_chunks(file, tree, self._box) if tree is not None else ())
        )
        if len(self._chunks) != prod(grid) or any(
            at % c or at >= n for place in self._chunks for at, c, n in zip(place, self._box, spec.shape, strict=True)
        ):
            raise UnsupportedError(f"{len(self._chunks)} of its {prod(grid)} chunks are stored")
        self._bands: dict[int, bytearray] = {}
        self._lock = threading.Lock()

    def _readinto(self, offset: int, out: memoryview) -> int:
        size, done = self._row * self._box[0], 0
        while done < len(out):
            number, inside = divmod(offset + done, size)
            with self._lock:
                if number not in self._bands:
                    while len(self._bands) >= _KEPT:
                        del self._bands[next(iter(self._bands))]
                    self._bands[number] = self._read_band(number * self._box[0])
                band = self._bands[number]
            piece = memoryview(band)[inside : inside + len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def _read_band(self, first: int) -> bytearray:
        """The rows that begin at row `first`, as far as one row of chunks has them."""
        shape, box, width = self._spec.shape, self._box, self._spec.dtype.size
        rows = min(box[0], shape[0] - first)
        band = bytearray(rows * self._row)
        into, out_of = c_strides((rows, *shape[1:])), c_strides(tuple(box))
        for place in product((first,), *(range(0, n, c) for n, c in zip(shape[1:], box[1:], strict=True))):
            data = self._unpacked(self._chunks[place])
            kept = [rows, *(min(c, n - at) for c, n, at in zip(box[1:], shape[1:], place[1:], strict=True))]
            run = kept[-1] * width
            for index in product(*map(range, kept[:-1])):
                at = sum(i * s for i, s in zip(index, out_of, strict=False)) * width
                to = sum((i + p) * s for i, p, s in zip((*index, 0), (0, *place[1:]), into, strict=True)) * width
                band[to : to + run] = data[at : at + run]
        return band

    def _unpacked(self, chunk: _Chunk) -> bytes | bytearray:
        data: bytes | bytearray = self._file.source.read(self._file.base + chunk.address, chunk.nbytes)
        for place, number in reversed(list(enumerate(self._filters))):
            if chunk.mask >> place & 1:
                continue
            if number == _DEFLATE:
                most = min(self._nbytes + 4, len(data) * MAX_RATIO)  # perhaps with a checksum
                try:
                    data = zlib.decompressobj().decompress(data, most + 1)
                except zlib.error as error:
                    raise self._broken(f"a chunk doesn't unpack: {error}", chunk) from None
                if len(data) > most:
                    raise self._broken("a chunk unpacks to more than its size", chunk)
            elif number == _SHUFFLE:  # the bytes are sorted by their place in an element
                width, shuffled = self._spec.dtype.size, data
                count, data = len(data) // width, bytearray(data)
                for n in range(width):
                    data[n : count * width : width] = shuffled[n * count : (n + 1) * count]
            else:
                data = data[:-4]
        if len(data) != self._nbytes:
            raise self._broken("a chunk has another size", chunk, len(data))
        return data

    def _broken(self, reason: str, chunk: _Chunk, size: int | None = None) -> FormatError:
        expected = None if size is None else self._nbytes
        return FormatError(reason, path=self.name, offset=chunk.address, expected=expected, found=size)


def _layout(f: Fields, version: int, file: Hdf5) -> tuple[list[int], _Chunk | None, int | None]:
    """The shape of a chunk and the bytes of an element; the only chunk; the tree of the chunks."""
    if version == 3:
        rank = f.number(1)
        tree = f.address()
        return [f.number(4) for _ in range(rank)], None, tree
    flags, rank, width = f.numbers(1, 1, 1)
    dims = [f.number(width) for _ in range(rank)]
    if (kind := f.number(1)) != _SINGLE:
        raise UnsupportedError(f"its chunks have an index of type {kind}; save it without libver='latest'")
    nbytes, mask = (f.length(), f.number(4)) if flags & 2 else (prod(dims), 0)
    address = f.address()
    return dims, None if address is None else _Chunk(address, nbytes, mask), None


def _chunks(file: Hdf5, tree: int, box: list[int]) -> Iterator[tuple[tuple[int, ...], _Chunk]]:
    """The chunks of a B-tree of version 1, by their first element."""
    stack, seen, key = [tree], {tree}, 8 + 8 * (len(box) + 1)
    while stack:
        head = 8 + 2 * file.offsets
        f = file.fields(at := stack.pop(), head)
        f.expect(b"TREE")
        kind, level, count = f.numbers(1, 1, 2)
        if kind != 1:
            raise file.error("a dataset has the tree of a group", f.at)
        f = file.fields(at + head, count * (key + file.offsets))
        for _ in range(count):
            nbytes, mask = f.numbers(4, 4)
            place = tuple(f.numbers(*(8,) * len(box)))
            f.take(8)
            child = f.address()
            if child is None or child in seen:
                raise file.error("a tree of chunks refers to one place twice", f.at)
            seen.add(child)
            if level:
                stack.append(child)
            else:
                yield place, _Chunk(child, nbytes, mask)
