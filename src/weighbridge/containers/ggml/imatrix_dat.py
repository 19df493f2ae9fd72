"""llama.cpp's older importance matrices (.dat) as a format: the sums of each entry are a tensor, `NAME.in_sum2` as in a
GGUF. Chunks, data set and the calls of each entry are metadata. `imatrix.py` describes the bytes."""

from __future__ import annotations

from typing import Final

from weighbridge.base.dtypes import F32
from weighbridge.containers.base import Entry, Index, Region
from weighbridge.containers.formats import IMATRIX_DAT
from weighbridge.containers.frameworks.tensor_list import framed
from weighbridge.containers.ggml.imatrix import CHUNKS, DATASETS, SUM2, parse_legacy
from weighbridge.io.source import Source

CALLS: Final = "imatrix.calls"


def parse(source: Source) -> Index:
    """The sums of each entry, in file order. FormatError for files that llama.cpp wouldn't load."""
    matrix = parse_legacy(source)
    entries = tuple(Entry(r.name + SUM2, F32, (r.values,), r.sum2, F32.size * r.values) for r in matrix.records)
    calls = {record.name: record.calls for record in matrix.records}
    metadata = {DATASETS: list(matrix.datasets), CHUNKS: matrix.chunks, CALLS: calls}
    return Index(IMATRIX_DAT, (source,), entries, metadata)


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "entry")
