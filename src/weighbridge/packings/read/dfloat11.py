"""DFloat11: bf16 weights whose exponents are in Huffman codes, several matrices of a layer one after the other.

    encoded_exponent   the codes, from each byte's highest bit on; 1 to 32 bits each
    sign_mantissa      u8 for each weight: its sign, then the 7 bits of its mantissa
    luts               u8 [tables + 1, 256]: by the next byte of the codes an exponent or, from 240 on, 256 - the number
                       of the table for the byte after it; the last row has the bits of each exponent's code
    output_positions   u32: the number of the first weight of each block of threads, and the number of all
    gaps               5 bits for each thread: where in its 8 bytes of the codes the first code begins
    split_positions    i64: where the second and further matrices begin

The tables of threads are for GPUs; here they give access to any block, and prove that the codes are read correctly.
Reference: DFloat11 0.5 (dfloat11_utils.py, decode.cu)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import FormatError
from weighbridge.base.native import native
from weighbridge.io.source import DecodedSource, Source

#: The tensors of a block, by the ends of their names.
PARTS: Final = ("encoded_exponent", "sign_mantissa", "luts", "output_positions", "gaps", "split_positions")
#: Bytes of codes of a thread, in all files.
THREAD: Final = 8
_GROUP: Final = 64  # blocks that are decoded together: some 800,000 weights
_TABLES: Final = 240  # lookups from here on name a table
_LONGEST: Final = 32  # bits of a code
_WRONG: Final = 255  # the length of what isn't a code: it fails the checks that follow
_GAP: Final = 5
_PADDING: Final = 64  # bytes that may be read after the codes
_FAST: Final = 12  # bits of a lookup that decodes most codes in one step
_Ints = NDArray[np.int64]
_Bytes = NDArray[np.uint8]


class Lookup(NamedTuple):
    """By the next 12 bits, the exponent and the bits of its code; 0 bits for longer codes, which `tables` decodes."""

    exponents: _Bytes
    bits: _Bytes
    tables: _Bytes
    lengths: _Bytes


class ThreadBlocks(NamedTuple):
    """Bytes [start, start + size) of the weights: blocks of threads [first, last)."""

    number: int
    start: int
    size: int
    first: int
    last: int


class Dfloat11Source(DecodedSource[ThreadBlocks]):
    """The weights of a block as bf16. `parts`: its tensors' bytes; `threads`: those of a block of the GPU."""

    coder, is_part = "DFloat11", True

    def __init__(self, name: str, parts: Mapping[str, Source], threads: int) -> None:
        super().__init__(name, 2 * parts["sign_mantissa"].size)
        self.parts, self.threads = parts, threads
        self.remote = parts["sign_mantissa"].remote

    def wrong(self, part: str, reason: str) -> FormatError:
        """The error about a part."""
        return FormatError(f"DFloat11's {part}: {reason}", path=self.parts[part].name)

    @cached_property
    def positions(self) -> _Ints:
        """The number of the first weight of each block, and of all. Raises FormatError unless they fit the codes."""
        part, codes, weights = self.parts["output_positions"], self.parts["encoded_exponent"].size, self.size // 2
        blocks = -(-codes // (THREAD * self.threads))
        if part.size != 4 * (blocks + 1):
            raise self.wrong("output_positions", f"{part.size} bytes, and {4 * (blocks + 1)} are needed")
        if self.parts["gaps"].size < -(-_GAP * self.threads * blocks // 8):
            raise self.wrong("gaps", f"too few for {self.threads * blocks} threads")
        positions = np.frombuffer(part.read(0, part.size), "<u4").astype(np.int64)
        if positions[0] or positions[-1] != weights or (np.diff(positions) < 0).any():
            raise self.wrong("output_positions", f"they don't rise from 0 to {weights}")
        return positions

    @cached_property
    def _lookup(self) -> Lookup:
        part = self.parts["luts"]
        rows = np.frombuffer(part.read(0, part.size), np.uint8).reshape(-1, 256)
        tables, lengths = rows[:-1], np.where((rows[-1] >= 1) & (rows[-1] <= _LONGEST), rows[-1], _WRONG)
        lengths[_TABLES:] = _WRONG
        # Tables repeat an exponent where the code that ends a stream is, so codes that begin alike may differ.
        lowest = np.arange(1 << _FAST, dtype=np.uint64) << np.uint64(32 - _FAST)
        exponents = _walk(tables, lowest)
        is_fast = (lengths[exponents] <= _FAST) & (
            exponents == _walk(tables, lowest | np.uint64((1 << (32 - _FAST)) - 1))
        )
        bits = np.where(is_fast, lengths[exponents], 0).astype(np.uint8)
        return Lookup(exponents, bits, np.ascontiguousarray(tables), lengths.astype(np.uint8))

    def chunks(self, start: int, end: int) -> Iterator[ThreadBlocks]:
        blocks = len(self.positions) - 1
        number = int(np.searchsorted(self.positions[:-1:_GROUP], start // 2, "right")) - 1
        for group in range(max(number, 0), -(-blocks // _GROUP)):
            first, last = group * _GROUP, min((group + 1) * _GROUP, blocks)
            low, high = int(self.positions[first]), int(self.positions[last])
            if 2 * low >= end:
                return
            yield ThreadBlocks(group, 2 * low, 2 * (high - low), first, last)

    def decode(self, chunk: ThreadBlocks, out: memoryview) -> None:
        rest = self.parts["sign_mantissa"].read(chunk.start // 2, chunk.size // 2)
        values = np.frombuffer(rest, np.uint8).astype(np.int32)
        words = (values & 0x80) << 8 | values & 0x7F | self._exponents(chunk).astype(np.int32) << 7
        out[:] = words.astype("<u2").tobytes()

    def _exponents(self, chunk: ThreadBlocks) -> _Bytes:
        """The exponents of a chunk. Raises FormatError unless each thread ends where the next one begins."""
        codes, size = self.parts["encoded_exponent"], self.threads * THREAD
        begin, end = chunk.first * size, min(chunk.last * size, self.parts["encoded_exponent"].size)
        data = codes.read(begin, min(end + THREAD, codes.size) - begin)
        threads = -(-(end - begin) // THREAD)
        starts = THREAD * 8 * np.arange(threads) + self.gaps_of(chunk.first * self.threads, threads)
        exponents, counts, ends = decode_threads(data, starts, self._lookup)
        total, sums = chunk.size // 2, np.cumsum(counts)
        bounds = np.minimum(np.arange(1, chunk.last - chunk.first + 1) * self.threads, threads) - 1
        expected = self.positions[chunk.first + 1 : chunk.last + 1] - self.positions[chunk.first]
        right = sums[bounds] == expected
        if chunk.last == len(self.positions) - 1:  # bits after the last code may look like more
            right[-1] = sums[-1] >= total
        if not right.all() or (ends[:-1] != starts[1:])[sums[:-1] < total].any():
            raise self.wrong("encoded_exponent", f"the codes of weights from {chunk.start // 2} on are damaged")
        return exponents[:total]

    def gaps_of(self, first: int, count: int) -> _Ints:
        """Where the codes of threads begin in their bytes."""
        at, end = _GAP * first, _GAP * (first + count)
        data = np.frombuffer(self.parts["gaps"].read(at // 8, -(-end // 8) - at // 8), np.uint8)
        bits = np.unpackbits(data)[at % 8 :][: _GAP * count].reshape(count, _GAP)
        return bits.astype(np.int64) @ (1 << np.arange(_GAP)[::-1])


def _walk(tables: _Bytes, bits: NDArray[np.uint64]) -> _Bytes:
    """The exponents of the codes that begin the 32 `bits`, table by table; `_WRONG` if a table doesn't exist."""
    values: _Bytes = tables[0, (bits >> 24).astype(np.int64)]
    for shift in (16, 8, 0):
        rows, byte = 256 - values.astype(np.int64), (bits >> shift & 255).astype(np.int64)
        there = rows < len(tables)
        further = np.where(there, tables[np.where(there, rows, 0), byte], _WRONG)
        values = np.where(values >= _TABLES, further, values).astype(np.uint8)
    return values


def decode_threads(data: bytes, starts: _Ints, lookup: Lookup) -> tuple[_Bytes, _Ints, _Ints]:
    """The exponents of threads whose codes begin at the bits `starts`, thread after thread; their number in each; and
    where its last code ends. By the extension, or in numpy, some five times slower."""
    if not hasattr(native, "decode_threads"):
        return step_threads(data, starts, lookup)
    padded = data + bytes(_PADDING)
    out, (counts, ends) = np.empty(len(starts) * THREAD * 8, np.uint8), np.empty((2, len(starts)), np.int64)
    made = native.decode_threads(padded, starts, *lookup, out, counts, ends)
    return out[:made], counts, ends


def step_threads(data: bytes, starts: _Ints, lookup: Lookup) -> tuple[_Bytes, _Ints, _Ints]:
    """As `decode_threads`, in numpy: all threads are decoded in steps of one code."""
    padded = data + bytes(-len(data) % 4 + _PADDING)
    halves = np.frombuffer(padded, ">u4").astype(np.uint64)
    words = halves[:-1] << 32 | halves[1:]
    table = np.zeros((len(starts), THREAD * 8), np.uint8)
    counts, ends = np.zeros((2, len(starts)), np.int64)
    lanes, at = np.arange(len(starts)), starts.copy()
    limits = THREAD * 8 * (lanes + 1)
    for step in range(THREAD * 8):
        bits = (words[at >> 5] << (at & 31).astype(np.uint64)) >> 32
        top = (bits >> (32 - _FAST)).astype(np.int64)
        exponents, lengths = lookup.exponents[top], lookup.bits[top]
        if not lengths.all():
            long = np.flatnonzero(lengths == 0)
            exponents[long] = _walk(lookup.tables, bits[long])
            lengths[long] = lookup.lengths[exponents[long]]
        table[lanes, step] = exponents
        at += lengths
        going = at < limits
        if not going.all():
            done = lanes[~going]
            counts[done], ends[done] = step + 1, at[~going]
            lanes, at, limits = lanes[going], at[going], limits[going]
    decoded: _Bytes = table[np.arange(THREAD * 8) < counts[:, None]]
    return decoded, counts, ends
