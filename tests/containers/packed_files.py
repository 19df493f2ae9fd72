"""Packed files by the specification (docs/wbpack.md), in plain Python: an encoder that shares nothing with ours."""

from __future__ import annotations

import hashlib
import heapq
import json
import struct
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

RAW, CONSTANT, PREFIX, SPARSE = range(4)
PLAIN, ROTATED, DELTA, FLOAT_DELTA, PAIRS = range(5)
DELTAS = (DELTA, FLOAT_DELTA)
WIDTHS = (1, 2, 4, 8)
WORDS = [*((width, transform) for width in WIDTHS for transform in range(PAIRS)), (2, PAIRS)]
ALL = (1 << 64) - 1


def xxh64(data: bytes) -> int:
    """By the specification of xxHash; checked against its published values in the tests."""
    p1, p2, p3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
    p4, p5 = 9650029242287828579, 2870177450012600261

    def turn(x: int, n: int) -> int:
        return ((x << n) | (x >> (64 - n))) & ALL

    def mix(acc: int, word: int) -> int:
        return turn((acc + word * p2) & ALL, 31) * p1 & ALL

    at, h = 0, p5
    if len(data) >= 32:
        lanes = [(p1 + p2) & ALL, p2, 0, -p1 & ALL]
        while at + 32 <= len(data):
            for i, word in enumerate(struct.unpack_from("<4Q", data, at)):
                lanes[i] = mix(lanes[i], word)
            at += 32
        h = sum(turn(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18), strict=True)) & ALL
        for lane in lanes:
            h = ((h ^ mix(0, lane)) * p1 + p4) & ALL
    h = (h + len(data)) & ALL
    while at + 8 <= len(data):
        h = (turn(h ^ mix(0, struct.unpack_from("<Q", data, at)[0]), 27) * p1 + p4) & ALL
        at += 8
    if at + 4 <= len(data):
        h = (turn(h ^ struct.unpack_from("<I", data, at)[0] * p1 & ALL, 23) * p2 + p3) & ALL
        at += 4
    for byte in data[at:]:
        h = turn(h ^ byte * p5 & ALL, 11) * p1 & ALL
    for shift, factor in ((33, p2), (29, p3)):
        h = ((h ^ (h >> shift)) * factor) & ALL
    return h ^ (h >> 32)


def lengths_of(data: bytes) -> list[int]:
    """Huffman's code lengths of two or more different bytes; for data whose codes have at most 11 bits."""
    order = count()
    heap = [(n, next(order), {symbol: 0}) for symbol, n in sorted(Counter(data).items())]
    heapq.heapify(heap)
    while len(heap) > 1:
        (a, _, one), (b, _, two) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (a + b, next(order), {s: n + 1 for s, n in {**one, **two}.items()}))
    lengths = [heap[0][2].get(symbol, 0) for symbol in range(256)]
    assert max(lengths) <= 11
    return lengths


