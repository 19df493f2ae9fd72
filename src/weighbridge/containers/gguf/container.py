"""GGUF, llama.cpp's one-file format: typed key-values, a tensor directory, aligned tensor data.

Reads versions 1 to 3, both byte orders, any alignment, GGUF inside another file (hand in a window); writes version 3,
little-endian. What the specification allows is read, also where llama.cpp would refuse it, and then with a finding that
says so. What can't be read without guessing is a FormatError; `level="lenient"` gives an index of a damaged file all
the same, with a finding for each thing that is wrong, as long as it begins like a GGUF.

    gguf_meta     values, types, lazy arrays          gguf_write    header and layout of a new file
    gguf_read     the walk over a header              gguf_split    sets of shards
    gguf_rules    every rule, its severity, llama.cpp's verdict
    gguf_checks   placement of the data; what verify asks beyond parsing
    gguf_regions  every byte's meaning
"""

from __future__ import annotations

from typing import Final, Literal

from weighbridge.base.spec import Shape
from weighbridge.containers import BUILT_IN
from weighbridge.containers.base import Entry, Finding, Index
from weighbridge.containers.gguf.checks import check, check_keys, placement
from weighbridge.containers.gguf.read import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufHeader, walk
from weighbridge.containers.gguf.regions import regions
from weighbridge.containers.gguf.rules import RULES, Collector, GGUFError, refused_at
from weighbridge.containers.gguf.split import merge, parse_shard_name, shard_name, split_layouts
from weighbridge.containers.gguf.values import KV, LazyArray, Metadata, infer
from weighbridge.containers.gguf.write import header_bytes, header_size, layout
from weighbridge.io.source import Source

NAME: Final = "gguf"
SUFFIX: Final = BUILT_IN[NAME].suffix

__all__ = [
    "ALIGNMENT_KEY",
    "DEFAULT_ALIGNMENT",
    "KV",
    "NAME",
    "RULES",
    "SUFFIX",
    "GGUFError",
    "LazyArray",
    "Metadata",
    "check",
    "check_keys",
    "examine",
    "header_bytes",
    "header_size",
    "infer",
    "layout",
    "merge",
    "parse",
    "parse_shard_name",
    "refused_at",
    "regions",
    "shard_name",
    "split_layouts",
]


def parse(source: Source, *, level: Literal["spec", "lenient"] = "spec") -> Index:
    """The index of a GGUF; only its header is read. Shapes are in C order: a GGUF's dims reversed.

    "spec": FormatError (a `GGUFError` with its rule) for what can't be read, such as a file that ends too early.
    "lenient": only for what is no GGUF at all; everything else becomes a finding, and tensors whose place or size is
    unknown are left out.
    """
    notes = Collector(source.name, strict=level == "spec")
    header = walk(source, notes)
    placement(header, notes)
    return Index(
        format=NAME,
        files=(source,),
        entries=_entries(header),
        metadata=header.metadata,
        data_start=(header.data_start,),
        alignment=header.alignment,
        byte_order=header.order,
        version=header.version,
        findings=notes.result(),
    )


def examine(source: Source) -> tuple[Index, tuple[Finding, ...]]:
    """The readable part of a GGUF's index, and all problems of the file."""
    index = parse(source, level="lenient")
    return index, check(index, deep=True)


def _entries(header: GgufHeader) -> tuple[Entry, ...]:
    seen: set[str] = set()
    entries = []
    for info in header.infos:
        if info.dtype is not None and info.name not in seen:
            shape: Shape = info.dims[::-1]
            entries.append(Entry(info.name, info.dtype, shape, header.data_start + info.offset, info.nbytes))
            seen.add(info.name)
    return tuple(entries)
