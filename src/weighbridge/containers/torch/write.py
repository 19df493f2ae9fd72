"""Writes PyTorch's zip: a plain state dict that `torch.load(weights_only=True)` accepts, byte for byte as torch.save
writes it to a buffer (torch 2.13; caffe2/serialize/inline_container.cc), except for the first half of the serialization
id, which torch computes from the order of its hash table.

    archive/data.pkl, .format_version, .storage_alignment, byteorder, data/0 ... data/N, version, .data/serialization_id

Members are stored, their data at multiples of 64 bytes. Checksums and sizes are in descriptors after the data and in
the directory: everything that depends on the data is small, follows it, and is written last (`Layout.fixups`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Shape, Spec, c_strides
from weighbridge.base.words import plural
from weighbridge.containers.archive import zip_write
from weighbridge.containers.archive.zip_records import HAS_DESCRIPTOR, UTF8
from weighbridge.containers.archive.zip_write import PlacedMember
from weighbridge.containers.base import Layout, Slot
from weighbridge.unpickle.libraries.torch_types import CLASS_OF
from weighbridge.unpickle.write import Call, Name, PersistentId, dumps

ALIGN: Final = 64
_ROOT: Final = "archive"
_MADE_BY: Final = 3 << 8 | 30  # in the end record; torch leaves it zero elsewhere
_BEFORE: Final = ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little"))
_AFTER: Final = (("version", b"3\n"),)
_SERIALIZATION_ID: Final = ".data/serialization_id"
_ID_DIGITS: Final = 20
_WORD: Final = (1 << 64) - 1


class View(NamedTuple):
    """A tensor as a view of a storage (a slot): element (i, j ...) is number offset + i*strides[0] + ... of it."""

    storage: str
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0


def layout(
    tensors: Sequence[tuple[str, Spec]],
    metadata: Mapping[str, Any] | None = None,
    *,
    views: Mapping[str, View] | None = None,
) -> Layout:
    """A file of a flat state dict. `tensors` are the storages; `views` are the tensors in them by name, if several
    share one or aren't in C order. A state dict has no metadata."""
    specs = dict(tensors)
    if len(specs) != len(tensors):
        raise UsageError("two tensors have one name")
    if views is None:
        views = {name: View(name, spec.shape, c_strides(spec.shape)) for name, spec in tensors}
    return replace(archive(state_dict(views, specs), tensors), notes=tuple(no_metadata(metadata or {})))


def no_metadata(metadata: Mapping[str, Any]) -> list[str]:
    lost = [key for key in metadata if key != "format"]  # {"format": "pt"} is implied
    return [f"left out: {plural(len(lost), 'value')} of metadata, as a state dict has tensors only"] if lost else []


# ---- data.pkl -----------------------------------------------------------------------------------------------


def ordered_dict(pairs: Sequence[tuple[Any, Any]] = ()) -> Call:
    return Call(Name("collections", "OrderedDict"), (), pairs)


def state_dict(views: Mapping[str, View], storages: Mapping[str, Spec]) -> Call:
    """The value of a flat state dict."""
    keys = {name: str(i) for i, name in enumerate(storages)}
    return ordered_dict([(n, tensor(v, keys[v.storage], storages[v.storage])) for n, v in views.items()])


def tensor(view: View, key: str, storage: Spec) -> Call:
    """The call that makes a tensor of a view. Types without their own storage class are stored as bytes."""
    dtype = storage.dtype
    if dtype.torch is None:
        raise UnsupportedError(f"torch has no type {dtype}", hint="decode it first, e.g. --dtype f16")
    shape, strides = _counted(view, dtype)
    typed = CLASS_OF.get(dtype)
    kind = Name("torch.storage", "UntypedStorage") if typed is None else Name("torch", typed)
    numel = storage.nbytes if typed is None else storage.elements
    place = PersistentId(("storage", kind, key, "cpu", numel))
    hooks = ordered_dict()
    call = "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3"
    args = (place, view.offset, shape, strides, False, hooks, *(() if typed else (Name("torch", dtype.torch),)))
    return Call(Name("torch._utils", call), args)


