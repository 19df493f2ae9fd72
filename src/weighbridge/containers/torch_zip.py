"""PyTorch's checkpoints since 1.6: a zip with a pickle and one member a storage.

    <root>/data.pkl        the object; its storages are persistent ids ("storage", class, key, location, elements)
    <root>/byteorder       "little" or "big"; older files lack it and are little-endian
    <root>/data/<key>      the storage's bytes
    <root>/version, .format_version, .storage_alignment, .data/serialization_id ...

The pickle is read by an abstract machine and never unpickled: what it would import or call is a finding. Names that
differ in case only are refused, as torch finds members without regard to case and others don't; so are two roots. CRCs
are not checked on opening: torch does not either, and can be told to write none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weighbridge.base.dtypes import U8
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_READING
from weighbridge.base.spec import Spec
from weighbridge.containers import zips
from weighbridge.containers.base import Finding, Index, Region
from weighbridge.containers.torch_entries import Place, entries_of
from weighbridge.io.source import Source
from weighbridge.unpickle import torch
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.torch import Remark, Storage

NAME: Final = "torch-zip"
SUFFIX: Final = ".pt"
_PICKLE: Final = "data.pkl"
_ORDERS: Final = {b"little": "<", b"big": ">"}


def parse(source: Source) -> Index:
    """The tensors of a checkpoint in the order in which it names them. A deflated storage has a source of its own."""
    members, root = _members(source)
    main = members[root + _PICKLE]
    with zips.open_member(source, main) as inner:
        machine = Machine(inner, budget=PICKLE_READING)
        value = machine.run()
        reading = torch.read(machine, value)
        if machine.end < inner.size:
            words = f"{inner.size - machine.end} bytes follow the pickle"
            reading.remarks.append(Remark("pickle.trailing-bytes", words, machine.end))
    places = _Places(source, members, f"{root}data/")
    found = entries_of(reading, places.find, source.name, main.start)
    return Index(
        NAME, tuple(places.files), found.entries, reading.plain, data_start=(0,) * len(places.files),
        byte_order=_byte_order(source, members.get(f"{root}byteorder")), findings=found.findings,
    )  # fmt: skip


def _members(source: Source) -> tuple[Mapping[str, zips.Member], str]:
    """The members by name, and the folder that they are in."""
    archive = zips.read(source)
    members = {m.name: m for m in archive.members}
    folded: dict[str, zips.Member] = {}
    for m in archive.members:
        other = folded.setdefault(m.name.casefold(), m)
        if other is not m:
            words = "two members' names differ in case only: readers take different ones"
            raise FormatError(words, path=source.name, offset=m.at, field=repr(m.name), found=repr(other.name))
    roots = sorted({name.partition("/")[0] for name in members})
    if len(roots) != 1:
        raise FormatError("the members are not in one folder", path=source.name, expected="one", found=roots[:4])
    root = f"{roots[0]}/"
    if f"{root}constants.pkl" in members:
        raise UnsupportedError(f"{source.name} is a TorchScript program", hint="save its state_dict() instead")
    if root + _PICKLE not in members:
        raise UnsupportedError(f"{source.name}: an archive of PyTorch without {_PICKLE}", hint="save a state_dict()")
    return members, root


def _byte_order(source: Source, member: zips.Member | None) -> str:
    if member is None:
        return "<"
    with zips.open_member(source, member) as inner:
        said = inner.head(16)
    if said not in _ORDERS:
        raise FormatError(
            "no byte order", path=source.name, offset=member.start, expected="'little' or 'big'", found=said
        )
    return _ORDERS[said]


class _Places:
    """Finds storages; `files` grows by the deflated ones."""

    def __init__(self, source: Source, members: Mapping[str, zips.Member], folder: str) -> None:
        self.source, self.members, self.folder = source, members, folder
        self.files: list[Source] = [source]
        self.known: dict[str, Place] = {}

    def find(self, storage: Storage) -> Place:
        place = self.known.get(storage.key)
        if place is None:
            member = self.members.get(self.folder + storage.key)
            if member is None:
                raise FormatError(f"the archive has no storage {storage.key[:40]!r}")
            place = self.known[storage.key] = self._place(member)
        return place

    def _place(self, member: zips.Member) -> Place:
        if member.method == zips.STORED:
            return Place(0, member.start, member.size)
        self.files.append(zips.open_member(self.source, member))
        return Place(len(self.files) - 1, 0, member.size)


def check(source: Source) -> tuple[Finding, ...]:
    """What is wrong beyond the structure: what opening finds."""
    return parse(source).findings


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; where the archive can't be read, what is unknown is called so."""
    return zips.regions(source, _member_region)


def _member_region(source: Source, m: zips.Member) -> list[Region]:
    end = m.start + m.packed
    storage = "/data/" in m.name
    value = f"deflated from {m.size} bytes" if m.method != zips.STORED else str(Spec((m.size,), U8)) if storage else ""
    return [Region(m.start, end, "tensor" if storage else "value", m.name, value)]
