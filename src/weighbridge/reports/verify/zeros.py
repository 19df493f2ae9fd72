"""Where the zeros at the end of a file begin, and whether they can be weights. An interrupted download into reserved
space may be gigabytes of them, so more than a bounded part of the file is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from weighbridge.base.limits import MIB, ZERO_SAMPLE, ZERO_SCAN
from weighbridge.containers.base import Entry
from weighbridge.io.source import Source

#: Names of matrices that begin as zeros: a model that was never trained has them.
FRESH: Final = ("lora_B.weight", "lora_up.weight")

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


def unwritten(source: Source, entries: Sequence[Entry], tail: ZeroTail) -> str | None:
    """Why the zeros at the end of a file aren't weights; None where they may be. Real models have matrices of zeros
    (fresh adapters, added layers) and rows of zeros behind a vocabulary, but those begin where a tensor or a row does,
    and something else has values."""
    matrices = [e for e in entries if len(e.shape) > 1 and e.nbytes and not e.name.endswith(FRESH)]
    whole = [e for e in matrices if e.offset >= tail.start]
    if not whole or (tail.sampled and not _all_zero(source, whole)):
        return None
    cut = next((e for e in matrices if _stops_inside_a_row(e, tail.start)), None)
    if cut is not None:
        return f"{cut.name} stops inside a row, and {len(whole)} whole matrices behind it are zero"
    return f"all {len(whole)} matrices are zero" if len(whole) == len(matrices) > 1 else None


def _stops_inside_a_row(entry: Entry, start: int) -> bool:
    """Whether the zeros begin inside a row that isn't the last: more of them than a row of padded columns ends in."""
    row, into = entry.spec.row_bytes, start - entry.offset
    return 0 < into < entry.nbytes - row and 0 < into % row < row - min(_PADDING, row // 2)


_PADDING: Final = 256  # bytes
_WHOLE: Final = 32  # tensors of which bytes are read where the zeros were found by samples


def _all_zero(source: Source, whole: Sequence[Entry]) -> bool:
    """Whether the first and last bytes of these are zero, of many those of some."""
    some = whole[:: -(-len(whole) // _WHOLE)]
    return all(_is_zero(source, at) for e in some for at in (e.offset, e.offset + max(e.nbytes - ZERO_SAMPLE, 0)))
