"""PyTorch's checkpoints since 1.6: a zip with a pickle and one member a storage.

    <root>/data.pkl        the object; its storages are persistent ids ("storage", class, key, location, elements)
    <root>/byteorder       "little" or "big"; older files lack it and are little-endian
    <root>/data/<key>      the storage's bytes
    <root>/version, .format_version, .storage_alignment, .data/serialization_id ...

An abstract machine reads the pickle, which is never unpickled: imports and calls are findings. Names that differ only
in case are refused, since torch ignores the case of members and other readers don't; so are two roots. CRCs are not
checked on opening: torch doesn't check them either, and can be configured to write none.

A TorchScript program has the same layout, and also code and a second pickle, constants.pkl, whose storages are in
constants/. Its tensors are read, its code is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from weighbridge.base import gc_pause
from weighbridge.base.dtypes import U8
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_READING
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive import zip_records
from weighbridge.containers.base import Entry, Finding, Index, Region, Severity
from weighbridge.containers.torch.entries import SourceList, StoragePlace, entries_of, pickle_regions
from weighbridge.containers.torch.write import layout
from weighbridge.io.source import Source
from weighbridge.unpickle.libraries import torch
from weighbridge.unpickle.libraries.torch import Reading, Remark, Storage
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import Dict

__all__ = ["NAME", "layout", "parse", "regions"]

NAME: Final = "torch-zip"
_PICKLE: Final = "data.pkl"
_PICKLES: Final = ".pkl"
_LOOK: Final = 4096
_ORDERS: Final = {b"little": "<", b"big": ">"}


@gc_pause.paused()
def parse(source: Source) -> Index:
    """The tensors of a checkpoint in the order in which it names them. A deflated storage has its own source."""
    members, root = _members(source)
    order, stated = "<", members.get(f"{root}byteorder")
    if stated is not None:
        with zips.open_member(source, stated) as inner:
            text = inner.head(16)
        if text not in _ORDERS:
            raise FormatError("no byte order", path=source.name, offset=stated.start, expected="'little' or 'big'",
                              found=text)  # fmt: skip
        order = _ORDERS[text]
    files = SourceList(source, order)
    main = members[root + _PICKLE]
    state = _read(source, files, members, main, f"{root}data/")
    entries, findings, capped = state.entries, state.findings, state.capped
    program = [m for name, m in members.items() if name.startswith(f"{root}code/")]
    constants = members.get(f"{root}constants.pkl")
    if constants is not None:
        more = _read(source, files, members, constants, f"{root}constants/", "constants")
        entries, findings = (*entries, *more.entries), (*findings, *more.findings)
        capped += more.capped
    if program or constants is not None:
        message = f"a TorchScript program: {plural(len(program), 'file')} of code, which is left out and never run"
        at = program[0].at if program else main.at
        findings = (Finding("pickle.program", Severity.WARNING, message, source.name, at), *findings)
    sources = files.all()
    return Index(NAME, sources, entries, state.plain, data_start=(0,) * len(sources), byte_order=files.order,
                 findings=findings, capped=capped)  # fmt: skip


class _PickleEntries(NamedTuple):
    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...]
    capped: tuple[Entry, ...]
    plain: Mapping[str, Any]


def _read(
    source: Source,
    files: SourceList,
    members: Mapping[str, zips.ZipMember],
    main: zips.ZipMember,
    folder: str,
    name: str = "",
) -> _PickleEntries:
    """The content of one pickle of the archive; its storages are in `folder`, its names begin with `name`."""
    with zips.open_member(source, main) as inner:
        machine = Machine(inner, budget=PICKLE_READING)
        value = machine.run()
        reading = torch.read(machine, Dict(0, [name, value]) if name else value)
        if machine.end < inner.size:
            message = f"{inner.size - machine.end} bytes follow the pickle"
            reading.remarks.append(Remark("pickle.trailing-bytes", message, machine.end))
    places = _StorageFinder(source, members, folder, files)
    reading.remarks += places.absent(reading, main)
    part = entries_of(reading, places.find, files, source.name, main.start)
    return _PickleEntries(part.entries, part.findings, part.capped, reading.plain)


def _members(source: Source) -> tuple[Mapping[str, zips.ZipMember], str]:
    """The members by name, and the folder that they are in."""
    archive = zips.read(source)
    members = {m.name: m for m in archive.members}
    folded: dict[str, zips.ZipMember] = {}
    for m in archive.members:
        first = folded.setdefault(m.name.casefold(), m)
        if first is not m:
            raise FormatError("two members' names differ only in case: readers choose differently", path=source.name,
                              offset=m.at, field=repr(m.name), found=repr(first.name))  # fmt: skip
    roots = sorted({name.partition("/")[0] for name in members})
    if len(roots) != 1:
        raise FormatError("the members are not in one folder", path=source.name, expected="one", found=roots[:4])
    root = f"{roots[0]}/"
    if root + _PICKLE not in members:
        raise UnsupportedError(f"{source.name}: an archive of PyTorch without {_PICKLE}", hint="save a state_dict()")
    return members, root


class _StorageFinder:
    """Finds storages in a folder of the archive."""

    def __init__(self, source: Source, members: Mapping[str, zips.ZipMember], folder: str, files: SourceList) -> None:
        self.source, self.members, self.folder, self.files = source, members, folder, files
        self.known: dict[str, StoragePlace] = {}

    def find(self, storage: Storage) -> StoragePlace:
        place = self.known.get(storage.key)
        if place is None:
            member = self.members.get(self.folder + storage.key)
            if member is None:
                raise FormatError(f"the archive has no storage {storage.key[:40]!r}")
            if member.method == zip_records.STORED:
                place = StoragePlace(0, member.start, member.size)
            else:
                place = StoragePlace(self.files.add(zips.open_member(self.source, member)), 0, member.size)
            self.known[storage.key] = place
        return place

    def absent(self, reading: Reading, main: zips.ZipMember) -> list[Remark]:
        """`torch.serialization.skip_data` leaves holes: zeros with checksum 0, which isn't that of zeros. (In a file
        without checksums the pickle has none either.)"""
        if not main.crc:
            return []
        keys = dict.fromkeys(t.storage.key for t in reading.tensors.values() if t.storage.inline is None)
        unchecked = [m for key in keys if (m := self.members.get(self.folder + key)) and m.size and not m.crc]
        holes = [m for m in unchecked if not any(self.source.read(m.start, min(m.packed, _LOOK)))]
        if not holes:
            return []
        message = f"{plural(len(holes), 'storage', 'have')} no data (saved with skip_data): their tensors read as zeros"
        return [Remark("pickle.no-data", message, holes[0].start - main.start)]


def pickles(source: Source) -> list[tuple[str, Source, int]]:
    """Every pickle of the archive: its name, bytes, and offset in the file (-1: deflated)."""
    members, root = _members(source)
    ordered = sorted((m for m in members.values() if m.name.endswith(_PICKLES)), key=lambda m: m.name != root + _PICKLE)
    return [(m.name, zips.open_member(source, m), m.start if m.method == zip_records.STORED else -1) for m in ordered]


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named: a storage by its tensors, a pickle by its opcodes. Unreadable bytes are
    "unknown"."""
    try:
        entries = parse(source).entries
    except (FormatError, UnsupportedError):
        entries = ()
    tensors: dict[int, list[Entry]] = {}
    for e in entries:
        tensors.setdefault(e.offset, []).append(e)
    return zips.regions(source, lambda source, m: _member_regions(source, m, tensors))


def _member_regions(source: Source, m: zips.ZipMember, tensors: Mapping[int, list[Entry]]) -> list[Region]:
    end = m.start + m.packed
    if m.method != zip_records.STORED:
        return [Region(m.start, end, "value", m.name, f"deflated from {m.size} bytes")]
    if m.name.endswith(_PICKLES):
        with zips.open_member(source, m) as inner:
            out = pickle_regions(inner, 0, m.start)
        return out if out[-1].end == end else [*out, Region(out[-1].end, end, "unknown", m.name)]
    if "/data/" not in m.name and "/constants/" not in m.name:
        return [Region(m.start, end, "value", m.name)]
    inside = tensors.get(m.start, [])
    if len(inside) == 1 and inside[0].nbytes == m.size:
        return [Region(m.start, end, "tensor", inside[0].name, f"{inside[0].spec}, {m.name}")]
    names = ", ".join(e.name for e in inside[:3]) + (f" and {len(inside) - 3} more" if len(inside) > 3 else "")
    return [Region(m.start, end, "tensor", m.name, f"{Spec((m.size,), U8)}{': ' if names else ''}{names}")]
