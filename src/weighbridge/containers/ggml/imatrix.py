"""Importance matrices, in both forms that llama-imatrix writes: the places of each entry's numbers, and new files.

An entry is named after a tensor and records how large its inputs were: one sum of squares per column, of each matrix
where several are stacked (experts), and how often each matrix was used.

    legacy   i32 entries; each: i32 length, name, i32 calls, i32 values, f32[values] (mean square x calls)
             then, or nothing: i32 chunks, i32 length, name of the data set
    GGUF     general.type "imatrix", imatrix.datasets, .chunk_count, .chunk_size;
             `NAME.in_sum2` f32 [matrices, columns], `NAME.counts` f32 [matrices, 1], perhaps `NAME.in_sum` like in_sum2
             and `NAME.stats` (derived; not read)

Reference: common/imatrix-loader.cpp and tools/imatrix/imatrix.cpp of llama.cpp b11549. conversion/quantize/imatrix.py
interprets and merges the numbers; nothing here loads numpy, and GGUF's modules only for a GGUF: `wb inspect` asks this
module about every file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import IMATRIX_NAME
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Layout, Slot
from weighbridge.containers.formats import GGUF_MAGIC
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.cursor import Cursor
from weighbridge.io.source import Source

ImatrixForm = Literal["legacy", "gguf"]

DATASETS: Final = "imatrix.datasets"
CHUNKS: Final = "imatrix.chunk_count"
CHUNK_SIZE: Final = "imatrix.chunk_size"
NEXTN: Final = "imatrix.n_layer_nextn"
SUM2, SUM, COUNTS, STATS = ".in_sum2", ".in_sum", ".counts", ".stats"
# The smallest legacy entry: three numbers, a name of one byte, one value.
_SMALLEST: Final = 4 + 1 + 4 + 4 + 4


class ImatrixRecord(NamedTuple):
    """One entry: byte offsets of its f32 numbers. Legacy ones have `calls` instead of `counts`, and one matrix."""

    name: str
    matrices: int
    values: int  # of all matrices together
    sum2: int
    counts: int | None = None
    inputs: int | None = None  # of in_sum
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Imatrix:
    """A parsed file. `datasets`: the text it was computed on; `chunks`: the number of chunks of `chunk_size` tokens
    (0: unknown)."""

    form: ImatrixForm
    source: Source
    records: tuple[ImatrixRecord, ...]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = 0
    nextn: int = 0
    byte_order: str = "<"


def recognised(source: Source) -> bool:
    """Whether a file is an importance matrix, in either format. Reads only the first bytes of other files."""
    if source.head(4) == GGUF_MAGIC:
        from weighbridge.containers.gguf.recognise import recognise

        hit = recognise(Probe(source))
        return hit is not None and hit.variant == "imatrix"
    try:
        return bool(legacy_names(source, 2)[1])
    except FormatError:
        return False


def legacy_names(source: Source, most: int) -> tuple[int, list[str]]:
    """The number of entries in a legacy file, and the names of the first ones. FormatError for other files."""
    cursor = Cursor(source)
    count = _legacy_count(cursor)
    return count, [_legacy_record(cursor).name for _ in range(min(count, most))]


def parse(source: Source) -> Imatrix:
    """The entries of a file in either format, in file order. FormatError for files that llama.cpp wouldn't load, for
    two entries with one name, and for data after the end of a legacy file."""
    if source.head(4) == GGUF_MAGIC:
        return _parse_gguf(source)
    return parse_legacy(source)


# -- legacy ----------------------------------------------------------------------------------------------------------


def parse_legacy(source: Source) -> Imatrix:
    """The entries of a legacy file, in file order. Raises as `parse`."""
    cursor = Cursor(source)
    count = _legacy_count(cursor)
    records = tuple(_legacy_record(cursor) for _ in range(count))
    seen: set[str] = set()
    for record in records:
        if record.name in seen:
            raise FormatError("two entries of one name", path=source.name, offset=record.sum2, field=record.name)
        seen.add(record.name)
    chunks, dataset = 0, ""
    if cursor.left:
        chunks = cursor.number("i", "number of chunks")
        dataset = _text(cursor, "name of the data set", cursor.left) if cursor.left else ""
    if cursor.left:
        raise FormatError("bytes follow the end", path=source.name, offset=cursor.offset, found=f"{cursor.left} bytes")
    return Imatrix("legacy", source, records, (dataset,) if dataset else (), chunks)


def _legacy_count(cursor: Cursor) -> int:
    count, most = cursor.number("i", "number of entries"), cursor.left // _SMALLEST
    if not 1 <= count <= most:
        raise FormatError(
            "this isn't an importance matrix", path=cursor.source.name, offset=0, field="number of entries",
            expected=f"1 to {most}", found=count,
        )  # fmt: skip
    return count


def _legacy_record(cursor: Cursor) -> ImatrixRecord:
    name = _text(cursor, "name of an entry", IMATRIX_NAME)
    if not name:
        raise FormatError("an entry without a name", path=cursor.source.name, offset=cursor.offset)
    calls, values = cursor.numbers("ii", f"calls and values of {name}")
    if values < 1 or calls < 0:
        raise FormatError(
            "an entry without values", path=cursor.source.name, offset=cursor.offset - 8, field=name,
            expected="calls >= 0, values >= 1", found=f"{calls}, {values}",
        )  # fmt: skip
    at = cursor.offset
    cursor.skip(4 * values, f"values of {name}")
    return ImatrixRecord(name, 1, values, at, calls=calls)


def _text(cursor: Cursor, field: str, most: int) -> str:
    length = cursor.number("i", f"length of the {field}")
    if not 0 <= length <= most:
        raise FormatError(
            "no length", path=cursor.source.name, offset=cursor.offset - 4, field=field,
            expected=f"0 to {most}", found=length,
        )  # fmt: skip
    return cursor.take(length, field).decode("utf-8", "surrogateescape")


# -- GGUF ------------------------------------------------------------------------------------------------------------


def _parse_gguf(source: Source) -> Imatrix:
    from weighbridge.containers.gguf import container as gguf

    index = gguf.parse(source)
    missing = [key for key in (DATASETS, CHUNKS, CHUNK_SIZE) if key not in index.metadata]
    if missing:  # llama-quantize: "missing imatrix metadata"
        raise FormatError(
            "this GGUF isn't an importance matrix", path=source.name, field=missing[0], found="no such key"
        )
    records = tuple(_gguf_records(index.by_name, source))
    if not records:
        raise FormatError("an importance matrix without entries", path=source.name)
    numbers = [index.metadata.get(key, 0) for key in (CHUNKS, CHUNK_SIZE, NEXTN)]
    for key, value in zip((CHUNKS, CHUNK_SIZE, NEXTN), numbers, strict=True):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
            raise FormatError("no u32", path=source.name, field=key, found=str(value)[:80])
    names = index.metadata[DATASETS]
    # The reference ignores other types than an array of strings, too.
    texts = tuple(names) if index.metadata.type(DATASETS) == "arr[str]" else ()  # type: ignore[attr-defined]
    chunks, size, nextn = numbers
    return Imatrix("gguf", source, records, texts, chunks, size, nextn, index.byte_order)


def _gguf_records(entries: Mapping[str, Entry], source: Source) -> Iterator[ImatrixRecord]:
    names = {n.removesuffix(s): None for n in entries for s in (SUM2, COUNTS, SUM) if n.endswith(s)}
    for name in names:
        sum2, counts, total = (entries.get(name + suffix) for suffix in (SUM2, COUNTS, SUM))
        if sum2 is None or counts is None:
            raise FormatError("sums without counts, or counts without sums", path=source.name, field=name)
        for entry in (sum2, counts, *([total] if total else ())):
            if entry.dtype != F32:
                raise FormatError(
                    "numbers of another type", path=source.name, field=entry.name, expected="F32", found=entry.dtype
                )
        values, matrices = sum2.spec.elements, counts.spec.elements
        if not matrices or not values or values % matrices or (total and total.spec.elements != values):
            raise FormatError(
                "sums and counts don't go together", path=source.name, field=name, found=f"{values}, {matrices}"
            )
        yield ImatrixRecord(name, matrices, values, sum2.offset, counts.offset, total.offset if total else None)


# -- writing ---------------------------------------------------------------------------------------------------------


class ImatrixPart(NamedTuple):
    """An entry to write: matrices of this many columns. `calls`: for the legacy format; `inputs`: for GGUF, with
    in_sum."""

    name: str
    matrices: int
    columns: int
    calls: int = 0
    inputs: bool = False


def layout(
    parts: Sequence[ImatrixPart],
    form: ImatrixForm,
    *,
    datasets: Sequence[str] = (),
    chunks: int = 0,
    chunk_size: int = 0,
    nextn: int = 0,
) -> Layout:
    """A file of these entries, in the given order (llama-imatrix sorts them by name). Slots have GGUF's tensor
    names, `NAME.in_sum2` and so on; a legacy file has no others, and room for one data set, the last."""
    if not parts:
        raise UsageError("an importance matrix has at least one entry")
    if form == "legacy":
        return _legacy_layout(parts, chunks, datasets[-1] if datasets else "")
    from weighbridge.containers.gguf import container as gguf

    metadata = {
        "general.type": gguf.KV("str", "imatrix"),
        DATASETS: gguf.KV("arr[str]", list(datasets)),
        CHUNKS: gguf.KV("u32", chunks),
        CHUNK_SIZE: gguf.KV("u32", chunk_size),
        **({NEXTN: gguf.KV("u32", nextn)} if nextn else {}),
    }
    tensors: list[tuple[str, Spec]] = []
    for part in parts:
        matrix = Spec((part.matrices, part.columns), F32)
        tensors += [(part.name + SUM2, matrix), (part.name + COUNTS, Spec((part.matrices, 1), F32))]
        tensors += [(part.name + SUM, matrix)] if part.inputs else []
    return gguf.layout(tensors, metadata)


def _legacy_layout(parts: Sequence[ImatrixPart], chunks: int, dataset: str) -> Layout:
    pieces, slots, at = [(0, struct.pack("<i", len(parts)))], [], 4
    for part in parts:
        name = part.name.encode("utf-8", "surrogateescape")
        if not 0 < len(name) <= IMATRIX_NAME:
            raise UsageError(f"an entry's name has 1 to {IMATRIX_NAME} bytes, {part.name!r} has {len(name)}")
        head = struct.pack(f"<i{len(name)}sii", len(name), name, part.calls, part.matrices * part.columns)
        pieces.append((at, head))
        slots.append(Slot(part.name + SUM2, Spec((part.matrices, part.columns), F32), at + len(head)))
        at += len(head) + slots[-1].spec.nbytes
    text = dataset.encode("utf-8", "surrogateescape")
    pieces.append((at, struct.pack("<ii", chunks, len(text)) + text))
    return Layout("imatrix", tuple(pieces), tuple(slots), at + 8 + len(text))