def prefix(data: bytes, lengths: Sequence[int] | None = None) -> bytes:
    """A plane in a prefix code: 128 bytes of lengths, the sizes of three streams, four streams."""
    lengths = lengths or lengths_of(data)
    codes: dict[int, str] = {}
    code = last = 0
    for symbol in sorted((s for s in range(256) if lengths[s]), key=lambda s: (lengths[s], s)):
        code <<= lengths[symbol] - last
        codes[symbol] = f"{code:0{lengths[symbol]}b}"
        code, last = code + 1, lengths[symbol]
    quarter = (len(data) + 3) // 4
    streams = []
    for k in range(4):
        bits = "".join(codes[b] for b in data[k * quarter : (k + 1) * quarter])
        streams.append(int(bits[::-1] or "0", 2).to_bytes((len(bits) + 7) // 8, "little"))
    packed = bytes(lengths[2 * i] | lengths[2 * i + 1] << 4 for i in range(128))
    return bytes([PREFIX]) + packed + struct.pack("<3I", *map(len, streams[:3])) + b"".join(streams)


def sparse(data: bytes, inner: Sequence[int] = (RAW, RAW)) -> bytes:
    """A plane as a mask and the bytes that differ from the most common one."""
    common = Counter(data).most_common(1)[0][0]
    bits = "".join(str(int(b != common)) for b in data)
    mask = int(bits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")
    packed = plane(mask, inner[0])
    others = bytes(b for b in data if b != common)
    return bytes([SPARSE, common]) + struct.pack("<I", len(packed)) + packed + plane(others, inner[1])


def plane(data: bytes, method: int) -> bytes:
    if method == PREFIX and len(set(data)) == 1:
        method = CONSTANT
    if method == PREFIX:
        return prefix(data)
    if method == SPARSE:
        return sparse(data, (PREFIX, RAW))
    return bytes([RAW]) + data if method == RAW else bytes([CONSTANT, data[0]])


def transformed(word: int, base: int, bits: int, transform: int) -> int:
    mask, top = (1 << bits) - 1, 1 << (bits - 1)
    if transform == ROTATED:
        return (word << 1 | word >> (bits - 1)) & mask
    if transform == PAIRS:
        pair = f"{word:016b}"  # of the second float sign, exponent, mantissa; then of the first
        floats = [(pair[at], pair[at + 1 : at + 5], pair[at + 5 : at + 8]) for at in (0, 8)]
        return int("".join(e for _, e, _ in floats) + "".join(m + s for s, _, m in floats), 2)
    if transform in DELTAS:
        if transform == FLOAT_DELTA:
            word, base = (~x & mask if x & top else x | top for x in (word, base))
        difference = (word - base) & mask
        return (difference << 1 & mask) ^ (mask if difference & top else 0)
    return word


def chunk(data: bytes, width: int, transform: int, methods: Sequence[int], base: bytes = b"") -> bytes:
    """A packed chunk. `methods`: of each plane."""
    n = len(data) // width
    words = [int.from_bytes(data[i * width : (i + 1) * width], "little") for i in range(n)]
    bases = [int.from_bytes(base[i * width : (i + 1) * width], "little") for i in range(n)]
    words = [transformed(word, old, 8 * width, transform) for word, old in zip(words, bases, strict=True)]
    planes = [plane(bytes(word >> 8 * p & 255 for word in words), method) for p, method in enumerate(methods)]
    head = struct.pack("<QBBH", xxh64(data), width, transform, 0) + struct.pack(f"<{width}I", *map(len, planes))
    return head + b"".join(planes) + data[n * width :]


class Part(NamedTuple):
    """A record: its name and bytes, and how each of its chunks is packed."""

    name: str
    data: bytes
    width: int = 1
    transform: int = PLAIN
    methods: Sequence[int] = (RAW,)
    base: bytes = b""
    base_offset: int = 0


def packed_file(parts: Sequence[Part], *, size: int = 4096, bases: Sequence[dict[str, object]] = (),
                index: bytes | None = None, changed: dict[str, str] | None = None) -> bytes:  # fmt: skip
    """A packed file of these records. `index`, `changed`: instead of the right ones."""
    data = b"".join(part.data for part in parts)
    sizes: list[int] = []
    records, entries, at = b"", {}, 0
    body = b""
    for part in parts:
        chunks = [
            chunk(part.data[i : i + size], part.width, part.transform, part.methods, part.base[i : i + size])
            for i in range(0, len(part.data), size)
        ]
        records += struct.pack("<QQII", len(part.data), part.base_offset, 0 if part.base else 0xFFFFFFFF, 0)
        sizes += map(len, chunks)
        body += b"".join(chunks)
        entries[part.name] = (at, len(body))
        at = len(body)
    table = records + struct.pack(f"<{len(sizes)}I", *sizes) if index is None else index
    entries["wbpack.index"] = (at, at + len(table))
    meta = {
        "wbpack": "2", "wbpack.bases": json.dumps(list(bases)), "wbpack.chunk": str(size), "wbpack.name": "model.bin",
        "wbpack.sha256": hashlib.sha256(data).hexdigest(), "wbpack.size": str(len(data)), **(changed or {}),
    }  # fmt: skip
    header: dict[str, object] = {"__metadata__": {k: v for k, v in meta.items() if v != "-"}}
    header |= {n: {"dtype": "U8", "shape": [b - a], "data_offsets": [a, b]} for n, (a, b) in entries.items()}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body + table


def small(inside: bytes | None = None) -> bytes:
    """A packed safetensors file with every method and transform that needs no base."""
    from weighbridge.base.dtypes import BF16, F32, U8
    from weighbridge.base.spec import Spec
    from weighbridge.containers.safetensors.layout import header_bytes

    tensors = {
        "bf16": (BF16, 2, ROTATED, (RAW, PREFIX), bytes((i * 7 % 250, 60 + (i % 5 == 0) + (i % 9 == 0)) [j]
                                                        for i in range(3000) for j in (0, 1))),
        "f32": (F32, 4, ROTATED, (CONSTANT, RAW, RAW, SPARSE), bytes(v for i in range(700) for v in
                                                                     (0, i % 256, i % 199, 62 + (i % 40 == 7)))),
        "u8": (U8, 1, PLAIN, (SPARSE,), bytes(9 if i % 31 else i % 8 for i in range(6000))),
    }  # fmt: skip
    named = [(name, Spec((len(data) // t.size,), t)) for name, (t, *_, data) in tensors.items()]
    head = header_bytes(named) if inside is None else inside
    parts = [Part("wbpack.bytes.0", head)]
    parts += [Part(name, data, width, transform, methods) for name, (_, width, transform, methods, data) in
              tensors.items()]  # fmt: skip
    return packed_file(parts)
