"""The format of packed files: the functions of every format, which pass the original to its own format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.containers import BUILT_IN, find
from weighbridge.containers.base import Region
from weighbridge.containers.enclosed import EnclosingFormat
from weighbridge.containers.formats import PACKED
from weighbridge.containers.opening import format_of
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.containers.wbpack.archive import read_archive
from weighbridge.containers.wbpack.source import OriginalSource
from weighbridge.io.source import Source


def original(source: Source) -> OriginalSource:
    """The original of a packed file."""
    return OriginalSource(source, read_archive(source))


_FORMAT: Final = EnclosingFormat(frozenset({PACKED}), original, "wb unpack FILE DST")
parse, examine, headers = _FORMAT.parse, _FORMAT.examine, _FORMAT.headers


def regions(source: Source) -> Iterator[Region]:
    """The regions of the packed file: its header, and the packed bytes of each tensor."""
    yield from safetensors.regions(source)


def recognise(probe: Probe) -> Hit:
    """A file with the first bytes of a packed file, and the format of its original."""
    evidence: tuple[str, ...] = ("the header of a packed file",)
    try:
        inside = original(probe.source)
        archive = inside.archive
        try:
            identity = sniff(inside)
            name, damage = identity.format, identity.damage
        except UnsupportedError:  # the base of a delta is missing: only the first bytes are there
            name, damage = format_of(inside).name, ()
    except WeighbridgeError as error:
        reason = error.reason if isinstance(error, FormatError) else error.message
        return Hit(PACKED, evidence=evidence, confidence="likely", damage=(reason,))
    evidence += (f"packed: {(find(name) or BUILT_IN['unknown']).title}",)
    detail = {"inside": name, "bytes": archive.size} | ({"name": archive.name} if archive.name else {})
    if archive.bases:
        evidence += (f"a delta to {', '.join(base.name for base in archive.bases)}",)
        detail["bases"] = [base.name for base in archive.bases]
    return Hit(PACKED, name, evidence, detail=detail, damage=damage)
