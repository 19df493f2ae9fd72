"""GGUF bytes made by hand, right or wrong at will: nothing here uses our own writer or checks anything."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
# ggml types used here: id -> (elements, bytes) of a block.
BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    8: (32, 34),
    24: (1, 1),
    26: (1, 4),
    27: (1, 8),
    12: (256, 144),
    43: (1, 4),
}


@dataclass
class Item:
    """A value of an explicit type; an array has items of `element`."""

    type: int
    value: Any
    element: int | None = None


@dataclass
class Tensor:
    name: str | bytes
    dims: list[int]
    type: int = 0
    offset: int | None = None  # None: where it belongs
    n_dims: int | None = None

    def nbytes(self) -> int:
        elements, size = BLOCKS.get(self.type, (1, 1))
        product = 1
        for n in self.dims:
            product *= n
        return product // elements * size


@dataclass
class File:
    """Every count, offset and padding can be made wrong."""

    keys: list[tuple[str | bytes, Item]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    order: str = "<"
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32
    header_pad: bytes | None = None
    fill: bytes = b"\0"
    data: bytes | None = None  # None: as much as the tensors need
    trailing: bytes = b""

    @property
    def wide(self) -> str:
        return "I" if self.version == 1 else "Q"

    def string(self, raw: str | bytes) -> bytes:
        raw = raw.encode() if isinstance(raw, str) else raw
        return self.number(self.wide, len(raw)) + raw

    def number(self, code: str, value: Any) -> bytes:
        if isinstance(value, int) and code in "IQ":  # -1 means all ones
            value &= (1 << (32 if code == "I" else 64)) - 1
        return struct.pack(self.order + code, value)

    def item(self, item: Item) -> bytes:
        if item.type == STR:
            return self.string(item.value)
        if item.type != ARR:
            return self.number(CODES[item.type], item.value)
        if isinstance(item.value, bytes):  # an array whose bytes are given, count and all
            return self.number("I", item.element) + item.value
        assert item.element is not None
        head = self.number("I", item.element) + self.number(self.wide, len(item.value))
        if item.element == ARR:
            return head + b"".join(self.item(v) for v in item.value)
        return head + b"".join(self.item(Item(item.element, v)) for v in item.value)

    def key(self, key: str | bytes, item: Item) -> bytes:
        return self.string(key) + self.number("I", item.type) + self.item(item)

    def directory(self) -> bytes:
        out, offset = [], 0
        for t in self.tensors:
            count = len(t.dims) if t.n_dims is None else t.n_dims
            out += [self.string(t.name), self.number("I", count), *(self.number(self.wide, n) for n in t.dims)]
            out += [self.number("I", t.type), self.number("Q", offset if t.offset is None else t.offset)]
            offset += -(-t.nbytes() // self.alignment) * self.alignment
        return b"".join(out)

    def bytes(self) -> bytes:
        out = self.magic + self.number("I", self.version)
        out += self.number(self.wide, len(self.tensors) if self.n_tensors is None else self.n_tensors)
        out += self.number(self.wide, len(self.keys) if self.n_keys is None else self.n_keys)
        out += b"".join(self.key(k, v) for k, v in self.keys) + self.directory()
        out += self.fill * (-len(out) % self.alignment) if self.header_pad is None else self.header_pad
        if self.data is None:
            for t in self.tensors:
                size = t.nbytes()
                out += bytes(i % 251 for i in range(size)) + self.fill * (-size % self.alignment)
        else:
            out += self.data
        return out + self.trailing


def good() -> File:
    """One of everything, and three tensors."""
    return File(
        keys=[
            ("general.architecture", Item(STR, "llama")),
            ("general.quantization_version", Item(U32, 2)),
            ("llama.block_count", Item(U32, 2)),
            ("a.u8", Item(U8, 200)),
            ("a.i8", Item(I8, -100)),
            ("a.u16", Item(U16, 60_000)),
            ("a.i16", Item(I16, -30_000)),
            ("a.i32", Item(I32, -(1 << 31))),
            ("a.f32", Item(F32, 0.5)),
            ("a.bool", Item(BOOL, 1)),
            ("a.u64", Item(U64, 1 << 63)),
            ("a.i64", Item(I64, -(1 << 63))),
            ("a.f64", Item(F64, 0.1)),
            ("a.empty", Item(STR, "")),
            ("a.words", Item(ARR, ["", "a", "größer", "\n"], STR)),
            ("a.numbers", Item(ARR, [1, -2, 3], I32)),
            ("a.flags", Item(ARR, [1, 0], BOOL)),
            ("a.none", Item(ARR, [], F32)),
        ],
        tensors=[Tensor("x", [3, 2], 0), Tensor("blk.0.w", [64, 2], 8), Tensor("scalar", [], 1)],
    )
