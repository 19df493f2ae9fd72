"""Chooses the format that reads a file."""

from __future__ import annotations

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers import BUILT_IN, Format, by_suffix, reader
from weighbridge.containers.base import Index
from weighbridge.containers.formats import GGUF_MAGIC, PACKED_SIGN
from weighbridge.io.source import Source


def format_of(source: Source) -> Format:
    """The format that reads `source`, by its bytes. UnsupportedError names the actual format and the next step. The
    two most common formats are recognised by their first bytes; all others by `sniff`."""
    head = source.head(8 + len(PACKED_SIGN))
    if head[:4] == GGUF_MAGIC:
        return BUILT_IN["gguf"]
    if (
        len(head) > 8
        and head[8:9] in b"{ "
        and head[8:] != PACKED_SIGN
        and int.from_bytes(head[:8], "little") <= source.size - 8
    ):
        return BUILT_IN["safetensors"]
    from weighbridge.containers.sniff.detect import sniff

    identity = sniff(source)
    named = by_suffix(f".{source.name.rpartition('.')[2]}") if identity.format == "unknown" else None
    if named:
        return named  # its parser reports the place of the problem
    if not identity.readable:
        raise UnsupportedError(f"{source.name}: {identity.title}, which this version doesn't read",
                               hint=identity.advice)  # fmt: skip
    return reader(identity.format)


def parse(source: Source) -> Index:
    """The tensors and metadata of a file of any format that is read."""
    return format_of(source).parse(source)
