"""`tokenizer.model`: SentencePiece's ModelProto, read and written at the wire level of Protocol Buffers.

Fields other than those below are skipped. Every length is checked against its message, so time and memory are linear
in the file. Field numbers: sentencepiece_model.proto (SentencePiece 0.2).

    ModelProto      1 pieces*  2 trainer_spec  3 normalizer_spec
    SentencePiece   1 piece (string)  2 score (float)  3 type (enum, default NORMAL)
    TrainerSpec     3 model_type  4 vocab_size  35 byte_fallback  40..43 unk, bos, eos, pad id  45..48 their pieces
    NormalizerSpec  1 name  2 precompiled_charsmap  3 add_dummy_prefix  4 remove_extra_whitespaces  5 escape_whitespaces

A tag is `number << 3 | wire type`; wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes. The schema
doesn't use groups (3 and 4), which are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import VOCABULARY
from weighbridge.base.records import dataclass

NAME: Final = "tokenizer.model"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, UNKNOWN, LAST_TYPE = 1, 2, 6
F32 = struct.Struct("<f")

Value = int | bytes


@dataclass(frozen=True)
class SentencePieceModel:
    """The contents of a ModelProto. `ids`: of unk, bos, eos and pad."""

    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    model_type: int = UNIGRAM  # the schema's default
    byte_fallback: bool = False
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    charsmap: bytes = b""
    normalizer: str = ""
    ids: dict[str, int] = field(default_factory=dict)  # unk, bos, eos, pad


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Returns (value, offset after it) of the varint at `at`: at most 10 bytes, 7 bits each, lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise FormatError("the file ends inside a number", path=NAME, offset=at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise FormatError("a number has more than 10 bytes", path=NAME, offset=at)


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, Value, int]]:
    """Yields the fields of the message data[at:end]: (number, wire type, value, offset of the value)."""
    while at < end:
        start = at
        tag, at = varint(data, at, end)
        kind = tag & 7
        if kind == VARINT:
            value, after = varint(data, at, end)
            yield tag >> 3, kind, value, at
            at = after
            continue
        if kind == BYTES:
            size, at = varint(data, at, end)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise FormatError("not a SentencePiece model", path=NAME, offset=start, field="wire type", found=kind)
        if tag >> 3 == 0:
            raise FormatError("not a SentencePiece model", path=NAME, offset=start, field="field number", found=0)
        if size > end - at:
            raise FormatError(
                "a field is longer than its message", path=NAME, offset=at, expected=f"<= {end - at}", found=size
            )
        yield tag >> 3, kind, data[at : at + size], at
        at += size


def piece(data: bytes, at: int, end: int) -> tuple[bytes, float, int]:
    """Parses one SentencePiece message to (piece, score, type). Writers always use the field order 1, 2, 3 and one-byte
    lengths, which a fast path reads: models have up to 260,000 pieces."""
    text, score, kind = b"", 0.0, NORMAL
    if end - at >= 7 and data[at] == 0x0A and data[at + 1] < 0x80 and at + 2 + data[at + 1] <= end:
        stop = at + 2 + data[at + 1]
        text, left = data[at + 2 : stop], end - stop
        if left in (5, 7) and data[stop] == 0x15 and (left == 5 or (data[end - 2] == 0x18 and data[end - 1] < 0x80)):
            return text, F32.unpack_from(data, stop + 1)[0], data[end - 1] if left == 7 else NORMAL
    for number, wire, value, offset in fields(data, at, end):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and wire == FIXED32 and isinstance(value, bytes):
            score = F32.unpack(value)[0]
        elif number == 3 and isinstance(value, int):
            kind = value
        elif number <= 3:
            raise FormatError("a field has the wrong type", path=NAME, offset=offset, field=f"piece field {number}")
    return text, score, kind


def parse(data: bytes, name: str = NAME) -> SentencePieceModel:
    """Parses a file called `name`, with the SentencePiece library's checks: exactly one <unk>, no empty or duplicate
    piece."""
    texts: list[bytes] = []
    scores: list[float] = []
    types: list[int] = []
    specs: dict[str, Any] = {}
    try:
        for number, wire, _, at, end in messages(data):
            if number == 1 and wire == BYTES:
                text, score, kind = piece(data, at, end)
                texts.append(text)
                scores.append(score)
                types.append(kind)
            elif number in (2, 3) and wire == BYTES:
                specs |= read_spec(data, at, end, TRAINER if number == 2 else NORMALIZER)
        check(texts, types)
        return SentencePieceModel(decode(texts), scores, types, **arguments(specs))
    except FormatError as error:
        if name == NAME:
            raise
        raise FormatError(
            error.reason, path=name, offset=error.offset, field=error.field, expected=error.expected, found=error.found
        ) from None


def messages(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields the top-level fields as (number, wire type, tag offset, start, end), without copying bytes."""
    at, end = 0, len(data)
    while at < end:
        if data[at] == 0x0A and at + 1 < end and data[at + 1] < 0x80:  # a piece with a one-byte length
            size, start, tag = data[at + 1], at + 2, 0x0A
        else:
            tag, start = varint(data, at, end)
            if tag & 7 != BYTES:  # the schema has messages only at this level
                raise FormatError("not a SentencePiece model", path=NAME, offset=at, field="wire type", found=tag & 7)
            size, start = varint(data, start, end)
        if size > end - start:
            raise FormatError(
                "the file ends inside a piece", path=NAME, offset=at, expected=f"{size} bytes", found=end - start
            )
        yield tag >> 3, tag & 7, at, start, start + size
        at = start + size


