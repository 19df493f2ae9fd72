"""GGUF, llama.cpp's one-file format: typed key-values, a tensor directory, aligned tensor data.

Reads versions 1 to 3, both byte orders, any alignment, and GGUF inside another file (pass a window). Writes version 3,
little-endian. Everything that the specification allows is read, with a finding if llama.cpp would refuse it. A part
that can't be read without guessing is a FormatError; with `level="lenient"` it becomes a finding, as long as the file
begins like a GGUF.

    values      typed values, lazy arrays               write    header and layout of a new file
    read        the walk over a header                  split    sets of shards
    rules       every rule, its severity, llama.cpp's verdict
    checks      placement of the data; further checks for verify
    regions     every byte's meaning
"""

from __future__ import annotations

from typing import Final, Literal

from weighbridge.containers import BUILT_IN
from weighbridge.containers.base import Entry, Finding, Index
from weighbridge.containers.gguf.checks import check, check_keys, placement
from weighbridge.containers.gguf.read import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, walk
from weighbridge.containers.gguf.regions import regions
from weighbridge.containers.gguf.rules import RULES, Collector, GGUFError, refused_at
from weighbridge.containers.gguf.split import merge, parse_shard_name, shard_name, split_layouts
from weighbridge.containers.gguf.values import KV, LazyArray, Metadata, infer
from weighbridge.containers.gguf.write import header_bytes, header_size, layout
from weighbridge.io.source import Source

NAME: Final = "gguf"
SUFFIX: Final = BUILT_IN[NAME].suffix

__all__ = [
    "ALIGNMENT_KEY", "DEFAULT_ALIGNMENT", "KV", "NAME", "RULES", "SUFFIX", "GGUFError", "LazyArray", "Metadata",
    "check", "check_keys", "examine", "header_bytes", "header_size", "infer", "layout", "merge", "parse",
    "parse_shard_name", "refused_at", "regions", "shard_name", "split_layouts",
]  # fmt: skip


def parse(source: Source, *, level: Literal["spec", "lenient"] = "spec") -> Index:
    """The index of a GGUF; only its header is read. Shapes are in C order: a GGUF's dims reversed.

    "spec": FormatError (a `GGUFError` with its rule) if the header can't be read, for example if it is truncated.
    "lenient": only if the file isn't a GGUF; every other problem becomes a finding, and tensors with an unknown place
    or size are left out.
    """
    notes = Collector(source.name, strict=level == "spec")
    header = walk(source, notes)
    placement(header, notes)
    entries: dict[str, Entry] = {}
    for info in header.infos:
        if info.dtype is not None and info.name not in entries:
            place = header.data_start + info.offset
            entries[info.name] = Entry(info.name, info.dtype, info.dims[::-1], place, info.nbytes)
    return Index(
        format=NAME,
        files=(source,),
        entries=tuple(entries.values()),
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
