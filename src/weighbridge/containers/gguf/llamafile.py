"""llamafiles: a program followed by a zip with a stored GGUF, which is read in place.

Reference: llamafile's own loader, which maps the member, so it is never compressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.base import Finding, Index, Region
from weighbridge.containers.gguf import container
from weighbridge.containers.gguf import regions as gguf_regions
from weighbridge.containers.sniff.archive import executable
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.source import Source, Window


class EmbeddedGguf(Window):
    """The GGUF inside a llamafile. Closing it closes the file."""

    def close(self) -> None:
        self.parent.close()


def embedded(source: Source) -> EmbeddedGguf | None:
    """The GGUF inside a llamafile; None if it has none. UnsupportedError if it has several."""
    hit = executable(Probe(source))
    inside = hit.detail.get("gguf") if hit and hit.format == "llamafile" else None
    if hit is None or inside is None:
        return None
    if hit.detail["members"] > 1:
        raise UnsupportedError(
            f"{source.name} holds {hit.detail['members']} GGUF files",
            hint=f"unzip {source.name} '*.gguf' takes them out",
        )
    return EmbeddedGguf(source, inside["offset"], inside["size"])


def _required(source: Source) -> EmbeddedGguf:
    inside = embedded(source)
    if inside is None:
        raise FormatError("no llamafile: no zip at its end stores a GGUF", path=source.name)
    return inside


def parse(source: Source) -> Index:
    """The index of the GGUF inside, whose source is that part of the file."""
    return container.parse(_required(source))


def examine(source: Source) -> tuple[Index, tuple[Finding, ...]]:
    """As `parse`, for the readable part, with all problems of the GGUF."""
    return container.examine(_required(source))


def regions(source: Source) -> Iterator[Region]:
    """The program, the GGUF's own regions, the zip's records after it."""
    try:
        inside = embedded(source)
    except UnsupportedError:
        inside = None
    if inside is None:
        yield from [Region(0, source.size, "unknown")] if source.size else []
        return
    yield Region(0, inside.offset, "header", "the program, and the zip's members before the model")
    for region in gguf_regions.regions(inside):
        yield replace(region, start=region.start + inside.offset, end=region.end + inside.offset)
    if inside.offset + inside.size < source.size:
        yield Region(inside.offset + inside.size, source.size, "header", "the zip's other members and its directory")
