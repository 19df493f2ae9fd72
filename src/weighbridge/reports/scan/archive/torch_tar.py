"""Scans torch's oldest format (0.1): a tar of four members, each a series of pickles with raw numbers between them.

    sys_info    one pickle
    pickle      one pickle: the object, whose tensors are persistent ids (keys)
    storages    pickle(count), then each: pickle(key, location, class), int64 elements, the elements; pickle(views)
    tensors     pickle(count), then each: pickle(key, storage, class), int32 dims, 4 bytes, int64 sizes, strides, offset

Reference: torch.serialization `_legacy_load`, `persistent_load` of its tar part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import DIMS
from weighbridge.reports.scan.archive import streams
from weighbridge.reports.scan.model import Part, Piece
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.unpickle.libraries import torch_types
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import Global


class _Reader:
    """Reads the pickles of one member in order, and the numbers between them."""

    def __init__(self, part: Part) -> None:
        self.part, self.source = part, part.source
        self.at = 0

    def pickle(self) -> tuple[Any, Part]:
        """The value of the next pickle, and its part."""
        self.part.budget.spend(members=1)
        machine, start = Machine(self.source, self.at), self.at
        value = machine.run()
        self.at = machine.end
        window = self.source.window(start, self.at - start, self.source.name)
        return value, self.part.inside(f"pickle at {start}", window, "pickle")

    def count(self) -> tuple[int, Part]:
        value, part = self.pickle()
        if type(value) is not int or value < 0:
            raise FormatError("the count isn't a number", path=self.source.name, offset=0)
        return value, part

    def number(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.source.read(self.at - size, size), "little", signed=True)

    def skip(self, size: int) -> None:
        self.source.check(self.at, size)
        self.at += size


def _storages(reader: _Reader) -> Iterator[Part]:
    count, part = reader.count()
    yield part
    for _ in range(count):
        header, part = reader.pickle()
        yield part
        kind = header[2] if isinstance(header, tuple) and len(header) == 3 else None
        dtype = torch_types.STORAGES.get(kind.path) if isinstance(kind, Global) else None
        if dtype is None:
            raise FormatError("a storage of an unknown class", path=reader.source.name, offset=reader.at)
        reader.skip(max(reader.number(8), 0) * dtype.size)
    if reader.at < reader.source.size:
        yield reader.pickle()[1]


def _tensors(reader: _Reader) -> Iterator[Part]:
    count, part = reader.count()
    yield part
    for _ in range(count):
        yield reader.pickle()[1]
        dims = reader.number(4)
        if not 0 <= dims <= DIMS:
            raise FormatError(
                "a tensor with too many dimensions", path=reader.source.name, offset=reader.at, found=dims
            )
        reader.skip(4 + 16 * dims + 8)


_MEMBERS: Final[Mapping[str, Callable[[_Reader], Iterator[Part]]]] = MappingProxyType(
    {"storages": _storages, "tensors": _tensors}
)


def scan(part: Part) -> Iterator[Piece]:
    """Scans the members of a torch tar according to their names, other members as those of any tar."""
    for piece in streams.tar(part):
        name = piece.place.name if isinstance(piece, Part) else ""
        if isinstance(piece, Part) and name == "pickle":
            yield from pickles.scan(piece, ids=True)
        elif isinstance(piece, Part) and name in _MEMBERS:
            reader = _Reader(piece)
            yield from _MEMBERS[name](reader)
            if left := max(piece.source.size - reader.at, 0):
                yield piece.inside(f"bytes from {reader.at}", piece.source.window(reader.at, left))
        else:
            yield piece
