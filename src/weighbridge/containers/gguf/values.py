"""The typed values of a GGUF: the possible types, how they are stored, and arrays that are decoded on access.

A value is a `KV(type, value)`; `type` is one of `SCALARS`, `str`, or `arr[...]` of these. The type belongs to the
value: llama.cpp looks up `block_count` as exactly u32, so a file that is read and written again must keep it.

Strings are UTF-8 by the specification, but llama.cpp accepts any bytes, and such files exist. Other bytes are decoded
with surrogate escapes, so that every byte survives a round trip.

Layout (docs/gguf.md, `gguf_metadata_value_t`): string = length, bytes; array = element type u32, count, elements back
to back. Lengths and counts are u64 (u32 in version 1).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, overload

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import GGUF_NESTING
from weighbridge.base.native import read_strings, skip_strings, string_offsets
from weighbridge.io.source import BytesSource, Source

# gguf_metadata_value_type, by id: name, struct code. No code: strings and arrays have no fixed size.
_TYPES: Final = (
    ("u8", "B"), ("i8", "b"), ("u16", "H"), ("i16", "h"), ("u32", "I"), ("i32", "i"), ("f32", "f"), ("bool", "?"),
    ("str", ""), ("arr", ""), ("u64", "Q"), ("i64", "q"), ("f64", "d"),
)  # fmt: skip
NAMES: Final = tuple(name for name, _ in _TYPES)
IDS: Final = MappingProxyType({name: i for i, (name, _) in enumerate(_TYPES)})
SCALARS: Final = MappingProxyType({name: code for name, code in _TYPES if code})  # type -> struct code
SIZES: Final = MappingProxyType({name: struct.calcsize("=" + code) for name, code in SCALARS.items()})
RANGES: Final = MappingProxyType(
    {t: (0, (1 << 8 * SIZES[t]) - 1) for t in ("u8", "u16", "u32", "u64")}
    | {t: (-(1 << 8 * SIZES[t] - 1), (1 << 8 * SIZES[t] - 1) - 1) for t in ("i8", "i16", "i32", "i64")}
)

_PAGE: Final = 4096
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"


class KV(NamedTuple):
    """A value with its GGUF type."""

    type: str
    value: Any


def text(raw: bytes) -> str:
    """The bytes of a string as text; invalid UTF-8 becomes surrogate escapes."""
    return raw.decode("utf-8", "surrogateescape")


def raw_text(value: str) -> bytes:
    """The bytes `text` came from. UsageError for a string that no bytes decode to (a lone surrogate)."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{value!r} can't be stored as UTF-8") from None


def element_type(kind: str) -> str | None:
    """`arr[x]` -> `x`; None for a type that isn't an array."""
    return kind[4:-1] if kind.startswith("arr[") and kind.endswith("]") else None


def check_type(kind: str) -> str:
    """`kind`, if GGUF has such a type; UsageError otherwise. `arr[arr]` is an array of arrays of different types."""
    inner, depth = kind, 0
    while (deeper := element_type(inner)) is not None:
        inner, depth = deeper, depth + 1
    if (inner not in IDS or (inner == "arr" and not depth)) or depth > GGUF_NESTING:
        raise UsageError(f"GGUF has no value type {kind!r}", hint=f"types: {', '.join(NAMES)}, arr[...] of these")
    return kind


