"""Where the zeros at the end of a file begin. An interrupted download into reserved space may be gigabytes of them, so
more than a bounded part of the file is never read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from weighbridge.base.limits import MIB, ZERO_SAMPLE, ZERO_SCAN
from weighbridge.io.source import Source

_SAMPLES: Final = 16  # between one distance from the end and twice that


class ZeroTail(NamedTuple):
    """`start`: the end of the last byte that isn't zero. `sampled`: not every byte behind it was read."""

    start: int
    sampled: bool


def zero_tail_of(source: Source) -> ZeroTail:
    """The zeros at the end of `source`: read whole up to 16 MiB, in samples before that."""
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
    """The end of the last byte of a range that isn't zero; `start` where all are."""
    while end > start:
        at = max(end - MIB, start)
        if kept := len(source.read(at, end - at).rstrip(b"\0")):
            return at + kept
        end = at
    return start


def _last_sample(source: Source, near: int) -> tuple[int, int]:
    """The place of the last sample that isn't all zeros (0 where all are), and that of the one behind it."""
    zeros = near
    while zeros:
        distance = source.size - zeros
        step = max(distance // _SAMPLES, ZERO_SAMPLE)
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
