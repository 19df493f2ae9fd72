"""ZipNN's files: any file, most often a Safetensors file, in one or more streams (`stream.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.containers import titled
from weighbridge.containers.base import Region
from weighbridge.containers.enclosed import EnclosingFormat
from weighbridge.containers.formats import ENCLOSING, ZIPNN
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.containers.zipnn.stream import DecodedStreams, read_stream, read_streams
from weighbridge.io.source import Source


def original(source: Source) -> DecodedStreams:
    """The original of a file of ZipNN."""
    return DecodedStreams(source, read_streams(source))


_FORMAT: Final = EnclosingFormat(ENCLOSING, original, "wb unpack FILE DST decodes it")
parse, examine, headers = _FORMAT.parse, _FORMAT.examine, _FORMAT.headers


def regions(source: Source) -> Iterator[Region]:
    """The streams' headers, tables and planes."""
    at = 0
    try:
        for number, stream in enumerate(read_streams(source)):
            yield Region(stream.at, stream.tables, "header", f"stream {number}", f"{stream.size} bytes")
            yield Region(stream.tables, stream.data, "offset", f"tables {number}")
            at = stream.at + stream.packed
            yield Region(stream.data, at, "tensor", f"planes {number}")
    except (FormatError, UnsupportedError):
        if at < source.size:
            yield Region(at, source.size, "unknown")


def recognise(probe: Probe) -> Hit | None:
    """A file with ZipNN's header, and the format of its original."""
    evidence: tuple[str, ...] = ("ZN and a version (ZipNN)",)
    try:
        stream = read_stream(probe.source, 0)
    except FormatError as error:
        likely = stream_like(probe.at(0, 32))
        return Hit(ZIPNN, evidence=evidence, confidence="likely", damage=(error.reason,)) if likely else None
    except UnsupportedError as error:
        return Hit(ZIPNN, evidence=(*evidence, error.message))
    detail = {"type": stream.kind.type, "bytes": stream.size}
    try:
        inside = original(probe.source)
        identity = sniff(inside)
    except WeighbridgeError as error:
        reason = error.reason if isinstance(error, FormatError) else error.message
        return Hit(ZIPNN, evidence=evidence, detail=detail, damage=(reason,) if isinstance(error, FormatError) else ())
    detail |= {"inside": identity.format, "bytes": inside.size}
    return Hit(ZIPNN, identity.format, (*evidence, f"encoded: {titled(identity.format)}"), detail=detail,
               damage=identity.damage)  # fmt: skip


def stream_like(head: bytes) -> bool:
    """Whether 32 bytes look like a stream's header, whatever is wrong with it: three bytes are a weak sign."""
    return len(head) == 32 and head[7] <= 4 and head[8] in (1, 2, 3, 4) and 10 <= head[14] <= 24