TRAINER: Final = {3: "model_type", 35: "byte_fallback", 40: "unk", 41: "bos", 42: "eos", 43: "pad"}
NORMALIZER: Final = {1: "normalizer", 2: "charsmap", 3: "add_dummy_prefix", 4: "remove_extra_whitespaces"}
KINDS: Final[dict[str, type]] = {"normalizer": bytes, "charsmap": bytes}


def read_spec(data: bytes, at: int, end: int, names: dict[int, str]) -> dict[str, Value]:
    """Returns the named fields of a trainer or normalizer spec."""
    out: dict[str, Value] = {}
    for number, _, value, offset in fields(data, at, end):
        if (name := names.get(number)) is None:
            continue
        if not isinstance(value, KINDS.get(name, int)):
            raise FormatError("a field has the wrong type", path=NAME, offset=offset, field=name)
        out[name] = value
    return out


def arguments(specs: dict[str, Any]) -> dict[str, Any]:
    """Converts spec fields to arguments of `SentencePieceModel`. Ids are int32: -1 ("none") is the varint 2^64 - 1."""
    ids = {r: specs.pop(r) for r in ("unk", "bos", "eos", "pad") if r in specs}
    ids = {r: v - (1 << 64) if v >= 1 << 63 else v for r, v in ids.items()}
    for name in ("byte_fallback", "add_dummy_prefix", "remove_extra_whitespaces"):
        if name in specs:
            specs[name] = bool(specs[name])
    if "normalizer" in specs:
        specs["normalizer"] = specs["normalizer"].decode("utf-8", "replace")
    return {**specs, "ids": {"unk": 0, "bos": 1, "eos": 2, "pad": -1} | ids}  # the schema's defaults


def check(texts: list[bytes], types: list[int]) -> None:
    """Raises FormatError for a model that the SentencePiece library refuses (model_interface.cc,
    `InitializePieces`)."""
    if not texts or len(texts) > VOCABULARY:
        raise FormatError("not a vocabulary", path=NAME, expected=f"1..{VOCABULARY} pieces", found=len(texts))
    if len(set(texts)) != len(texts):
        seen: dict[bytes, int] = {}
        for i, text in enumerate(texts):
            if seen.setdefault(text, i) != i:
                field, found = f"pieces {seen[text]} and {i}", text.decode("utf-8", "replace")
                raise FormatError("a piece occurs twice", path=NAME, field=field, found=found)
    if b"" in texts:
        raise FormatError("a piece is empty", path=NAME, field=f"piece {texts.index(b'')}")
    if not NORMAL <= min(types) <= max(types) <= LAST_TYPE:
        bad = next(i for i, t in enumerate(types) if not NORMAL <= t <= LAST_TYPE)
        raise FormatError("unknown piece type", path=NAME, field=f"piece {bad}", expected="1..6", found=types[bad])
    if types.count(UNKNOWN) != 1:
        raise FormatError("not exactly one unknown piece", path=NAME, expected=1, found=types.count(UNKNOWN))


def decode(texts: list[bytes]) -> list[str]:
    try:
        return [t.decode("utf-8") for t in texts]
    except UnicodeDecodeError:
        bad = next(i for i, t in enumerate(texts) if t.decode("utf-8", "ignore").encode() != t)
        raise FormatError("a piece isn't UTF-8", path=NAME, field=f"piece {bad}", found=texts[bad]) from None


def number(value: int) -> bytes:
    """Encodes a varint; negative numbers as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_bytes(tag: int, value: bytes) -> bytes:
    return number(tag << 3 | BYTES) + number(len(value)) + value


def field_int(tag: int, value: int) -> bytes:
    return number(tag << 3 | VARINT) + number(value)


def dump(model: SentencePieceModel) -> bytes:
    """Encodes `model` as a ModelProto that the SentencePiece library loads: identity normalization, spaces escaped."""
    out = bytearray()
    for text, score, kind in zip(model.pieces, model.scores, model.types, strict=True):
        row = field_bytes(1, text.encode()) + b"\x15" + F32.pack(score)
        out += field_bytes(1, row if kind == NORMAL else row + field_int(3, kind))
    trainer = field_int(3, model.model_type) + field_int(4, len(model.pieces))
    trainer += field_int(35, model.byte_fallback)
    for tag, role in ((40, "unk"), (41, "bos"), (42, "eos"), (43, "pad")):
        index = model.ids.get(role, -1)
        trainer += field_int(tag, index)
        if 0 <= index < len(model.pieces):
            trainer += field_bytes(tag + 5, model.pieces[index].encode())
    rules = field_bytes(1, (model.normalizer or "identity").encode()) + field_bytes(2, model.charsmap)
    rules += field_int(3, model.add_dummy_prefix) + field_int(4, model.remove_extra_whitespaces) + field_int(5, True)
    return bytes(out) + field_bytes(2, trainer) + field_bytes(3, rules)
