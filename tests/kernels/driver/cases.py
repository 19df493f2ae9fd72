"""Writes the cases that `driver.cpp` runs: calls of every kernel, with the bytes that the numpy reference gives.

python -m tests.kernels.driver.cases FILE
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.kernels.data import around_e4m3_scales, around_powers_of_two, boundaries, numbers, slow_to_settle

from weighbridge.base.dtypes import BY_NAME
from weighbridge.tensors.reference import affine, floats, patterns, regroup, rounding
from weighbridge.tensors.reference import registry as codecs

KINDS = ("normal", "wide", "inf", "halves", "below halves", "denormal", "tiny", "huge", "zero", "signed zero")
EDGES = {"MXFP4": around_powers_of_two, "NVFP4": around_e4m3_scales, "Q3_K": slow_to_settle}
RANDOM = np.random.default_rng(11)


class Out(NamedTuple):
    """An argument that the kernel writes, and what it writes. f32 are equal where both are NaN: whose sign and payload
    a NaN made by arithmetic has is the processor's choice."""

    expected: np.ndarray


class Case(NamedTuple):
    name: str
    arguments: tuple[Any, ...]
    results: tuple[float, ...] = ()


def blocks_of(name: str, count: int) -> np.ndarray:
    """Stored bytes of every kind, scales that are NaN and Inf among them."""
    data = RANDOM.integers(0, 256, (count, BY_NAME[name].size), dtype=np.uint8)
    data[1::7] = RANDOM.integers(0, 256, (len(data[1::7]), 1), dtype=np.uint8)
    return data.reshape(-1)


def decoding() -> Iterator[Case]:
    for name, decode in codecs.DECODE.items():
        for count in (1, 3, 67):
            data = blocks_of(name, count)
            yield Case("decode", (name, data, Out(decode(data))))
        nan, inf, low, high = codecs.stats(name, data)
        yield Case("stats", (name, data), (nan, inf, np.inf if low is None else low, -np.inf if high is None else high))


def counting() -> Iterator[Case]:
    for name in ("F16", "BF16", "F32", "F8_E4M3", "Q4_K"):
        data = blocks_of(name, 301)
        yield Case("count_patterns", (name, data, Out(patterns.count_patterns(name, data))))


def encoding() -> Iterator[Case]:
    for name, encode in codecs.ENCODE.items():
        block = BY_NAME[name].block
        values = [numbers(kind, block * count) for kind, count in product(KINDS, (1, 6, 19))]
        for x in (*values, *([EDGES[name]()] if name in EDGES else [])):
            data, lost = encode(x)
            # A NaN made by arithmetic has the sign that the processor gives it.
            if block == 1 or not np.isnan(codecs.BLOCKS[name].scales(data)).any():
                yield Case("encode", (name, x, Out(data)), lost)
    for name, weighted in codecs.WEIGHTED.items():
        columns = 2 * max(BY_NAME[name].block, 64)
        weights = RANDOM.gamma(0.3, size=columns).astype(np.float32)
        for kind, rows in product(("normal", "halves", "tiny", "zero"), (1, 5)):
            x = numbers(kind, columns * rows)
            data, lost = weighted(x.reshape(rows, columns), weights)
            yield Case("encode_weighted", (name, x, weights, Out(data)), lost)


def casting() -> Iterator[Case]:
    for source, target in product(floats.SCALAR, repeat=2):
        data = blocks_of(source, 999)
        if source == "F32" and target not in ("F32", "F64"):
            data = np.concatenate([data, boundaries(target).view(np.uint8)])
        out, lost = floats.cast(source, target, data)
        yield Case("cast", (source, target, data, Out(out)), lost)
    for kind in KINDS:
        x = numbers(kind, 999)
        yield Case("nonfinite", (x,), (int((~np.isfinite(x)).sum()),))


