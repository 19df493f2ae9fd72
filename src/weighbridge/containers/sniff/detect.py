"""Recognises a file by its content, never by its name.

    sniff(source) -> Identity     any bytes give an answer ("unknown" is one), in bounded time and memory

Formats declare their recognisers (`containers/format.py`), which are asked in the order of their ranks, those of
plug-ins among the built-in ones. A recogniser reads the first 64 KiB, a zip's tail, and the places that these point to.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import ZERO_RUN
from weighbridge.containers import BUILT_IN, Format, find, plugged
from weighbridge.containers.format import Recogniser
from weighbridge.containers.formats import TABLE_MAGIC
from weighbridge.containers.sniff.archive import first_bytes_inside
from weighbridge.containers.sniff.probe import Hit, Identity, Probe
from weighbridge.io.source import BytesSource, Source

__all__ = ["Identity", "sniff"]

# Formats after which the error of a failed plug-in is raised: the file may be its own.
_VAGUE: Final = ("unknown", "zip")


def sniff(source: Source) -> Identity:
    """The format of `source`, by its bytes. UnsupportedError if a plug-in fails and no other format is recognised."""
    probe = Probe(source)
    hit, failure = _recognise(probe)
    format = find(hit.format) or BUILT_IN["unknown"]
    if failure is not None and hit.format in _VAGUE:
        raise failure
    evidence = hit.evidence if failure is None or format.readable else (*hit.evidence, failure.message)
    detail: dict[str, Any] = dict(hit.detail)
    damage = hit.damage
    # Model data rarely ends in 64 KiB of zeros; a download that reserved its space and stopped does.
    may_end_early = format.dense_end and not damage and probe.size >= 2 * ZERO_RUN
    if may_end_early and not probe.at(probe.size - ZERO_RUN, ZERO_RUN).strip(b"\0"):
        damage = (f"its last {ZERO_RUN:,} bytes are all zero",)
    return Identity(
        hit.format, hit.variant, hit.confidence, evidence, detail, readable=format.readable, title=format.title,
        damage=damage, advice=format.advice,
    )  # fmt: skip


class _Question(NamedTuple):
    """A recogniser, and a format that declares it."""

    format: Format
    recogniser: Recogniser


def _recognise(probe: Probe) -> tuple[Hit, UnsupportedError | None]:
    """The first hit, and the error of a plug-in that failed before it."""
    failure: UnsupportedError | None = None
    try:
        formats = tuple(plugged().values())
    except UnsupportedError as error:
        formats, failure = (), error
    for question in _questions(formats):
        try:
            hit = question.format.ask(question.recogniser, probe)
        except FormatError as error:  # the file shrank while it was read
            return Hit("unknown", evidence=(error.reason,), confidence="guess", damage=(error.reason,)), failure
        except UnsupportedError as error:
            if not question.format.plugged:
                raise
            failure = failure or error
            continue
        if hit is not None:
            return hit, failure
    return Hit("unknown", evidence=(f"first bytes {probe.head[:16].hex(' ')}",), confidence="guess"), failure


@cache
def _questions(plug_ins: tuple[Format, ...]) -> tuple[_Question, ...]:
    """All recognisers, once each, by their ranks; those of plug-ins first within a rank."""
    declared = [_Question(f, r) for f in (*plug_ins, *BUILT_IN.values()) for r in f.questions()]
    unique = {q.recogniser.function or q.format.name: q for q in reversed(declared)}
    return tuple(sorted(reversed(unique.values()), key=lambda question: question.recogniser.rank))


# ---- small recognisers, and those whose modules are imported only for files that may have their format --------------


def empty(probe: Probe) -> Hit | None:
    """A file without bytes, or one that begins with 64 KiB of zeros."""
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


# Version of an HDF5 superblock -> offsets of its "size of offsets" and end-of-file address (File Format Specification
# 3.0, II.A).
_SUPERBLOCKS: Final = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}


def hdf5(probe: Probe) -> Hit:
    """A file with the HDF5 signature; Keras by the names of its attributes."""
    signs = [s for s in (b"keras_version", b"model_weights", b"layer_names", b"model_config") if s in probe.head]
    width, place = _SUPERBLOCKS.get(probe.number(8, "B") or 0, (0, 0))
    end = (probe.number(place, "<Q") or 0) if probe.number(width, "B") == 8 else 0  # 0: unknown
    damage = (f"truncated: has {probe.size:,} of {end:,} bytes",) if end > probe.size else ()
    if not signs:
        return Hit("hdf5", evidence=("HDF5 signature",), damage=damage)
    return Hit("hdf5", "keras", ("HDF5 signature", f"attribute {signs[0].decode()} (Keras)"), damage=damage)


def compressed(probe: Probe) -> Hit | None:
    """A compressed stream, with the format of its content."""
    codec, content = first_bytes_inside(probe)
    if codec is None:
        return None
    if not content or probe.depth:
        return Hit(codec, evidence=(f"{codec} signature",))
    inner, _ = _recognise(Probe(BytesSource(content), depth=1))
    if inner.format == "nemo":
        return Hit("nemo", codec, (f"{codec} signature", *inner.evidence))
    title = (find(inner.format) or BUILT_IN["unknown"]).title
    evidence = (f"{codec} signature", f"inside: {title}")
    return Hit(codec, f"{inner.format}-inside", evidence, detail={"inside": inner.format})


def safetensors(probe: Probe) -> Hit | None:
    if probe.head[8:].lstrip()[:1] != b"{":
        return None
    from weighbridge.containers.safetensors.recognise import recognise

    return recognise(probe)


def tensorflow_table(probe: Probe) -> Hit | None:
    """A checkpoint of TensorFlow, by the footer of its table."""
    if probe.at(probe.size - len(TABLE_MAGIC), len(TABLE_MAGIC)) != TABLE_MAGIC:
        return None
    return Hit("tf-checkpoint", evidence=("the footer of a TensorFlow table",))


def imatrix_dat(probe: Probe) -> Hit | None:
    if not 1 <= (probe.number(0, "<i") or 0) <= 100_000:  # entries
        return None
    from weighbridge.containers.ggml.recognise import imatrix_dat

    return imatrix_dat(probe)