def _counted(view: View, dtype: DType) -> tuple[Shape, tuple[int, ...]]:
    """Shape and strides in torch's elements: one of a type of two 4-bit numbers is a pair."""
    if dtype.block == 1:  # new tuples: the pickle memoizes objects, and torch creates them for each tensor
        return tuple(list(view.shape)), tuple(list(view.strides))
    if not view.shape or view.shape[-1] % dtype.block:
        raise UnsupportedError(f"torch has {dtype} in rows of whole bytes only, not {list(view.shape)}")
    shape = (*view.shape[:-1], view.shape[-1] // dtype.block)
    return shape, c_strides(shape)


# ---- the archive ----------------------------------------------------------------------------------------------


def archive(value: Any, storages: Sequence[tuple[str, Spec]]) -> Layout:
    """A file with `value` as its pickle, in which storage number i (key `str(i)`) is a slot."""
    fixed = {"data.pkl": dumps(value), **dict(_BEFORE), **dict(_AFTER)}
    sizes = [(name, len(data)) for name, data in fixed.items() if name not in dict(_AFTER)]
    sizes += [(f"data/{i}", spec.nbytes) for i, (_, spec) in enumerate(storages)]
    sizes += [(name, len(data)) for name, data in _AFTER]
    members: list[PlacedMember] = []
    at = 0
    for name, size in (*sizes, (_SERIALIZATION_ID, 2 * _ID_DIGITS)):
        raw = f"{_ROOT}/{name}".encode()
        wide = zip_write.zip64_field(size, at)
        bare = at + zip_write.LOCAL_SIZE + len(raw) + len(wide) + 4
        pad = -bare % ALIGN  # in a field of Zs, which always exists
        extra = wide + struct.pack("<2sH", b"FB", pad) + b"Z" * pad
        members.append(PlacedMember(raw, size, at, bare + pad, extra, UTF8 | (HAS_DESCRIPTOR if size else 0)))
        at = bare + pad + size + (len(zip_write.descriptor(members[-1], 0)) if size else 0)
    first = 1 + len(_BEFORE)
    slots = tuple(Slot(n, s, m.start) for (n, s), m in zip(storages, members[first:], strict=False))

    def checks(digests: Mapping[str, int]) -> list[tuple[int, bytes]]:
        """Everything that depends on the data: the id, the descriptors, the directory."""
        crcs = [zlib.crc32(data) for data in fixed.values()]
        crcs[first:first] = [digests[name] for name, _ in storages]
        # Forty digits by which torch's logs distinguish files: from the names, and the checksums of members with data.
        names = sums = 0
        for m, crc in zip(members, crcs, strict=False):
            names, sums = _combined(names, zlib.crc32(m.name)), _combined(sums, crc) if m.size else sums
        digits = f"{names:0{_ID_DIGITS}d}{sums:0{_ID_DIGITS}d}".encode()
        return [(members[-1].start, digits), *_frame(members, [*crcs, zlib.crc32(digits)], at)]

    pieces = [(m.at, zip_write.local_header(m)) for m in members]
    pieces += [(m.start, fixed[n]) for m, (n, _) in zip(members, sizes, strict=False) if n in fixed]
    blank = _frame(members, [0] * len(members), at)
    size = blank[-1][0] + len(blank[-1][1])
    return Layout("torch-zip", tuple(sorted([*pieces, *blank])), slots, size, (), checks)


def _frame(members: Sequence[PlacedMember], crcs: Sequence[int], end: int) -> list[tuple[int, bytes]]:
    """The descriptors, the directory and the end records."""
    pairs = list(zip(members, crcs, strict=True))
    descriptors = [(m.start + m.size, zip_write.descriptor(m, crc)) for m, crc in pairs if m.size]
    directory = b"".join(zip_write.directory_entry(m, crc) for m, crc in pairs)
    return [*descriptors, (end, directory + zip_write.end_records64(len(members), end, len(directory), _MADE_BY))]


def _combined(seed: int, value: int) -> int:
    """at::hash_combine (c10/util/hash.h)."""
    return seed ^ (value + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & _WORD
