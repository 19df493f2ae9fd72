"""Rank tables: tiktoken's form of byte-level BPE, byte strings with ranks, merged from the lowest rank. GGUF and
tokenizer.json need merges, which the reference derives in two ways:

    natural   one per token: the two parts that lower ranks merge into            conversion/qwen.py, `bpe`
    every     all pairs of tokens whose concatenation is a token    gguf/vocab.py, `extract_vocab_merges_from_model`

Both tokenize equally, since other pairs never occur; each file format gets the merges of its reference converter.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import RANK_BYTES, TOKENIZER_JSON, VOCABULARY
from weighbridge.models.tokenizer.formats.merges import BYTE_OF

LINE: Final = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d{1,9})")
SPELLED: Final = {byte: char for char, byte in BYTE_OF.items()}  # for str.translate over Latin-1
ONE: Final = [bytes([b]) for b in range(256)]

Ranks = Mapping[bytes, int]


def is_ranks(data: bytes) -> bool:
    """Whether this is a tiktoken file (lines of base64 and a number), regardless of its name."""
    return LINE.match(data[:4096]) is not None


def parse(data: bytes, name: str) -> dict[bytes, int]:
    """Returns token -> rank from a tiktoken file. Raises FormatError for a duplicate token or rank, or a byte without a
    token."""
    if len(data) > TOKENIZER_JSON:
        raise FormatError("file too large", path=name, expected=f"<= {TOKENIZER_JSON} bytes", found=len(data))
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        row = line.rstrip(b"\r")
        if not row:
            continue
        match = LINE.fullmatch(row)
        if match is None:
            raise FormatError(
                "not a line of base64 and a rank", path=name, field=f"line {number}", found=ascii(row[:60])[2:-1]
            )
        token, rank = unpacked(match[1], name, f"line {number}"), int(match[2])
        if rank >= VOCABULARY:
            raise FormatError(
                "the rank is out of range", path=name, field=f"line {number}", expected=f"< {VOCABULARY}", found=rank
            )
        if token in ranks:
            raise FormatError("a token occurs twice", path=name, field=f"line {number}", found=ascii(token)[1:])
        ranks[token] = rank
    check(ranks, name)
    return ranks


def unpacked(text: bytes | str, name: str, field: str) -> bytes:
    """Returns a token's bytes from base64."""
    try:
        token = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"not base64: {error}", path=name, field=field) from error
    if not 0 < len(token) <= RANK_BYTES:
        raise FormatError("not a token", path=name, field=field, expected=f"1..{RANK_BYTES} bytes", found=len(token))
    return token


def check(ranks: Ranks, name: str) -> None:
    if len(set(ranks.values())) != len(ranks):
        seen: dict[int, bytes] = {}
        for token, rank in ranks.items():
            if seen.setdefault(rank, token) != token:
                tokens = f"{ascii(seen[rank])[1:]} and {ascii(token)[1:]}"
                raise FormatError(f"tokens {tokens} have the same rank", path=name, found=rank)
    missing = [b for b in range(256) if ONE[b] not in ranks]
    if missing:
        raise FormatError(
            "not every byte has a token", path=name, expected="256 tokens of one byte", found=256 - len(missing),
            hint=f"0x{missing[0]:02x} is missing first: the file is truncated or not a tiktoken file",
        )  # fmt: skip


def spelled(token: bytes) -> str:
    """Returns a token in the byte alphabet."""
    return token.decode("latin-1").translate(SPELLED)


def natural(ranks: Ranks) -> list[tuple[str, str]]:
    """Returns the merges in the file's order. A token that doesn't split into two parts has none."""
    out = []
    for token, rank in ranks.items():
        if len(token) > 1:
            parts = split(ranks, token, rank)
            if len(parts) == 2:
                out.append((spelled(parts[0]), spelled(parts[1])))
    return out


def every(ranks: Ranks) -> list[tuple[str, str]]:
    """Returns the merges by rank, those of the same token by the ranks of their parts."""
    out: list[tuple[int, int, int, bytes, bytes]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                out.append((rank, ranks[left], ranks[right], left, right))
    out.sort()
    return [(spelled(left), spelled(right)) for *_, left, right in out]


def split(ranks: Ranks, token: bytes, limit: int) -> list[bytes]:
    """Returns the parts of `token` after merging ranks below `limit`, lowest first, leftmost among equals. The file
    determines the length of a token, therefore long ones (runs of spaces) use an O(n log n) algorithm."""
    if len(token) > 64:
        return split_long(ranks, token, limit)
    parts = [ONE[b] for b in token]
    while True:
        best, at = limit, -1
        for i in range(len(parts) - 1):
            rank = ranks.get(parts[i] + parts[i + 1], limit)
            if rank < best:
                best, at = rank, i
        if at < 0:
            return parts
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def split_long(ranks: Ranks, token: bytes, limit: int) -> list[bytes]:
    """Does the same as `split` with a priority queue of pairs. `end[i]`: the end of the part that begins at i, 0 if
    none does."""
    size = len(token)
    end, begin = [*range(1, size + 1)], [*range(-1, size)]  # begin[i]: the start of the part that ends at i

    def pair(at: int) -> tuple[int, int, int] | None:
        if at < 0 or end[at] >= size:
            return None
        stop = end[end[at]]
        rank = ranks.get(token[at:stop], limit)
        return (rank, at, stop) if rank < limit else None

    queue = [p for i in range(size) if (p := pair(i)) is not None]
    heapify(queue)
    while queue:
        _, at, stop = heappop(queue)
        middle = end[at]
        if not middle or middle >= size or end[middle] != stop:
            continue  # one of its parts was merged since
        end[at], end[middle], begin[stop] = stop, 0, at
        for new in (pair(at), pair(begin[at])):
            if new is not None:
                heappush(queue, new)
    return [token[i:stop] for i, stop in enumerate(end) if stop]


def by_rank(ranks: Ranks) -> Iterator[tuple[int, str]]:
    """Yields (rank, spelling) in the order of the file."""
    for token, rank in ranks.items():
        yield rank, spelled(token)
