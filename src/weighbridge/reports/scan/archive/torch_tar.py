"""The look at torch's oldest format (0.1), a tar of four members, each pickles with raw numbers between them:

    sys_info    one pickle
    pickle      one pickle: the object, its tensors by persistent ids that are keys
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
from weighbridge.io.source import Source
from weighbridge.reports.scan.archive import streams
from weighbridge.reports.scan.model import Budget, MemberPath, Nested, Piece
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.unpickle.libraries import torch_types
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import Global


class _Parts:
    """The pickles of one member, in order, with the numbers between them stepped over."""

    def __init__(self, source: Source, place: MemberPath, budget: Budget) -> None:
        self.source, self.place, self.budget = source, place, budget
        self.at = 0

    def pickle(self) -> tuple[Any, Nested]:
        """The next pickle's value, and the part that it is."""
        self.budget.spend(members=1)
        machine, start = Machine(self.source, self.at), self.at
        value = machine.run()
        self.at = machine.end
        part = self.source.window(start, self.at - start, self.source.name)
        return value, Nested(part, self.place.inside(f"pickle at {start}"), "pickle")

    def count(self) -> tuple[int, Nested]:
        value, part = self.pickle()
        if type(value) is not int or value < 0:
            raise FormatError("the count is no number", path=self.source.name, offset=0)
        return value, part

    def number(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.source.read(self.at - size, size), "little", signed=True)

    def skip(self, size: int) -> None:
        self.source.check(self.at, size)
        self.at += size


def _storages(parts: _Parts) -> Iterator[Nested]:
    count, part = parts.count()
    yield part
    for _ in range(count):
        header, part = parts.pickle()
        yield part
        kind = header[2] if isinstance(header, tuple) and len(header) == 3 else None
        dtype = torch_types.STORAGES.get(kind.path) if isinstance(kind, Global) else None
        if dtype is None:
            raise FormatError("a storage of no known class", path=parts.source.name, offset=parts.at)
        parts.skip(max(parts.number(8), 0) * dtype.size)
    if parts.at < parts.source.size:
        yield parts.pickle()[1]


def _tensors(parts: _Parts) -> Iterator[Nested]:
    count, part = parts.count()
    yield part
    for _ in range(count):
        yield parts.pickle()[1]
        dims = parts.number(4)
        if not 0 <= dims <= DIMS:
            raise FormatError("a tensor of too many dimensions", path=parts.source.name, offset=parts.at, found=dims)
        parts.skip(4 + 16 * dims + 8)


_MEMBERS: Final[Mapping[str, Callable[[_Parts], Iterator[Nested]]]] = MappingProxyType(
    {"storages": _storages, "tensors": _tensors}
)


def scan(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A tar of torch: its members by what they are, any others as any tar's."""
    for piece in streams.tar(source, place, budget):
        name = piece.place.name if isinstance(piece, Nested) else ""
        if isinstance(piece, Nested) and name == "pickle":
            yield from pickles.scan(piece.source, piece.place, budget, ids=True)
        elif isinstance(piece, Nested) and name in _MEMBERS:
            parts = _Parts(piece.source, piece.place, budget)
            yield from _MEMBERS[name](parts)
            yield from _rest(parts)
        else:
            yield piece


def _rest(parts: _Parts) -> Iterator[Nested]:
    """Bytes behind the last part."""
    if parts.at < parts.source.size:
        left = parts.source.size - parts.at
        yield Nested(parts.source.window(parts.at, left), parts.place.inside(f"bytes from {parts.at}"))
