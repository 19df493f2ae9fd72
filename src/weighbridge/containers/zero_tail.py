"""Finds the start of the zeros at the end of a file, and whether they can be weights. An interrupted download into
reserved space may leave gigabytes of zeros, so only a bounded part of the file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from weighbridge.base.limits import MIB, ZERO_SAMPLE, ZERO_SCAN
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry
from weighbridge.io.source import Source

#: Names of matrices that are initialised with zeros, as in a model that was never trained.
FRESH: Final = ("lora_B.weight", "lora_up.weight")

_SAMPLES: Final = 16  # between one distance from the end and twice that
_PADDING: Final = 256  # bytes
_WHOLE: Final = 32  # tensors whose bytes are read if samples found the zeros


class ZeroTail(NamedTuple):
    """`start`: the end of the last byte that isn't zero. `sampled`: not every byte after it was read."""

    start: int
    sampled: bool


def zero_tail_of(source: Source) -> ZeroTail:
    """The zeros at the end of `source`: the last 16 MiB are read completely, the bytes before in samples."""
    near = max(source.size - ZERO_SCAN, 0)
    end = _last_byte(source, near, source.size)
    if end > near or not near:
        return ZeroTail(end, False)
    first, zeros = _last_sample(source, near)
    while zeros - first > MIB:
        middle = (first + zeros) // 2
        first, zeros = (first, middle) if _is_zero(source, middle) else (middle, zeros)
    return ZeroTail(max(_last_byte(source, first, min(zeros + ZERO_SAMPLE, source.size)), first), True)


def _last_byte(source: Source, start: int, end: int) -> int:
    """The end of the last byte of a range that isn't zero, or `start`."""
    while end > start:
        at = max(end - MIB, start)
        if kept := len(source.read(at, end - at).rstrip(b"\0")):
            return at + kept
        end = at
    return start


def _last_sample(source: Source, near: int) -> tuple[int, int]:
    """The offset of the last sample that isn't all zeros (0 if all are), and that of the sample after it."""
    zeros = near
    while zeros:
        step = max((source.size - zeros) // _SAMPLES, ZERO_SAMPLE)
        for _ in range(_SAMPLES):
            at = max(zeros - step, 0)
            if not _is_zero(source, at):
                return at, zeros
            zeros = at
            if not at:
                break
    return 0, 0


def _is_zero(source: Source, at: int) -> bool:
    return not source.read(at, min(ZERO_SAMPLE, source.size - at)).strip(b"\0")


def unwritten(source: Source, entries: Sequence[Entry], tail: ZeroTail) -> str | None:
    """Why the zeros at the end of a file can't be weights, or None. Real models have matrices of zeros (fresh adapters,
    added layers) and rows of zeros after a vocabulary, but those begin with a tensor or a row, and other matrices have
    values."""
    matrices = [e for e in entries if len(e.shape) > 1 and e.nbytes and not e.name.endswith(FRESH)]
    whole = [e for e in matrices if e.offset >= tail.start]
    if not whole:
        return None
    if tail.sampled:  # read the first and last bytes of these matrices, or of some if there are many
        offsets = ((e.offset, e.offset + max(e.nbytes - ZERO_SAMPLE, 0)) for e in whole[:: -(-len(whole) // _WHOLE)])
        if not all(_is_zero(source, at) for both_ends in offsets for at in both_ends):
            return None
    for e in matrices:
        # The zeros begin inside a row that isn't the last, with more zeros than padded columns have.
        row, into = e.spec.row_bytes, tail.start - e.offset
        if 0 < into < e.nbytes - row and 0 < into % row < row - min(_PADDING, row // 2):
            return f"{e.name} stops inside a row, and {plural(len(whole), 'whole matrix', 'are')} zero after it"
    return f"all {plural(len(whole), 'matrix', 'are')} zero" if len(whole) == len(matrices) > 1 else None
