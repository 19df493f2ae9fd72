"""PyTorch's checkpoints before 0.1.10: a tar of three files (and `sys_info`), each with pickles and raw numbers.

    storages    count, for each: pickle (key, location, class), i64 number of elements, their bytes;
                then a pickle [(key, key of its root, offset, elements)] of views
    tensors     count, for each: pickle (key, storage's key, class), i32 dimensions, 4 bytes, i64 sizes, i64 strides,
                i64 offset
    pickle      the object; its tensors are persistent ids, the keys of `tensors`

Reference: `legacy_load` in torch/serialization.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from weighbridge.base import gc_pause
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, PICKLE_MEMORY, PICKLE_READING
from weighbridge.base.records import dataclass
from weighbridge.containers.archive import tar as tars
from weighbridge.containers.base import Index, Region
from weighbridge.containers.torch.entries import SourceList, StoragePlace, index_of
from weighbridge.io.source import Source, Window
from weighbridge.unpickle.libraries import torch
from weighbridge.unpickle.libraries.torch_types import STORAGES, SavedTensor, Storage, within
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import Global, UnexpectedOpcode, preview

NAME: Final = "torch-tar"
_MEMBERS: Final = ("storages", "tensors", "pickle")
_MOST_MEMBERS: Final = 64


@dataclass
class _File:
    """The content of the members. Keys are numbers or strings, as in the pickles."""

    members: Mapping[str, tars.TarMember]
    storages: dict[int | str, Storage] = field(default_factory=dict)
    places: dict[str, StoragePlace] = field(default_factory=dict)
    tensors: dict[int | str, SavedTensor] = field(default_factory=dict)
    remarks: list[torch.Remark] = field(default_factory=list)
    parts: list[Region] = field(default_factory=list)


@gc_pause.paused()
def parse(source: Source) -> Index:
    """The tensors of a checkpoint in the order in which it names them."""
    file = _read(source)
    main = file.members["pickle"]
    machine = Machine(_window(source, main), budget=PICKLE_READING)
    value = machine.run()
    reading = torch.read(machine, value, file.tensors)
    reading.remarks[:0] = file.remarks

    return index_of(
        NAME, reading, lambda storage: file.places[storage.key], SourceList(source), source.name, main.start
    )


def _window(source: Source, m: tars.TarMember) -> Window:
    return source.window(m.start, m.size, f"{source.name}::{m.name}")


def _members(source: Source) -> list[tars.TarMember]:
    """The tar's files. FormatError for a duplicate name or a damaged header."""
    out: dict[str, tars.TarMember] = {}
    for member in tars.members(source):
        if len(out) == _MOST_MEMBERS:
            raise UnsupportedError(f"{source.name}: a tar of more than {_MOST_MEMBERS} members", hint="unpack it first")
        name = member.name.removeprefix("./")
        if name in out:
            raise FormatError("two members have one name", path=source.name, offset=member.at, field=repr(name))
        out[name] = member._replace(name=name)
    return [member for member in out.values() if member.kind == "file"]


def _read(source: Source) -> _File:
    file = _File({m.name: m for m in _members(source)})
    for name in _MEMBERS:
        if name not in file.members:
            raise FormatError(f"the tar has no member {name!r}", path=source.name, found=sorted(file.members)[:4])
    _storages(_Cursor(source, file, "storages"), file)
    _tensors(_Cursor(source, file, "tensors"), file)
    return file


