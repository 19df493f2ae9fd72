"""What is this file? By content only, never by name: a table of recognisers, tried in order, each with its evidence.

    sniff(source) -> Identity     any bytes give an answer ("unknown" is one), in bounded time and memory

Order is from the surest sign to the weakest: emptiness, magics at fixed places, structures, text, then formats without
a magic. A recogniser reads the first 64 KiB, at a zip's tail, and at what these point to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import ZERO_RUN
from weighbridge.containers import BUILT_IN, plugged
from weighbridge.containers.formats import GGUF_MAGIC
from weighbridge.containers.sniff import archive as sniff_archive
from weighbridge.containers.sniff import text as sniff_text
from weighbridge.containers.sniff.probe import Hit, Identity, Probe
from weighbridge.io.source import BytesSource, Source

__all__ = ["Identity", "sniff"]


_MAGICS: Final = tuple((f.name, magic) for f in BUILT_IN.values() for magic in f.magics)


def _magic(probe: Probe) -> Hit | None:
    for name, magic in _MAGICS:
        if probe.at(magic.offset, len(magic.sign)) == magic.sign:
            return _hdf5(probe) if name == "hdf5" else Hit(name, magic.variant, (magic.words,))
    return None


def _hdf5(probe: Probe) -> Hit:
    signs = [s for s in (b"keras_version", b"model_weights", b"layer_names", b"model_config") if s in probe.head]
    end = _end_of_hdf5(probe)
    damage = (f"truncated: has {probe.size:,} of {end:,} bytes",) if end > probe.size else ()
    if not signs:
        return Hit("hdf5", evidence=("HDF5 signature",), damage=damage)
    return Hit("hdf5", "keras", ("HDF5 signature", f"attribute {signs[0].decode()} (Keras)"), damage=damage)


# Version of an HDF5 superblock -> where the size of offsets and the end-of-file address stand (File Format
# Specification 3.0, II.A).
_SUPERBLOCKS: Final = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}


def _end_of_hdf5(probe: Probe) -> int:
    """The size that an HDF5 file declares; 0 if unknown."""
    width, end = _SUPERBLOCKS.get(probe.number(8, "B") or 0, (0, 0))
    return (probe.number(end, "<Q") or 0) if probe.number(width, "B") == 8 else 0


def _empty(probe: Probe) -> Hit | None:
    if probe.size == 0:
        return Hit("empty", evidence=("0 bytes",), damage=("the file is empty",))
    if probe.head.strip(b"\0"):
        return None
    if not probe.tail.strip(b"\0"):
        return Hit("zeros", evidence=("first and last bytes are all zero",), damage=("it is filled with zeros",))
    zeros = f"the first {len(probe.head):,} bytes are zero"
    return Hit(
        "unknown", evidence=(zeros,), confidence="guess", damage=(f"{zeros}: the head of a download is missing",)
    )


def _compressed(probe: Probe) -> Hit | None:
    found = sniff_archive.compressed(probe)
    if found is None:
        return None
    name, inside = found
    if not inside or probe.depth:
        return Hit(name, evidence=(f"{name} signature",))
    inner = _recognise(Probe(BytesSource(inside), depth=1))
    if inner.format == "nemo":
        return Hit("nemo", name, (f"{name} signature", *inner.evidence))
    return Hit(
        name,
        f"{inner.format}-inside",
        (f"{name} signature", f"inside: {BUILT_IN[inner.format].title}"),
        detail={"inside": inner.format},
    )


# The parsers of these are imported when a file may be theirs: the start of a program that recognises one file counts.


def _gguf(probe: Probe) -> Hit | None:
    if probe.head[:4] != GGUF_MAGIC:
        return None
    from weighbridge.containers.gguf.recognise import recognise

    return recognise(probe)


def _ggml(probe: Probe) -> Hit | None:
    if probe.head[2:4] != b"gg":  # common to all its magics
        return None
    from weighbridge.containers.ggml.recognise import recognise

    return recognise(probe)


def _safetensors(probe: Probe) -> Hit | None:
    if probe.head[8:].lstrip()[:1] != b"{":
        return None
    from weighbridge.containers.safetensors.recognise import recognise

    return recognise(probe)


def _imatrix_dat(probe: Probe) -> Hit | None:
    if not 1 <= (probe.number(0, "<i") or 0) <= 100_000:  # entries
        return None
    from weighbridge.containers.ggml.recognise import imatrix_dat

    return imatrix_dat(probe)


def _pickled(probe: Probe) -> Hit | None:
    from weighbridge.containers.sniff.binary import pickled

    return pickled(probe)


def _protobuf(probe: Probe) -> Hit | None:
    from weighbridge.containers.sniff.binary import protobuf

    return protobuf(probe)


Recogniser = Callable[[Probe], Hit | None]

RECOGNISERS: Final[tuple[Recogniser, ...]] = (
    _empty,
    _gguf,
    _ggml,
    sniff_archive.archive,
    _magic,
    _compressed,
    sniff_archive.executable,
    _safetensors,
    sniff_archive.tar,
    sniff_text.text,
    sniff_text.json,
    _pickled,
    sniff_text.plain,
    _protobuf,
    _imatrix_dat,
    sniff_archive.prefixed_zip,
)


def _recognise(probe: Probe) -> Hit:
    for recogniser in RECOGNISERS:
        try:
            hit = recogniser(probe)
        except FormatError as error:  # the file shrank while it was read
            return Hit("unknown", evidence=(error.reason,), confidence="guess", damage=(error.reason,))
        if hit is not None:
            return hit
    return Hit("unknown", evidence=(f"first bytes {probe.head[:16].hex(' ')}",), confidence="guess")


def _zero_tail(probe: Probe) -> tuple[str, ...]:
    """Model data rarely ends in 64 KiB of zeros; a download that reserved its space and stopped does."""
    if probe.size < 2 * ZERO_RUN or probe.at(probe.size - ZERO_RUN, ZERO_RUN).strip(b"\0"):
        return ()
    return (f"its last {ZERO_RUN:,} bytes are all zero",)


def sniff(source: Source) -> Identity:
    """The format of `source`, by its bytes."""
    probe = Probe(source)
    hit = _recognise(probe)
    if hit.format == "unknown":
        hit = _plugged(probe) or hit
    detail: dict[str, Any] = dict(hit.detail)
    format = BUILT_IN.get(hit.format) or plugged()[hit.format]
    damage = hit.damage or (_zero_tail(probe) if format.dense_end else ())
    return Identity(
        hit.format, hit.variant, hit.confidence, hit.evidence, detail, readable=format.readable, title=format.title,
        damage=damage, advice=format.advice,
    )  # fmt: skip


def _plugged(probe: Probe) -> Hit | None:
    """The answer of the first plug-in that recognises the file."""
    return next((hit for f in plugged().values() if (hit := f.recognise(probe))), None)
