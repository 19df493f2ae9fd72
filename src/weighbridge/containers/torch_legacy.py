"""PyTorch's checkpoints before 1.6 (and `_use_new_zipfile_serialization=False`): five pickles, then the storages.

    magic number | protocol 1001 | {"little_endian": ..., "type_sizes": ...} | the object | [storage keys] |
    for each key: i64 number of elements, their bytes

Nothing says how wide an element is but the persistent id by which the object names the storage. All numbers are
little-endian, whatever the third pickle says. Reference: `_legacy_load` in torch/serialization.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_READING
from weighbridge.containers.base import Finding, Index, Region
from weighbridge.containers.torch_entries import Place, entries_of
from weighbridge.io.source import Source
from weighbridge.unpickle import torch
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.torch import Storage
from weighbridge.unpickle.values import preview

NAME: Final = "torch-legacy"
SUFFIX: Final = ".pt"
MAGIC: Final = 0x1950A86A20F9469CFC6C
PROTOCOL: Final = 1001
_PARTS: Final = ("magic number", "protocol", "system", "object", "storage keys")


@dataclass(frozen=True)
class _File:
    """The machines that read the five pickles, their values, the storages by key, and where all ends."""

    machines: tuple[Machine, ...]
    values: tuple[Any, ...]
    places: Mapping[str, Place]
    end: int


def parse(source: Source) -> Index:
    """The tensors of a checkpoint in the order in which it names them."""
    file = _read(source)
    machine = file.machines[3]
    reading = torch.read(machine, file.values[3])
    if file.end < source.size:
        words = f"{source.size - file.end} bytes follow the last storage"
        reading.remarks.append(torch.Remark("pickle.trailing-bytes", words, file.end))

    def find(storage: Storage) -> Place:
        if storage.key not in file.places:
            raise FormatError(f"the file has no storage {storage.key[:40]!r}")
        return file.places[storage.key]

    for i in (0, 1, 2, 4):  # what is hidden in these is no tensor, but would be done all the same
        reading.remarks += torch.read(file.machines[i], None).remarks
    found = entries_of(reading, find, source.name, 0)
    return Index(NAME, (source,), found.entries, reading.plain, data_start=(file.machines[4].end,),
                 findings=found.findings)  # fmt: skip


def _read(source: Source) -> _File:
    machines: list[Machine] = []
    values: list[Any] = []
    at = 0
    for part in _PARTS:
        machine = Machine(source, at, PICKLE_READING)
        values.append(machine.run())
        machines.append(machine)
        at = machine.end
        wanted = {"magic number": MAGIC, "protocol": PROTOCOL}.get(part)
        if wanted is not None and (not isinstance(values[-1], int) or values[-1] != wanted):
            found = preview(values[-1])
            raise FormatError(f"not the {part}", path=source.name, offset=machine.start, expected=wanted, found=found)
    places, end = _places(source, machines, values[4])
    return _File(tuple(machines), tuple(values), places, end)


def _places(source: Source, machines: Sequence[Machine], keys: Any) -> tuple[dict[str, Place], int]:
    if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys):
        raise FormatError("no list of storage keys", path=source.name, offset=machines[4].start, found=preview(keys))
    widths: dict[str, int] = {}
    for storage in torch.storages(machines[3].events):
        widths.setdefault(storage.key, storage.dtype.size)
    places: dict[str, Place] = {}
    at = machines[4].end
    for key in keys:
        if key not in widths or key in places:
            words = "a storage comes twice" if key in places else "a storage that the object does not name"
            raise FormatError(words, path=source.name, offset=at, field="storage keys", found=preview(key))
        count = int.from_bytes(source.read(at, 8), "little", signed=True)
        size = count * widths[key]
        if not 0 <= size <= source.size - at - 8:
            left = f"{source.size - at - 8} left"
            raise FormatError("the file ends inside a storage", path=source.name, offset=at, field=repr(key[:40]),
                              expected=f"{size} bytes", found=left)  # fmt: skip
        places[key] = Place(0, at + 8, size)
        at += 8 + size
    return places, at


def check(source: Source) -> tuple[Finding, ...]:
    """What is wrong beyond the structure: what opening finds."""
    return parse(source).findings


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; where it can't be read, what is unknown is called so."""
    try:
        file = _read(source)
    except (FormatError, UnsupportedError):
        return [Region(0, source.size, "unknown")] if source.size else []
    out = [Region(m.start, m.end, "value", f"pickle of the {part}")
           for m, part in zip(file.machines, _PARTS, strict=True)]  # fmt: skip
    for key, place in file.places.items():
        out.append(Region(place.start - 8, place.start, "count", f"elements of storage {key}"))
        if place.size:
            out.append(Region(place.start, place.start + place.size, "tensor", f"storage {key}"))
    return out if file.end == source.size else [*out, Region(file.end, source.size, "unknown")]