def affine_cases() -> Iterator[Case]:
    for bits, group, kind in product(range(1, 9), (32, 96), ("F32", "F16", "BF16")):
        codes = RANDOM.integers(0, 256, 5 * group * bits // 8, dtype=np.uint8)
        scales, biases = (floats.narrow(kind, numbers("normal", 5, n)).view(np.uint8) for n in (1, 2))
        zeros = RANDOM.integers(0, 256, 5, dtype=np.uint8)
        for offsets, by_zeros in ((biases, False), (zeros, True)):
            out = affine.affine_decode(bits, group, kind, codes, scales, offsets, by_zeros)
            yield Case("affine_decode", (bits, group, kind, codes, scales, offsets, int(by_zeros), Out(out)))
    for bits, group, dtype in product(affine.AFFINE_BITS, affine.AFFINE_GROUPS, ("F32", "F16", "BF16")):
        x = np.concatenate(
            [numbers(k, 2 * group) for k in ("normal", "halves", "one sign", "tiny", "zero", "constant")]
        )
        outs = map(Out, affine.affine_encode(bits, group, dtype, x))
        yield Case("affine_encode", (bits, group, dtype, x, *outs))
    for bits in range(1, 9):
        codes = RANDOM.integers(0, 1 << bits, 8 * 37, dtype=np.uint8)
        packed = affine.pack_codes(bits, codes)
        yield Case("pack_codes", (bits, codes, Out(packed)))
        yield Case("unpack_codes", (bits, packed, Out(codes)))


def lookups() -> Iterator[Case]:
    for group, high_first in product((16, 48), (False, True)):
        table, scales = numbers("normal", 16), numbers("normal", 9)
        codes = RANDOM.integers(0, 256, 9 * group // 2, dtype=np.uint8)
        out = affine.table_decode(table, group, codes, scales, high_first)
        yield Case("table_decode", (table, group, int(high_first), codes, scales, Out(out)))
    rows, columns, groups = 3, 37, 5
    index = RANDOM.integers(0, groups, columns).astype(np.int32)
    codes, zeros = (RANDOM.integers(0, 256, rows * n, dtype=np.uint8) for n in (columns + 3, groups))
    scales = numbers("normal", rows * groups)
    out = affine.ordered_decode(codes, scales, zeros, index, rows)
    yield Case("ordered_decode", (columns, groups, codes, scales, zeros, index, Out(out)))


def rounding_cases() -> Iterator[Case]:
    for name, rule in rounding.RULES.items():
        ways = [*((step, False) for step in rule.steps), *([("F32", True)] if rule.multiplied else [])]
        for (step, multiplied), (columns, width), kind in product(ways, ((64, 16), (192, 32), (7, 3)), KINDS):
            if rule.bits < 8 and width % 16:
                continue
            x, scales = (
                numbers(kind, 5 * columns),
                np.abs(numbers("normal", 5 * -(-columns // width))) + np.float32(0.01),
            )
            zeros = RANDOM.integers(-8, 9, scales.size).astype(np.float32) if name in ("int", "gptq") else None
            out = rounding.round_codes(name, x, scales, zeros, columns, width, step, 4, multiplied)
            offsets = np.empty(0, np.float32) if zeros is None else zeros
            yield Case("round_codes", (name, step, int(multiplied), 4, columns, width, x, scales, offsets, Out(out)))
    for (columns, width), kind in product(((64, 16), (100, 100), (37, 5)), (*KINDS, "nan")):
        x = numbers(kind, 5 * columns)
        yield Case("extremes", (columns, width, x, *map(Out, rounding.extremes(x, columns, width))))
        scales = numbers("normal", 5 * -(-columns // width))
        for name in floats.SCALAR:
            data = blocks_of(name, 5 * columns)
            values = rounding.scaled_decode(name, data, scales, columns, width)
            yield Case("scaled_decode", (name, columns, width, data, scales, Out(values)))


def regrouping() -> Iterator[Case]:
    for name, form in regroup.FORMS.items():
        for count in (1, 11):
            blocks = blocks_of(name, count)
            yield Case("split", (name, blocks, *map(Out, regroup.split(name, blocks))))
        if form.stored is None:
            continue
        for bits in range(1, 9) if form.parameter == "F16" else (form.bits,):
            group = form.group * 2 if form.parameter == "F16" else form.group
            groups = 4 * max(1, form.elements // group)
            size = BY_NAME[form.parameter].size
            parts = [
                RANDOM.integers(0, 256, n, dtype=np.uint8)
                for n in (
                    groups * group * bits // 8,
                    groups * size,
                    groups * (2 if form.minimum else 1 if form.zero else 0),
                )
            ]
            yield Case("join", (name, bits, group, *parts, Out(regroup.join(name, bits, group, *parts))))


def moving() -> Iterator[Case]:
    for word in (2, 4, 8):
        data = RANDOM.integers(0, 256, word * 37, dtype=np.uint8)
        yield Case("byteswap", (word, data, Out(data.reshape(-1, word)[:, ::-1].reshape(-1))))
    for size, (rows, columns) in product((1, 2, 4, 8), ((1, 1), (16, 16), (67, 5), (37, 150))):
        data = RANDOM.integers(0, 256, (rows, columns, size), dtype=np.uint8)
        out = Out(data.swapaxes(0, 1).reshape(-1))
        yield Case("transpose", (size, rows, columns, data.reshape(-1), columns * size, out, rows * size))
    words = RANDOM.integers(0, 256, 4 * 37, dtype=np.uint8)
    codes = affine.unpack_codes(4, words).reshape(-1, 2, 4).swapaxes(1, 2).reshape(-1)
    yield Case("unpack_awq", (words, Out(codes)))
    for rows, width in ((8, 1), (16, 37)):
        words = RANDOM.integers(0, 256, 4 * rows * width, dtype=np.uint8)
        eights = affine.unpack_codes(4, words).reshape(-1, 2, 4).swapaxes(1, 2).reshape(rows // 8, 8, -1)
        regrouped = affine.pack_codes(4, np.ascontiguousarray(eights.swapaxes(1, 2)).reshape(-1))
        yield Case("awq_by_rows", (width, words, Out(regrouped)))
    for size in (1, 2, 4, 8, 18, 20, 34, 77):
        data, index = RANDOM.integers(0, 256, size * 50, dtype=np.uint8), RANDOM.integers(0, 50, 2100)
        yield Case("gather", (data, index, size, Out(data.reshape(-1, size)[index].reshape(-1))))


def cases() -> Iterator[Case]:
    with np.errstate(all="ignore"):
        for part in (decoding, counting, encoding, casting, affine_cases, lookups, rounding_cases, regrouping, moving):
            yield from part()


def chunk(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def argument(value: Any) -> bytes:
    if isinstance(value, str):
        return b"s" + chunk(value.encode())
    if isinstance(value, int):
        return b"i" + struct.pack("<q", value)
    if isinstance(value, Out):
        return (b"f" if value.expected.dtype == np.float32 else b"o") + chunk(value.expected.tobytes())
    return b"b" + chunk(np.ascontiguousarray(value).tobytes())


def encoded(case: Case) -> bytes:
    arguments = b"".join(map(argument, case.arguments))
    results = struct.pack(f"<I{len(case.results)}d", len(case.results), *case.results)
    return chunk(case.name.encode()) + struct.pack("<I", len(case.arguments)) + arguments + results


def main(path: str) -> None:
    encoded_cases = [encoded(case) for case in cases()]
    head = chunk(b"weighbridge cases 1") + struct.pack("<I", len(encoded_cases))
    Path(path).write_bytes(head + b"".join(encoded_cases))


if __name__ == "__main__":
    main(sys.argv[1])
