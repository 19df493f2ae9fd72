"""Scans compressed streams and tar archives, with everything in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.base.words import plural
from weighbridge.containers.archive import tar as tars
from weighbridge.containers.opening import format_of
from weighbridge.io.decompress import CODECS, UnpackSource, codec_of
from weighbridge.reports.scan.model import Part, Piece, escape


def stream(part: Part) -> Iterator[Piece]:
    """Scans a file that is one compressed stream."""
    source = part.source
    codec = codec_of(source.head(16))
    if codec is None:
        return
    try:
        CODECS[codec].decoder()
    except UnsupportedError as error:
        consequence = f"joblib and others unpack it on loading: {error.hint}, or unpack it and scan that"
        yield part.finding("stream/not-unpacked", "the compressed data isn't scanned", consequence=consequence)
        return
    inner = UnpackSource(source, codec, f"{source.name} ({codec})", part.budget.unpack)
    if not inner.size and inner.trouble and codec == "zlib":
        return  # two bytes are a weak sign: the file is something else
    yield part.inside(f"({codec})", inner)
    if inner.trouble:
        message = f"the {codec} stream is damaged after {plural(inner.size, 'unpacked byte')}: {inner.trouble}"
        yield part.finding("stream/damaged", message, consequence="Loaders use the data before the damage.")
    left = source.size - inner.trailing
    tail = source.read(inner.trailing, min(left, MIB))
    if tail.strip(b"\0") or len(tail) == MIB:
        message = f"{plural(left, 'byte')} after the {codec} stream"
        yield part.finding("stream/trailing-bytes", message, at=inner.trailing)
        yield part.inside("(trailing bytes)", source.window(inner.trailing, left))


def enclosed(part: Part) -> Iterator[Piece]:
    """Scans the original of a packed file, or of one of ZipNN."""
    part.budget.spend(members=1)
    inside = format_of(part.source).functions.original(part.source)
    yield part.inside(inside.title or "(original)", inside)


def seven_zip(part: Part) -> Iterator[Piece]:
    """Scans every file of a 7-Zip archive. Raises UnsupportedError, which the scan reports, without py7zr."""
    from weighbridge.containers.archive.seven_zip import SevenZip  # late: few archives are 7-Zip's

    archive = SevenZip(part.source)
    for name, size in archive.files.items():
        part.budget.spend(members=1)
        part.budget.unpack(size)
        if leads_out(name):
            yield part.finding("tar/outside", f"{escape(name)} leads out of its folder",
                               consequence="Unpacking it writes or reads a file elsewhere on the system.")  # fmt: skip
        with archive.open(name) as inner:
            yield part.inside(name, inner)
    for row in archive.left_out:
        yield part.skipped("member", row)


# ---- tar ------------------------------------------------------------------------------------------------------


def tar(part: Part) -> Iterator[Piece]:
    """Scans every file of a tar archive, and reports names that lead out of its folder."""
    source = part.source
    if not tars.begins(source):
        return
    names: set[str] = set()
    end = 0
    for member in tars.members(source):
        part.budget.spend(members=1)
        end = member.start + -(-member.size // tars.BLOCK) * tars.BLOCK
        yield from _scan_member(part, member, names)
    for at in range(end, source.size, MIB):
        piece = source.read(at, min(MIB, source.size - at))
        part.budget.spend(len(piece))
        if kept := len(piece.lstrip(b"\0")):
            at += (len(piece) - kept) // tars.BLOCK * tars.BLOCK
            message = f"non-zero bytes after the end of the archive at byte {end}"
            yield part.finding("tar/trailing-bytes", message, at=at)
            yield part.inside("(trailing bytes)", source.window(at, source.size - at))
            return


def _scan_member(part: Part, m: tars.TarMember, names: set[str]) -> Iterator[Piece]:
    source, name = part.source, m.name.removeprefix("./")
    if not tars.is_canonical(source.read(m.at, tars.BLOCK)):
        yield part.finding("tar/odd-number", f"the header of {m.name!r} has odd numbers", at=m.at)
    if leads_out(m.name) or (m.link and link_leads_out(m.name if m.kind == "symbolic link" else "", m.link)):
        message = f"{m.kind} {m.name!r}" + (f" leads to {m.link!r}" if m.link else " leads out of its folder")
        yield part.finding("tar/outside", message, at=m.at,
                           consequence="Unpacking it writes or reads a file elsewhere on the system.")  # fmt: skip
    if name in names and m.kind != "folder":
        yield part.finding("tar/repeated-name", f"a second member is called {m.name!r}", at=m.at)
    names.add(name)
    if m.kind == "file":
        if m.size:
            yield part.inside(m.name, source.window(m.start, m.size, f"{source.name}::{escape(m.name)}"))
    elif m.kind == "sparse file":
        message = f"{m.name!r} is a sparse file: its stored bytes are scanned, but not placed"
        yield part.finding("tar/sparse", message, at=m.at)
        yield part.inside(m.name, source.window(m.start, m.size))
    elif m.kind != "folder" and not m.link:
        yield part.finding("tar/special-member", f"{m.name!r} is a {m.kind}", at=m.at)


_ROOTED: Final = re.compile(r"[/\\]|[A-Za-z]:")


def leads_out(name: str) -> bool:
    """Whether a path in an archive leaves the folder that the archive is unpacked to, on any system."""
    depth = 0
    for step in re.split(r"[/\\]", name):
        depth += -1 if step == ".." else step not in ("", ".")
        if depth < 0:
            return True
    return bool(_ROOTED.match(name))


def link_leads_out(name: str, target: str) -> bool:
    """Whether the symbolic link `name` to `target`, which is relative to the link's folder, leaves the archive's
    folder. `name` is empty for a hard link, whose target is relative to the archive's root."""
    folder = name.rpartition("/")[0]
    return leads_out(f"{folder}/{target}" if folder and not target.startswith("/") else target)
