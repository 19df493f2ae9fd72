"""A toy format: a magic, the length of a JSON header, the header, the data. One file and one entry point."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from weighbridge.base.dtypes import dtype
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Index, Layout, Region, Slot
from weighbridge.containers.format import Format, Magic
from weighbridge.io.cursor import Cursor
from weighbridge.io.source import Source

FORMAT = Format(
    "tnsr", "Toy tensors", (".tnsr",), magics=(Magic(0, b"TNSR"),), module=__name__, target="tnsr",
    dtypes=frozenset({"F64", "F32", "F16", "BF16", "I64", "I8", "U8"}),
)  # fmt: skip
START = 12  # of the header, after the magic and the header's length


def parse(source: Source) -> Index:
    cursor = Cursor(source)
    if cursor.take(4, "magic") != b"TNSR":
        raise FormatError("no TNSR file", path=source.name, offset=0)
    raw = cursor.take(cursor.number("Q", "header length"), "header")
    try:
        header = json.loads(raw)
        entries = [_entry(name, cursor.offset, *row) for name, row in header["tensors"].items()]
        metadata = {key: str(value) for key, value in header["metadata"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"bad header: {error}", path=source.name, offset=START) from None
    end = cursor.offset
    for entry in entries:
        if entry.offset != end:
            raise FormatError("tensors leave a gap or overlap", path=source.name, field=entry.name)
        end += entry.nbytes
    if end != source.size:
        raise FormatError("the data has another size", path=source.name, offset=end, found=source.size)
    return Index("tnsr", (source,), tuple(entries), metadata, (cursor.offset,))


def _entry(name: str, start: int, kind: str, shape: list[int], offset: int) -> Entry:
    if len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 40 for n in (*shape, offset)):
        raise ValueError(f"{name!r} has an impossible shape or offset")
    try:
        spec = Spec(tuple(shape), dtype(kind))
        return Entry(name, spec.dtype, spec.shape, start + offset, spec.nbytes)
    except (UsageError, FormatError) as error:
        raise ValueError(error.message) from None


def regions(source: Source) -> list[Region]:
    try:
        index = parse(source)
    except FormatError:
        return [Region(0, source.size, "unknown")] if source.size else []
    head = [Region(0, 4, "magic"), Region(4, START, "length"), Region(START, index.data_start[0], "header")]
    return [*head, *(Region(e.offset, e.offset + e.nbytes, "tensor", e.name) for e in index if e.nbytes)]


def layout(tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any]) -> Layout:
    rows: dict[str, Any] = {}
    at = 0
    for name, spec in tensors:
        rows[name] = (spec.dtype.name, spec.shape, at)
        at += spec.nbytes
    header = json.dumps({"tensors": rows, "metadata": {k: str(v) for k, v in metadata.items()}}).encode()
    start = START + len(header)
    slots = tuple(Slot(name, spec, start + rows[name][2]) for name, spec in tensors)
    return Layout("tnsr", ((0, b"TNSR" + len(header).to_bytes(8, "little") + header),), slots, start + at)
