"""PyTorch's checkpoints before 1.6 (and `_use_new_zipfile_serialization=False`): five pickles, then the storages. See
`unpickle/libraries/torch_legacy.py` for the layout."""

from __future__ import annotations

from typing import Final

from weighbridge.base import gc_pause
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_READING
from weighbridge.containers.base import Index, Region
from weighbridge.containers.torch.entries import SourceList, StoragePlace, index_of, pickle_regions
from weighbridge.io.source import Source
from weighbridge.unpickle.libraries import torch
from weighbridge.unpickle.libraries import torch_legacy as legacy
from weighbridge.unpickle.libraries.torch import Storage
from weighbridge.unpickle.libraries.torch_types import WIDTHS

NAME: Final = "torch-legacy"


@gc_pause.paused()
def parse(source: Source) -> Index:
    """The tensors of a checkpoint in the order in which it names them."""
    stack = legacy.read(source, WIDTHS, PICKLE_READING)
    reading = torch.read(stack.machines[3], stack.values[3])
    if stack.end < source.size:
        message = f"{source.size - stack.end} bytes follow the last storage"
        reading.remarks.append(torch.Remark("pickle.trailing-bytes", message, stack.end))

    def find(storage: Storage) -> StoragePlace:
        if storage.key not in stack.spans:
            raise FormatError(f"the file has no storage {storage.key[:40]!r}")
        return StoragePlace(0, *stack.spans[storage.key])

    for i in (0, 1, 2, 4):  # they have no tensors, but a loader would execute them too
        reading.remarks += torch.read(stack.machines[i], None).remarks
    return index_of(NAME, reading, find, SourceList(source), source.name, 0, stack.machines[4].end)


def pickles(source: Source) -> list[tuple[str, Source, int]]:
    """The five pickles: name, source, where each begins in it."""
    stack = legacy.read(source, WIDTHS, PICKLE_READING)
    rows = zip(legacy.PARTS, stack.machines, strict=True)
    return [(part, source.window(m.start, m.end - m.start), m.start) for part, m in rows]


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; unreadable bytes are "unknown"."""
    try:
        stack = legacy.read(source, WIDTHS, PICKLE_READING)
    except (FormatError, UnsupportedError):
        return [Region(0, source.size, "unknown")] if source.size else []
    out = [region for m in stack.machines for region in pickle_regions(source, m.start)]
    for key, place in stack.spans.items():
        out.append(Region(place.start - 8, place.start, "count", f"elements of storage {key}"))
        if place.size:
            out.append(Region(place.start, place.start + place.size, "tensor", f"storage {key}"))
    return out if stack.end == source.size else [*out, Region(stack.end, source.size, "unknown")]