class _Cursor:
    """Reads one member: pickles and raw numbers in turn."""

    def __init__(self, source: Source, file: _File, name: str) -> None:
        self.member, self.file = file.members[name], file
        self.source = _window(source, self.member)
        self.at = 0

    def pickle(self) -> Any:
        machine = Machine(self.source, self.at, PICKLE_MEMORY)
        value = machine.run()
        self.name(machine.end - self.at, "value", "pickle", preview(value))
        shift = self.member.start - self.file.members["pickle"].start
        self.file.remarks += [r._replace(at=r.at + shift) for r in torch.read(machine, None).remarks]
        self.at = machine.end
        return value

    def numbers(self, count: int, width: int, label: str) -> list[int]:
        raw = self.source.read(self.at, count * width)
        numbers = [int.from_bytes(raw[i : i + width], "little", signed=True) for i in range(0, len(raw), width)]
        self.name(len(raw), "dims", label, str(numbers))
        self.at += len(raw)
        return numbers

    def skip(self, size: int, kind: str, label: str) -> int:
        """Skips `size` bytes; returns their place in the file."""
        self.source.check(self.at, size)
        self.name(size, kind, label, "")
        self.at += size
        return self.member.start + self.at - size

    def name(self, size: int, kind: str, label: str, value: str) -> None:
        start = self.member.start + self.at
        if size:
            self.file.parts.append(Region(start, start + size, kind, label, value))

    def count(self, label: str) -> int:
        value = self.pickle()
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= self.source.size:
            self.fail(f"no number of {label}", value)
        return int(value)

    def fail(self, message: str, value: Any) -> None:
        raise FormatError(message, path=self.source.name, offset=self.at, found=preview(value))

    def row(self, label: str) -> tuple[Any, Any, Any]:
        """A pickle of a key and two attributes of it."""
        value = self.pickle()
        if not isinstance(value, tuple) or len(value) != 3 or not _is_key(value[0]):
            self.fail(f"no {label}", value)
        return value  # type: ignore[no-any-return]


def _is_key(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _storages(c: _Cursor, file: _File) -> None:
    for _ in range(c.count("storages")):
        key, location, kind = c.row("storage")
        if not isinstance(kind, Global) or kind.path not in STORAGES or key in file.storages:
            c.fail("not a class of storages, or a duplicate key", kind)
        dtype = STORAGES[kind.path]
        (count,) = c.numbers(1, 8, f"elements of storage {key}")
        if count < 0:
            c.fail("a storage has a negative length", count)
        name = str(len(file.storages))
        start = c.skip(count * dtype.size, "tensor", f"storage {key}")
        file.storages[key] = Storage(name, dtype, count, location if isinstance(location, str) else "")
        file.places[name] = StoragePlace(0, start, count * dtype.size)
    views = c.pickle()
    if not isinstance(views, list):
        c.fail("no list of views", views)
    for view in views:
        is_view = isinstance(view, tuple) and len(view) == 4 and all(map(_is_key, view[:2]))
        if not is_view or view[1] not in file.storages:
            c.fail("no view of a storage", view)
        key, root, offset, count = view
        of = file.storages[root]
        if not all(isinstance(n, int) and n >= 0 for n in (offset, count)) or of.start + offset + count > of.numel:
            c.fail("a view reaches beyond its storage", view)
        file.storages[key] = Storage(of.key, of.dtype, of.numel, of.location, of.start + offset, count)


def _tensors(c: _Cursor, file: _File) -> None:
    for _ in range(c.count("tensors")):
        key, storage, _ = c.row("tensor")
        if not _is_key(storage) or storage not in file.storages or key in file.tensors:
            c.fail("not a storage, or a duplicate key", storage)
        at = c.member.start + c.at - file.members["pickle"].start
        rank, _ = c.numbers(2, 4, "dimensions")
        if not 0 <= rank <= DIMS:
            c.fail("a tensor has too many dimensions", rank)
        shape, strides = c.numbers(rank, 8, "shape"), c.numbers(rank, 8, "strides")
        (offset,) = c.numbers(1, 8, "offset")
        of = file.storages[storage]
        try:
            file.tensors[key] = within(SavedTensor(at, of, of.dtype, tuple(shape), tuple(strides), offset))
        except UnexpectedOpcode as odd:
            c.fail(f"a tensor is not as torch writes it: {odd}", shape)


def pickles(source: Source) -> list[tuple[str, Source, int]]:
    """The object's pickle: name, bytes, offset."""
    main = _read(source).members["pickle"]
    return [(main.name, _window(source, main), main.start)]


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; unreadable bytes are "unknown"."""
    try:
        members, parts = _members(source), _read(source).parts
    except (FormatError, UnsupportedError):
        return [Region(0, source.size, "unknown")] if source.size else []
    named = [*parts, *(Region(m.at, m.start, "header", f"tar header of {m.name}") for m in members)]
    named += [Region(m.start, m.start + m.size, "value", m.name) for m in members
              if m.size and m.name not in ("storages", "tensors")]  # fmt: skip
    return tars.filled(source, named)
