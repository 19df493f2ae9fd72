"""Unpacks the chunks of packed files in plain numpy (docs/wbpack.md). Chunks are packed by the extension only."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.unsignedinteger]

_HEAD: Final = 12  # checksum, width, transform, two zeros
_RAW, _CONSTANT, _PREFIX, _SPARSE = range(4)
_PLAIN, _ROTATED, _DELTA, _FLOAT_DELTA, _PAIRS = range(5)
_NESTED: Final = 2  # sparse planes inside each other
_LONGEST: Final = 11  # bits of a code
_TABLE: Final = 128 + 3 * 4  # code lengths, and the sizes of three streams
_CHUNK: Final = 1 << 20


def unpack_chunk(packed: memoryview, base: memoryview, out: memoryview) -> None:
    """Fills `out` with a chunk; `base` has as many bytes for a delta and none otherwise. ValueError if the chunk is
    damaged."""
    data = np.frombuffer(packed, np.uint8)
    _need(len(out) <= _CHUNK, "a chunk is too long")
    _need(data.size >= _HEAD, "a chunk ends too early")
    width, transform = int(data[8]), int(data[9])
    is_known = width in (1, 2, 4, 8) and transform <= _PAIRS and (transform != _PAIRS or width == 2)
    is_known = is_known and not data[10:12].any()
    _need(is_known, "a chunk has unknown words")
    base_bytes = np.frombuffer(base, np.uint8) if len(base) else np.empty(0, np.uint8)
    _need(base_bytes.size == (len(out) if transform in (_DELTA, _FLOAT_DELTA) else 0), "a chunk needs its base")
    count = len(out) // width
    at = _HEAD + 4 * width
    _need(data.size >= at, "a chunk ends too early")
    planes = np.empty((count, width), np.uint8)  # the bytes of each word
    for number, size in enumerate(data[_HEAD:at].view("<u4").tolist()):
        _need(size <= data.size - at, "a plane ends too early")
        planes[:, number] = _plane(data[at : at + size], count, 0)
        at += size
    _need(data.size - at == len(out) % width, "a chunk has the wrong size")
    base_words = base_bytes[: count * width].view(f"<u{width}")
    values = _backward(planes.reshape(-1).view(f"<u{width}"), transform, base_words)
    result = np.frombuffer(out, np.uint8)
    result[: count * width] = values.view(np.uint8)
    result[count * width :] = data[at:]
    _need(xxh64(result) == int(data[:8].view("<u8")[0]), "a chunk's checksum is wrong")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _backward(values: Words, transform: int, base: Words) -> Words:
    """The words before their transform."""
    unit, top = values.dtype.type(1), values.dtype.type(8 * values.dtype.itemsize - 1)
    if transform == _PLAIN:
        return values
    if transform == _ROTATED:
        return (values >> unit) | (values << top)
    if transform == _PAIRS:
        return _unpaired(values)
    difference = (values >> unit) ^ (-(values & unit).astype(values.dtype))
    if transform == _DELTA:
        return difference + base
    sign = unit << top
    ordered = np.where(base & sign != 0, ~base, base | sign) + difference
    result: Words = np.where(ordered & sign != 0, ordered ^ sign, ~ordered)
    return result


def _unpaired(pairs: Words) -> Words:
    """Two floats of a byte from the byte with both exponents and the one with signs and mantissas."""
    low, high = pairs & pairs.dtype.type(0xFF), pairs >> pairs.dtype.type(8)
    each = np.stack([high << 4 | low & 15, high & 0xF0 | low >> 4], axis=1).astype(np.uint8)
    floats: Words = (each >> 1 | each << 7).reshape(-1).view(pairs.dtype)
    return floats


def _plane(data: Bytes, size: int, depth: int) -> Bytes:
    """The `size` bytes of a plane."""
    _need(data.size > 0, "a plane has no bytes")
    method, data = int(data[0]), data[1:]
    if method == _RAW:
        _need(data.size == size, "a stored plane has the wrong size")
        return data
    if method == _CONSTANT:
        _need(data.size == 1, "a constant plane has the wrong size")
        return np.full(size, data[0])
    if method == _PREFIX:
        return _prefix(data, size)
    _need(method == _SPARSE, "a plane has an unknown method")
    _need(depth < _NESTED, "sparse planes are nested too deeply")
    _need(data.size >= 5, "a sparse plane ends too early")
    first = int(data[1:5].view("<u4")[0])
    _need(first <= data.size - 5, "the mask of a sparse plane ends too early")
    mask = np.unpackbits(_plane(data[5 : 5 + first], -(-size // 8), depth + 1), bitorder="little")
    _need(not mask[size:].any(), "a mask has bits behind its plane")
    is_stored = mask[:size].astype(bool)
    out = np.full(size, data[0])
    out[is_stored] = _plane(data[5 + first :], int(is_stored.sum()), depth + 1)
    return out


def _prefix(data: Bytes, size: int) -> Bytes:
    _need(data.size >= _TABLE, "a prefix code ends too early")
    lengths = np.stack([data[:128] & 15, data[:128] >> 4], axis=1).reshape(-1)
    symbols, bits = _lookup(lengths)
    sizes = data[128:_TABLE].view("<u4").tolist()
    starts = [*accumulate(sizes, initial=_TABLE), data.size]
    _need(starts[3] <= data.size, "a stream of codes ends too early")
    quarter = -(-size // 4)
    counts = [min(quarter, max(size - k * quarter, 0)) for k in range(4)]
    streams = [data[start:end] for start, end in pairwise(starts)]
    return np.concatenate([_stream(s, n, symbols, bits) for s, n in zip(streams, counts, strict=True)])


def _lookup(lengths: Bytes) -> tuple[Bytes, Bytes]:
    """The symbol and the bits of each index of 11 bits (RFC 1951, 3.2.2; codes begin at the lowest bit)."""
    used = np.flatnonzero(lengths)
    complete = (1 << (_LONGEST - lengths[used].astype(int))).sum() == 1 << _LONGEST
    _need(
        int(lengths.max()) <= _LONGEST and used.size >= 2 and bool(complete), "the lengths of a prefix code are wrong"
    )
    symbols, bits = np.empty((2, 1 << _LONGEST), np.uint8)
    code = previous = 0
    for symbol in sorted(used.tolist(), key=lambda s: (lengths[s], s)):
        length = int(lengths[symbol])
        code <<= length - previous
        reversed_code = int(f"{code:0{length}b}"[::-1], 2)
        symbols[reversed_code :: 1 << length] = symbol
        bits[reversed_code :: 1 << length] = length
        code, previous = code + 1, length
    return symbols, bits


def _stream(data: Bytes, count: int, symbols: Bytes, bits: Bytes) -> Bytes:
    """Decodes at every bit, then follows the codes."""
    padded = np.concatenate([data, np.zeros(3, np.uint8)]).astype(np.uint32)
    triples = padded[:-2] | padded[1:-1] << 8 | padded[2:] << 16
    index = (triples[:, None] >> np.arange(8, dtype=np.uint32)) & ((1 << _LONGEST) - 1)
    steps, end = bits[index].reshape(-1).tolist(), 8 * data.size
    at, places = 0, []
    for _ in range(count):
        if at >= end:
            break
        places.append(at)
        at += steps[at]
    whole = len(places) == count and at <= end and data.size == (at + 7) // 8
    _need(whole and (at % 8 == 0 or not data[at // 8] >> at % 8), "a stream of codes is damaged")
    out: Bytes = symbols[index].reshape(-1)[places]
    return out


# ---- the checksum -----------------------------------------------------------------------------------------------

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_ALL: Final = (1 << 64) - 1


def xxh64(data: Bytes) -> int:
    """XXH64 with the seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md)."""
    end = data.size // 32 * 32
    h = _P5
    if end:
        lanes = [(_P1 + _P2) & _ALL, _P2, 0, -_P1 & _ALL]
        with np.errstate(over="ignore"):
            products = (data[:end].view("<u8").reshape(-1, 4) * np.uint64(_P2)).tolist()
        for row in products:
            lanes = [_turned((lane + word) & _ALL, 31) * _P1 & _ALL for lane, word in zip(lanes, row, strict=True)]
        h = sum(_turned(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18), strict=True)) & _ALL
        for lane in lanes:
            h = ((h ^ _round(lane)) * _P1 + _P4) & _ALL
    h = (h + data.size) & _ALL
    tail = data[end:].tobytes()
    while len(tail) >= 8:
        h = (_turned(h ^ _round(int.from_bytes(tail[:8], "little")), 27) * _P1 + _P4) & _ALL
        tail = tail[8:]
    if len(tail) >= 4:
        h = (_turned(h ^ int.from_bytes(tail[:4], "little") * _P1 & _ALL, 23) * _P2 + _P3) & _ALL
        tail = tail[4:]
    for byte in tail:
        h = _turned(h ^ byte * _P5 & _ALL, 11) * _P1 & _ALL
    h = (h ^ h >> 33) * _P2 & _ALL
    h = (h ^ h >> 29) * _P3 & _ALL
    return h ^ h >> 32


def _round(word: int) -> int:
    return _turned(word * _P2 & _ALL, 31) * _P1 & _ALL


def _turned(x: int, n: int) -> int:
    return (x << n | x >> (64 - n)) & _ALL
