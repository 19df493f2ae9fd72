"""TensorFlow's checkpoints: a table of the variables, and their data.

    version 2   NAME.index: the table; NAME.data-00000-of-00001: the data (a SavedModel has both in variables/)
    version 1   one file: a table whose values are the data

    key ""      BundleHeaderProto (2): num_shards = 1, endianness = 2; SavedTensorSliceMeta (1)
    variable    BundleEntryProto (2): dtype = 1, shape = 2, shard_id = 3, offset = 4, size = 5, crc32c = 6, slices = 7

A partitioned variable is stored in slices under keys of their own. Slices that follow each other in the data become
the whole variable; others are tensors called NAME[START:END, ...]. Reference: tensor_bundle.proto,
saved_tensor_slice.proto and ordered_code.cc of TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import PurePath
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, SHARDS
from weighbridge.base.words import plural
from weighbridge.containers.base import Index, Region, Rule, Severity
from weighbridge.containers.frameworks import sstable
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList, framed
from weighbridge.containers.protobuf import BYTES, VARINT, Messages, ProtoField
from weighbridge.io.source import Source

NAME: Final = "tf-checkpoint"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {**COMMON, "sliced": Rule(Severity.WARNING, "a variable in slices that don't follow each other")}
)
INDEX: Final = ".index"
#: DataType -> type (types.proto). The others: 7 texts, 29 to 31 and 33 numbers of 4 and 2 bits, and quantized ones.
DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "F32", 2: "F64", 3: "I32", 4: "U8", 5: "I16", 6: "I8", 8: "C64", 9: "I64", 10: "BOOL", 14: "BF16", 17: "U16",
        18: "C128", 19: "F16", 22: "U32", 23: "U64", 24: "F8_E5M2", 25: "F8_E4M3", 26: "F8_E4M3FNUZ", 28: "F8_E5M2FNUZ",
    }
)  # fmt: skip
_STRING: Final = 7
_BIG_ENDIAN: Final = 1
# The map of objects to variables that TensorFlow 2 stores like a variable.
_OBJECT_GRAPH: Final = "_CHECKPOINTABLE_OBJECT_GRAPH"


class _Piece(NamedTuple):
    """The place of a variable or a slice: `file` is a data file, "" the table."""

    dtype: int
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int
    at: int
    swap: bool = False


class _Slice(NamedTuple):
    starts: tuple[int, ...]
    piece: _Piece


def parse(source: Source) -> Index:
    """The variables in the order of their names."""
    reader, tensor_list = Messages(source), TensorList(NAME, source, RULES)
    table = sstable.entries(source)
    first = next(table, None)
    if first is None or first.key:
        raise FormatError("the table has no header", path=source.name, offset=0, hint="not a checkpoint's index")
    header = list(reader.fields(first.start, first.end))
    if any(f.number == 1 and f.kind == BYTES for f in header):
        _read_old(tensor_list, reader, header, table)
        return tensor_list.index({}, 1)
    numbers = {f.number: f.value for f in header if f.kind == VARINT}
    if not 0 < numbers.get(1, 0) <= SHARDS:
        raise FormatError("the number of data files is impossible", path=source.name, found=numbers.get(1, 0))
    _read_bundle(tensor_list, reader, table, numbers[1], numbers.get(2) == _BIG_ENDIAN)
    return tensor_list.index({}, 2)


# ---- version 2 ------------------------------------------------------------------------------------------------


def _read_bundle(
    tensor_list: TensorList, reader: Messages, table: Iterator[sstable.TableEntry], shards: int, swap: bool
) -> None:
    name = PurePath(tensor_list.source.name).name
    stem = f"{name.removesuffix(INDEX)}.data-"
    whole: dict[str, _Piece] = {}
    slices: dict[str, list[_Slice]] = {}
    for entry in table:
        numbers: dict[int, int] = {}
        shape: tuple[int, ...] = ()
        sliced = False
        for f in reader.fields(entry.start, entry.end):
            if f.kind == VARINT:
                numbers[f.number] = f.value
            elif f.number == 2:
                shape = _shape(reader, f)
            sliced = sliced or f.number == 7
        shard = numbers.get(3, 0)
        if shard >= shards:
            raise reader.error(f"a variable is in data file {shard} of {shards}", entry.start)
        file = f"{stem}{shard:05}-of-{shards:05}"
        piece = _Piece(numbers.get(1, 0), shape, file, numbers.get(4, 0), numbers.get(5, 0), entry.start, swap)
        if entry.key[:1] == b"\0":
            key, starts = _slice_key(entry.key, tensor_list.source.name, entry.start)
            slices.setdefault(key, []).append(_Slice(starts, piece))
            continue
        key = entry.key.decode("utf-8", "replace")
        if sliced:
            whole[key] = piece
        elif key != _OBJECT_GRAPH:
            _add(tensor_list, key, piece)
    _add_slices(tensor_list, whole, slices)


def _shape(reader: Messages, field: ProtoField) -> tuple[int, ...]:
    """A TensorShapeProto: dim = 2 {size = 1}."""
    sizes: list[int] = []
    for dim in reader.fields(field.start, field.end):
        if dim.number == 2 and dim.kind == BYTES and len(sizes) <= DIMS:
            sizes.append(
                next((n for f in reader.fields(dim.start, dim.end) if f.number == 1 for n in reader.signed(f)), 0)
            )
    return tuple(sizes)


def _add(tensor_list: TensorList, name: str, piece: _Piece) -> None:
    if piece.dtype == _STRING:
        tensor_list.finding("texts", "left out: a tensor of strings", piece.at, name)
        return
    kind = f"number {piece.dtype} of TensorFlow's DataType"
    tensor_list.add(name, DTYPES.get(piece.dtype), piece.shape, piece.offset, piece.nbytes, kind=kind,
                    file=piece.file or None, at=piece.at, swap=piece.swap)  # fmt: skip


# ---- slices ---------------------------------------------------------------------------------------------------


def _add_slices(tensor_list: TensorList, whole: Mapping[str, _Piece], slices: Mapping[str, list[_Slice]]) -> None:
    """Adds partitioned variables, whole if their slices follow each other in the data."""
    for name, parts in slices.items():
        parts.sort(key=lambda part: part.starts)
        joined = _joined(whole.get(name), parts)
        if joined is not None:
            _add(tensor_list, name, joined)
            continue
        if len(parts) > 1:
            tensor_list.finding(
                "sliced", f"stored in {plural(len(parts), 'slice')}, each a tensor here", parts[0].piece.at, name
            )
        for starts, piece in parts:
            spans = ", ".join(f"{a}:{a + n}" for a, n in zip(starts, piece.shape, strict=False))
            _add(tensor_list, f"{name}[{spans}]", piece)
    for name in whole.keys() - slices.keys():
        raise tensor_list.error("a variable has no slices", name, whole[name].at)


def _joined(whole: _Piece | None, parts: list[_Slice]) -> _Piece | None:
    """The whole variable, if its slices are rows one after the other, in the data too."""
    rows, first = 0, parts[0].piece
    for starts, piece in parts:
        if whole is None or piece.shape[1:] != whole.shape[1:] or starts != (rows, *(0,) * (len(whole.shape) - 1)):
            return None
        rows += piece.shape[0] if piece.shape else 0
    if whole is None or (rows,) != whole.shape[:1]:
        return None
    follow = all(a.file == b.file and a.offset + a.nbytes == b.offset for (_, a), (_, b) in pairwise(parts))
    size = sum(piece.nbytes for _, piece in parts)
    return first._replace(dtype=whole.dtype, shape=whole.shape, nbytes=size) if follow else None


def _slice_key(key: bytes, path: str, at: int) -> tuple[str, tuple[int, ...]]:
    """The name of a slice's variable, and the starts of the slice. The key (ordered_code.cc): 0, name, 0 1, rank,
    (start, length) of each dimension. A length of -1 is the whole dimension, whose start is 0. A number has as many
    leading ones as bytes; those whose first byte is below 128 are negative, and only -1 is in use."""
    name, end = bytearray(), 1
    while key[end : end + 2] not in (b"\0\1", b""):
        escaped = key[end : end + 2] in (b"\0\xff", b"\xff\0")
        name.append(key[end])
        end += 2 if escaped else 1
    rank_bytes = key[end + 2 : end + 3]
    if not rank_bytes or rank_bytes[0] > 1:
        raise FormatError("a slice has no proper key", path=path, offset=at)
    place = end + 3 + rank_bytes[0]
    rank = int.from_bytes(key[end + 3 : place], "big")
    numbers: list[int] = []
    while place < len(key) and len(numbers) < 2 * rank:
        length = max(8 - (key[place] ^ 0xFF).bit_length(), 1)
        raw = int.from_bytes(key[place : place + length], "big")
        numbers.append(raw & ((1 << 7 * length) - 1) if key[place] >= 0x80 else -1)
        place += length
    if len(numbers) != 2 * rank or rank > DIMS:
        raise FormatError("a slice has no proper key", path=path, offset=at)
    return name.decode("utf-8", "replace"), tuple(numbers[::2])


# ---- version 1 ------------------------------------------------------------------------------------------------

# Fields of TensorProto whose numbers are stored as in memory.
_IN_PLACE: Final = MappingProxyType({4: "content", 5: "F32", 6: "F64"})


def _read_old(
    tensor_list: TensorList, reader: Messages, header: list[ProtoField], table: Iterator[sstable.TableEntry]
) -> None:
    """SavedTensorSlices: meta = 1 {tensor = 1 {name = 1, shape = 2, type = 3, slice = 4}} under the key "", and
    data = 2 {name = 1, slice = 2, data = 3} under the keys of the slices."""
    whole: dict[str, _Piece] = {}
    for meta in header:
        for f in reader.fields(meta.start, meta.end) if meta.number == 1 and meta.kind == BYTES else ():
            if f.number == 1 and f.kind == BYTES:
                parts = {p.number: p for p in reader.fields(f.start, f.end)}
                name = reader.text(parts[1], 4096) if 1 in parts and parts[1].kind == BYTES else ""
                shape = _shape(reader, parts[2]) if 2 in parts and parts[2].kind == BYTES else ()
                whole[name] = _Piece(parts[3].value if 3 in parts else 0, shape, "", 0, 0, f.start)
    slices: dict[str, list[_Slice]] = {}
    for entry in table:
        name, starts = _slice_key(entry.key, reader.source.name, entry.start) if entry.key[:1] == b"\0" else ("", ())
        if name not in whole:
            raise reader.error("a slice belongs to no variable", entry.start)
        slices.setdefault(name, []).append(_Slice(starts, _old_piece(reader, entry, whole[name], name)))
    whole = {name: piece for name, piece in whole.items() if piece.dtype != _STRING or name in slices}
    _add_slices(tensor_list, whole, slices)


def _old_piece(reader: Messages, entry: sstable.TableEntry, whole: _Piece, name: str) -> _Piece:
    """The data of a slice, which is in the table."""
    shape = list(whole.shape)
    for saved in reader.fields(entry.start, entry.end):
        for f in reader.fields(saved.start, saved.end) if saved.number == 2 and saved.kind == BYTES else ():
            if f.number == 2 and f.kind == BYTES:
                for axis, extent in enumerate(e for e in reader.fields(f.start, f.end) if e.kind == BYTES):
                    length = [p.value for p in reader.fields(extent.start, extent.end) if p.number == 2]
                    if length and axis < len(shape):
                        shape[axis] = length[0]
            elif f.number == 3 and f.kind == BYTES:
                for p in reader.fields(f.start, f.end):
                    stored = _IN_PLACE.get(p.number)
                    if p.kind == BYTES and stored in ("content", DTYPES.get(whole.dtype)):
                        return whole._replace(
                            shape=tuple(shape), offset=p.start, nbytes=p.end - p.start, at=entry.start
                        )
    if whole.dtype == _STRING:
        return whole
    raise UnsupportedError(f"{reader.source.name}: the numbers of {name!r} are written one by one",
                           hint="save the checkpoint again with write_version=SaverDef.V2")  # fmt: skip


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    parts = framed(source, parse, "table of the variables")
    last = parts[-1] if parts else None
    if last is None or last.kind != "header" or last.end - last.start <= sstable.FOOTER:
        return parts
    end = sstable.footer(source)
    return [*parts[:-1], Region(last.start, end.start, last.kind, last.label), end]