class LazyArray(Sequence[Any]):
    """`length` elements of `type` at `offset` of a source, decoded on access.

    A vocabulary of 260,000 tokens costs nothing until it is read. Small arrays keep their bytes, so that they
    outlive the source; others are read again from the source on first use, and kept from then on.
    """

    __slots__ = ("_offsets", "_parts", "_raw", "length", "nbytes", "offset", "order", "source", "type", "width")

    def __init__(
        self, kind: str, count: int, source: Source, offset: int, nbytes: int, *,
        order: str = "<", width: int = 8, raw: bytes | None = None,
    ) -> None:  # fmt: skip
        self.type, self.length, self.source, self.offset, self.nbytes = kind, count, source, offset, nbytes
        self.order, self.width = order, width  # byte order, bytes of a length
        self._raw = raw
        self._offsets: Sequence[int] | None = None  # offsets of the strings in `raw`, and their end
        self._parts: list[LazyArray] | None = None  # elements that are arrays

    @property
    def raw(self) -> bytes:
        """The elements as stored."""
        if self._raw is None:
            self._raw = self.source.read(self.offset, self.nbytes)
        return self._raw

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            picked = range(self.length)[at]
            if picked.step == 1:
                return self._run(picked.start, picked.stop)
            return [self[i] for i in picked]
        index = at + self.length if at < 0 else at
        if not 0 <= index < self.length:
            raise IndexError(f"array of {self.length} elements has no element {at}")
        return self._run(index, index + 1)[0]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.length, 4096):
            yield from self._run(start, min(start + 4096, self.length))

    def tolist(self) -> list[Any]:
        """All elements as a new list (nested arrays as lists too)."""
        run = self._run(0, self.length)
        return run if self.type == "str" or self.type in SCALARS else [part.tolist() for part in run]

    def raw_strings(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The strings of a string array as bytes."""
        raw, offsets = self.raw, self._string_offsets()
        for i in range(self.length)[start:stop]:
            yield raw[offsets[i] + self.width : offsets[i + 1]]

    def _run(self, start: int, stop: int) -> list[Any]:
        """Elements start..stop."""
        if start >= stop:
            return []
        if self.type == "str":
            at = self._string_offsets()[start] if start else 0
            return read_strings(self.raw, at, stop - start, self.width, self.order == ">")[0]
        if self.type not in SCALARS:
            return self._nested()[start:stop]
        size = SIZES[self.type]
        view = memoryview(self.raw)[start * size : stop * size]
        if self.type == "bool":  # any byte but 0 is true, as in llama.cpp
            return [byte != 0 for byte in view]
        if self.order == _NATIVE:
            return view.cast(SCALARS[self.type]).tolist()  # type: ignore[call-overload,no-any-return]
        return list(struct.unpack(f"{self.order}{stop - start}{SCALARS[self.type]}", view))

    def _string_offsets(self) -> Sequence[int]:
        if self._offsets is None:
            self._offsets = string_offsets(self.raw, 0, self.length, self.width, self.order == ">")
        return self._offsets

    def _nested(self) -> list[LazyArray]:
        if self._parts is None:
            source, at, parts = BytesSource(self.raw, self.source.name), 0, []
            for _ in range(self.length):
                parts.append(nested(source, at, self.order, self.width))
                at = parts[-1].offset + parts[-1].nbytes
            self._parts = parts
        return self._parts

    @property
    def _form(self) -> tuple[str, int, int, str, int]:
        return self.type, self.length, self.nbytes, self.order, self.width

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyArray) and self._form == other._form:
            return self.raw == other.raw
        if isinstance(other, Sequence) and not isinstance(other, (str, bytes)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which aren't hashable

    def head(self, count: int = 4) -> list[Any]:
        """The first `count` elements, for display; fewer if they take more than a page."""
        if self._raw is not None or self.nbytes <= _PAGE:
            return self[:count]
        piece = self.source.read(self.offset, _PAGE)
        if self.type == "str":
            return read_strings(piece, 0, min(count, self.length), self.width, self.order == ">")[0]
        if self.type not in SIZES:
            return []
        few = min(count, _PAGE // SIZES[self.type])
        return LazyArray(self.type, few, self.source, 0, _PAGE, order=self.order, raw=piece)[:]

    def __repr__(self) -> str:
        few = self.head()
        return f"<{self.length} x {self.type}: {', '.join([*map(repr, few), *['...'] * (len(few) < self.length)])}>"


def nested(source: BytesSource, at: int, order: str, width: int) -> LazyArray:
    """The array that begins at `at` of a region that was walked before, so that its lengths are valid."""
    data = source.data
    kind, count = struct.unpack_from(order + ("IQ" if width == 8 else "II"), data, at)
    start, name = at + 4 + width, NAMES[kind]
    end = start
    if name in SIZES:
        end += count * SIZES[name]
    elif name == "str":
        end = skip_strings(data, start, count, width, order == ">")[0]
    else:
        inner = set()
        for _ in range(count):
            part = nested(source, end, order, width)
            inner.add(part.type)
            end = part.offset + part.nbytes
        name = array_of(inner)
    return LazyArray(name, count, source, start, end - start, order=order, width=width, raw=bytes(data[start:end]))


def array_of(inner: Iterable[str]) -> str:
    """The element type of an array of arrays: `arr[x]` if all are arrays of x, else `arr`."""
    kinds = set(inner)
    return f"arr[{kinds.pop()}]" if len(kinds) == 1 else "arr"


class Metadata(Mapping[str, Any]):
    """Keys and values of a GGUF in file order: `m[key]` is the Python value, `m.type(key)` its GGUF type."""

    __slots__ = ("_kvs",)

    def __init__(self, kvs: Mapping[str, KV] | Iterable[tuple[str, KV]] = ()) -> None:
        self._kvs = dict(kvs)

    def __getitem__(self, key: str) -> Any:
        return self._kvs[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._kvs)

    def __len__(self) -> int:
        return len(self._kvs)

    def kv(self, key: str) -> KV:
        """The value with its type; KeyError if it is absent."""
        return self._kvs[key]

    def type(self, key: str) -> str:
        return self._kvs[key].type

    def kvs(self) -> dict[str, KV]:
        """All values, as a new dict for `layout`."""
        return dict(self._kvs)

    def __repr__(self) -> str:
        return f"Metadata({self._kvs!r})"


def kvs(metadata: Mapping[str, Any]) -> dict[str, KV]:
    """Any mapping as typed values: a `Metadata`'s own, `KV`s unchanged, plain values by `infer`."""
    if isinstance(metadata, Metadata):
        return metadata.kvs()
    return {key: value if isinstance(value, KV) else infer(value) for key, value in metadata.items()}


def infer(value: Any) -> KV:
    """A plain Python value as a KV: the type that the reference converter would choose for it.

    Integers of an array become i32 where all fit, as in gguf-py; a lone one u32, because that is what llama.cpp's
    getters for hyper-parameters ask for.
    """
    if isinstance(value, LazyArray):
        return KV(f"arr[{value.type}]", value)
    if isinstance(value, (bytes, bytearray)):
        return KV("arr[u8]", value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return KV(f"arr[{_common(value)}]", value)
    return KV(_scalar(value, ("u32", "i32", "i64", "u64")), value)


def _scalar(value: Any, integers: Sequence[str]) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        for kind in integers:
            if RANGES[kind][0] <= value <= RANGES[kind][1]:
                return kind
        raise UsageError(f"{value} doesn't fit into 64 bits")
    if isinstance(value, float):
        return "f32"
    if isinstance(value, str):
        return "str"
    raise UsageError(f"GGUF has no type for values of {type(value).__name__}")


def _common(values: Sequence[Any]) -> str:
    """The element type that can store all of `values`."""
    if not values:
        raise UsageError("an empty list has no element type", hint="give it one: KV('arr[str]', [])")
    if all(isinstance(v, Sequence) and not isinstance(v, str) for v in values):
        return array_of(infer(v).type[4:-1] for v in values)
    kinds = {_scalar(v, ("i32", "u32", "i64", "u64")) for v in values}
    if len(kinds) == 1:
        return kinds.pop()
    if kinds <= set(RANGES):
        low, high = min(values), max(values)
        wide = next((k for k in ("u32", "i64", "u64") if RANGES[k][0] <= low and high <= RANGES[k][1]), None)
        if wide is not None:
            return wide
    elif kinds <= {*RANGES, "f32"}:
        return "f32"
    raise UsageError(f"no single GGUF type can store all of {str(list(values))[:80]}")
