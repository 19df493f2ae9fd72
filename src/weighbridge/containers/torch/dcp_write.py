"""Writes distributed checkpoints of one process, which `torch.distributed.checkpoint.load` reads into any number of
them: the items of a data file, and `.metadata` for them. Its objects are written as calls of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec, c_strides
from weighbridge.containers.base import Layout, Slot
from weighbridge.containers.boxes import Box
from weighbridge.containers.torch.dcp import DATA, FILESYSTEM, HERE, SUFFIX, Chunk, DcpItem
from weighbridge.containers.torch.write import View, archive, tensor
from weighbridge.unpickle.write import Call, Name, dumps

_VERSION: Final = "1.0.0"  # CURRENT_DCP_VERSION of torch 2.13
_STRIDED: Final = Call(Name("torch.serialization", "_get_layout"), ("torch.strided",))


def data_file_name(number: int) -> str:
    """The name of data file number `number` of the only process."""
    return f"__0_{number}{SUFFIX}"


def data_file(file: str, tensors: Sequence[tuple[str, Spec]]) -> tuple[Layout, dict[str, DcpItem]]:
    """The layout of the data file called `file`, and the item of each tensor in it."""
    pieces: list[tuple[int, bytes]] = []
    slots: list[Slot] = []
    parts: list[tuple[int, Layout]] = []
    items: dict[str, DcpItem] = {}
    at = 0
    for name, spec in tensors:
        part = archive(tensor(View(name, spec.shape, c_strides(spec.shape)), "0", spec), [(name, spec)])
        pieces += [(at + offset, data) for offset, data in part.pieces]
        slots += [Slot(slot.name, slot.spec, at + slot.offset) for slot in part.slots]
        parts.append((at, part))
        items[name] = DcpItem(file, at, part.size)
        at += part.size

    def fixups(digests: Mapping[str, int]) -> list[tuple[int, bytes]]:
        return [(start + offset, data) for start, part in parts if part.fixups for offset, data in part.fixups(digests)]

    return Layout(DATA, tuple(pieces), tuple(slots), at, (), fixups), items


def metadata_file(tensors: Mapping[str, tuple[Spec, Sequence[Chunk]]]) -> bytes:
    """The `.metadata` of tensors: the spec of each, and its chunks."""
    listed: dict[str, Call] = {}
    stored: dict[Call, Call] = {}
    for name, (spec, chunks) in tensors.items():
        if spec.dtype.torch is None:
            raise UnsupportedError(f"torch has no type {spec.dtype}", hint="decode it first, e.g. --dtype f16")
        dtype, order = _torch(spec.dtype.torch), _torch("contiguous_format")
        properties = _new("TensorProperties", dtype, _STRIDED, False, order, False)
        boxes = [_new("ChunkStorageMetadata", _size(c.box.starts, spec), _size(c.box.shape, spec)) for c in chunks]
        listed[name] = _new("TensorStorageMetadata", properties, _size(spec.shape, spec), boxes)
        for number, chunk in enumerate(chunks):
            index = _new("MetadataIndex", name, _size(chunk.box.starts, spec), number)
            stored[index] = _new("_StorageInfo", *chunk.item)
    paths = {name: (name,) for name in tensors}
    return dumps(_new("Metadata", listed, paths, stored, None, _VERSION))


def whole(spec: Spec, item: DcpItem) -> list[Chunk]:
    """A tensor in one item. One without elements has a chunk, too."""
    return [Chunk(Box((0,) * len(spec.shape), spec.shape), item)]


def _new(cls: str, *arguments: object) -> Call:
    return Call(Name(FILESYSTEM if cls == "_StorageInfo" else HERE, cls), arguments)


def _torch(name: str) -> Name:
    return Name("torch", name)


def _size(values: Sequence[int], spec: Spec) -> Call:
    """A torch.Size, in torch's elements: one of a type of two 4-bit numbers is a pair."""
    last = (values[-1] // spec.dtype.block,) if values else ()
    return Call(Name("torch", "Size"), ((*values[:-1], *last),))
