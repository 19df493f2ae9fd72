"""Weights of Core ML's ML programs (weights/weight.bin): blobs with types and sizes, but without names and shapes.

    file      u32 number of blobs, u32 2, 56 reserved bytes
    blob      u32 0xDEADBEEF, u32 type, u64 bytes, u64 offset of the data, u64 bits of padding, 32 reserved bytes; data

Records and data begin at multiples of 64. A blob is called blob_OFFSET, by the offset of its record, as the program
refers to it (`coreml.py`). Reference: StorageFormat.hpp of coremltools 9.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Index, Region, Rule
from weighbridge.containers.frameworks.tensor_list import PACKED, TensorList, framed
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.source import Source

NAME: Final = "coreml-weights"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(dict(COMMON))
#: BlobDataType -> type.
DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "F16", 2: "F32", 3: "U8", 4: "I8", 5: "BF16", 6: "I16", 7: "U16", 8: "I4", 9: "U1", 10: "U2", 11: "U4",
        12: "U3", 13: "U6", 14: "I32", 15: "U32", 16: "F8_E4M3", 17: "F8_E5M2",
    }
)  # fmt: skip
#: Bytes of a record, and the alignment of records and data.
UNIT: Final = 64
_VERSION: Final = 2
_SENTINEL: Final = 0xDEADBEEF
_RECORD: Final = struct.Struct("<IIQQQ")


class WeightBlob(NamedTuple):
    """A record at byte `at`, and its data. `padding`: unused bits at the end."""

    at: int
    kind: int
    size: int
    start: int
    padding: int


def recognise(probe: Probe) -> Hit | None:
    """A header of version 2, and the first record after it."""
    first = probe.at(UNIT, 4)
    if probe.number(4, "<I") != _VERSION or first != struct.pack("<I", _SENTINEL):
        return None
    return Hit(NAME, evidence=("MIL blob storage, version 2 (Core ML)",))


def blobs(source: Source) -> Iterator[WeightBlob]:
    """The blobs in their order. Raises FormatError at the first broken one."""
    count, version = struct.unpack("<II", source.read(0, 8))
    if version != _VERSION:
        raise FormatError("no blob storage of version 2", path=source.name, offset=4, found=version)
    if count > (source.size - UNIT) // UNIT:
        raise FormatError("more blobs than the file has room for", path=source.name, offset=0, found=count)
    at = UNIT
    for _ in range(count):
        sentinel, kind, size, start, padding = _RECORD.unpack(source.read(at, _RECORD.size))
        if sentinel != _SENTINEL:
            raise FormatError("a blob's record has no sentinel", path=source.name, offset=at, found=hex(sentinel))
        if start != at + UNIT:
            raise FormatError("a blob's data doesn't follow its record", path=source.name, offset=at + 16,
                              expected=at + UNIT, found=start)  # fmt: skip
        source.check(start, size)
        yield WeightBlob(at, kind, size, start, padding)
        at = -(-(start + size) // UNIT) * UNIT


def parse(source: Source) -> Index:
    """The blobs as tensors of one axis."""
    tensor_list = TensorList(NAME, source, RULES)
    for blob in blobs(source):
        dtype, name = DTYPES.get(blob.kind), f"blob_{blob.at}"
        row, bits = BY_NAME.get(dtype or ""), PACKED.get(dtype or "", 0)
        if blob.padding > 7 or (row is not None and blob.size % row.size):
            raise tensor_list.error("the data isn't a whole number of elements", name, blob.at, found=blob.size)
        length = (8 * blob.size - blob.padding) // bits if bits else blob.size // row.size if row is not None else 0
        kind = f"number {blob.kind} of BlobDataType"
        tensor_list.add(name, dtype, (length,), blob.start, blob.size, kind=kind, at=blob.at)
    return tensor_list.index({}, _VERSION)


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "records of blobs, padding")
