"""Flax's checkpoints: a msgpack map of maps, whose arrays are extensions.

    extension 1   an array: [shape, name of the type, bytes], itself msgpack
    extension 3   a number of numpy, written like an array without dimensions
    {"__msgpack_chunked_array__": true, "shape": {...}, "chunks": {...}}   an array of more than 2^30 bytes

Arrays are read in place, and named after their path in the maps, joined by dots. Other values (steps, texts) are
metadata. Written files equal those of `flax.serialization.msgpack_serialize` for the same nested dict. Reference:
flax/serialization.py of Flax 0.12, msgpack's spec.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import TABLE
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import DIMS, MSGPACK_DEPTH, MSGPACK_TEXT
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Index, Layout, Region, Rule, Slot
from weighbridge.containers.frameworks.pieces import Pieces
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList, framed
from weighbridge.containers.numpy.npy import no_metadata
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.cursor import Cursor
from weighbridge.io.source import Source

NAME: Final = "flax"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(dict(COMMON))
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
#: Name of a type in the file (numpy's and ml_dtypes') -> type.
DTYPES: Final[Mapping[str, str]] = MappingProxyType({row.numpy: row.name for row in TABLE if row.numpy})
_NAMES: Final = MappingProxyType({name: numpy for numpy, name in DTYPES.items()})
_CHUNKED: Final = "__msgpack_chunked_array__"
_MOST: Final = (1 << 30) - 1  # bytes of an array that Flax doesn't write in chunks


class _Token(NamedTuple):
    """A value's kind: "map" and "array" with their `length`, "bytes", "text" and "ext" with their place, or "plain".
    The kind of an extension is in `value`."""

    kind: str
    value: Any = None
    start: int = 0
    length: int = 0


# First byte -> kind, struct code of the length or number.
_HEADS: Final = MappingProxyType(
    {
        0xC4: ("bytes", "B"), 0xC5: ("bytes", "H"), 0xC6: ("bytes", "I"), 0xC7: ("ext", "B"), 0xC8: ("ext", "H"),
        0xC9: ("ext", "I"), 0xD9: ("text", "B"), 0xDA: ("text", "H"), 0xDB: ("text", "I"), 0xDC: ("array", "H"),
        0xDD: ("array", "I"), 0xDE: ("map", "H"), 0xDF: ("map", "I"), 0xCA: ("plain", "f"), 0xCB: ("plain", "d"),
        0xCC: ("plain", "B"), 0xCD: ("plain", "H"), 0xCE: ("plain", "I"), 0xCF: ("plain", "Q"), 0xD0: ("plain", "b"),
        0xD1: ("plain", "h"), 0xD2: ("plain", "i"), 0xD3: ("plain", "q"),
    }
)  # fmt: skip
_FIXED: Final = MappingProxyType({0xC0: None, 0xC2: False, 0xC3: True})


class _Reader:
    """Reads msgpack values. The payloads of extensions and bytes are skipped."""

    def __init__(self, source: Source, start: int, end: int) -> None:
        self.source, self.end = source, end
        self.cursor = Cursor(source, start, ">")

    def token(self) -> _Token:
        cursor = self.cursor
        head = cursor.take(1, "value")[0]
        if head <= 0x7F or head >= 0xE0:
            return _Token("plain", head if head <= 0x7F else head - 256)
        if head in _FIXED:
            return _Token("plain", _FIXED[head])
        if head <= 0x8F:
            return self._counted("map", head & 15)
        if head <= 0x9F:
            return self._counted("array", head & 15)
        if head <= 0xBF:
            return self._counted("text", head & 31)
        if 0xD4 <= head <= 0xD8:
            return self._counted("ext", 1 << (head - 0xD4))
        if head not in _HEADS:
            raise self.error("a byte that msgpack doesn't use")
        kind, code = _HEADS[head]
        (value,) = struct.unpack(f">{code}", cursor.take(struct.calcsize(code), "length"))
        return _Token("plain", value) if kind == "plain" else self._counted(kind, value)

    def _counted(self, kind: str, length: int) -> _Token:
        cursor, number = self.cursor, None
        if kind == "ext":
            number = struct.unpack("b", cursor.take(1, "extension"))[0]
        start = cursor.offset
        if length * (2 if kind == "map" else 1) > self.end - start:  # each value has a byte
            raise self.error("a value is longer than its file")
        if kind in ("ext", "bytes", "text"):
            cursor.offset += length
        return _Token(kind, number, start, length)

    def text(self, token: _Token) -> str:
        if token.kind != "text" or token.length > MSGPACK_TEXT:
            raise self.error("a key that isn't a text, or a long one")
        return self.source.read(token.start, token.length).decode("utf-8", "replace")

    def error(self, reason: str) -> FormatError:
        return FormatError(reason, path=self.source.name, offset=self.cursor.offset)


class _Array(NamedTuple):
    """An array, whose bytes are in [start, end)."""

    shape: tuple[int, ...]
    dtype: str
    start: int
    end: int


def recognise(probe: Probe) -> Hit | None:
    """A msgpack map whose first array comes before anything that isn't a map."""
    if not probe.head or not (0x81 <= probe.head[0] <= 0x8F or probe.head[0] in (0xDE, 0xDF)):
        return None
    try:
        reader = _Reader(probe.source, 0, probe.size)
        reader.token()
        for _ in range(MSGPACK_DEPTH):
            reader.text(reader.token())
            while (token := reader.token()).kind == "plain":  # a step before the weights
                reader.text(reader.token())
            if token.kind == "ext":
                array = _array(reader, token)
                return Hit(NAME, evidence=(f"msgpack map of arrays, the first {array.dtype}{list(array.shape)}",))
            if token.kind != "map" or not token.length:
                return None
    except (FormatError, UnsupportedError):
        pass
    return None


def _array(reader: _Reader, token: _Token) -> _Array:
    """The array in an extension."""
    inner = _Reader(reader.source, token.start, token.start + token.length)
    if token.value not in (_ARRAY, _SCALAR):
        raise reader.error(f"an extension of type {token.value}, which Flax doesn't write")
    outer, dims = inner.token(), inner.token()
    if (outer.kind, outer.length, dims.kind) != ("array", 3, "array") or dims.length > DIMS:
        raise inner.error("an array that isn't [shape, type, bytes]")
    shape = [inner.token().value for _ in range(dims.length)]
    dtype, data = inner.text(inner.token()), inner.token()
    if data.kind != "bytes" or any(type(n) is not int for n in shape) or data.start + data.length > inner.end:
        raise inner.error("an array that isn't [shape, type, bytes]")
    return _Array(tuple(shape), dtype, data.start, data.start + data.length)


def parse(source: Source) -> Index:
    """The arrays in file order; plain values as metadata."""
    tensor_list, metadata = TensorList(NAME, source, RULES), dict[str, str]()
    reader = _Reader(source, 0, source.size)
    token = reader.token()
    if token.kind != "map":
        raise FormatError("not a map of arrays", path=source.name, offset=0, expected="a msgpack map", found=token.kind)
    _read_map(tensor_list, reader, "", token.length, 0, metadata)
    if reader.cursor.offset != source.size:
        raise FormatError("bytes after the map", path=source.name, offset=reader.cursor.offset)
    return tensor_list.index(metadata)


def _read_map(
    tensor_list: TensorList, reader: _Reader, path: str, count: int, depth: int, metadata: dict[str, str]
) -> None:
    if depth > MSGPACK_DEPTH:
        raise UnsupportedError(f"{reader.source.name}: maps are nested more than {MSGPACK_DEPTH} deep")
    for _ in range(count):
        key = reader.text(reader.token())
        name = f"{path}.{key}" if path else key
        token = reader.token()
        if key == _CHUNKED and token.value is True and count == 3:
            _read_chunked(tensor_list, reader, path)
            return
        if token.kind == "map":
            _read_map(tensor_list, reader, name, token.length, depth + 1, metadata)
        elif token.kind == "ext" and token.value in (_ARRAY, _SCALAR):
            array = _array(reader, token)
            size = array.end - array.start
            tensor_list.add(
                name, DTYPES.get(array.dtype), array.shape, array.start, size, kind=array.dtype[:40], at=token.start
            )
        elif token.kind == "plain":
            metadata[name] = str(token.value)
        elif token.kind == "text":
            metadata[name] = reader.text(token)
        elif (token.kind == "ext" and token.value == _COMPLEX) or token.kind == "bytes":
            metadata[name] = f"{token.length} bytes"
        elif token.kind == "array":
            left = token.length
            while left:  # its values, and theirs, are skipped
                inner = reader.token()
                left += {"map": 2, "array": 1}.get(inner.kind, 0) * inner.length - 1
            metadata[name] = f"a list of {token.length}"
        else:
            raise reader.error("a value that Flax doesn't write")


def _numbered(reader: _Reader, key: str) -> int:
    """The size of a map of "0", "1" ... that follows the key `key`."""
    token = reader.token()
    if reader.text(token) != key or (token := reader.token()).kind != "map":
        raise reader.error("an array in chunks that has no shape or no chunks")
    return token.length


def _read_chunked(tensor_list: TensorList, reader: _Reader, path: str) -> None:
    """An array in chunks, which are flat."""
    at = reader.cursor.offset
    shape = []
    for n in range(_numbered(reader, "shape")):
        if reader.text(reader.token()) != str(n) or type(size := reader.token().value) is not int or n > DIMS:
            raise reader.error("an array in chunks whose shape isn't in order")
        shape.append(size)
    pieces: list[tuple[int, int]] = []
    dtype = ""
    for n in range(_numbered(reader, "chunks")):
        if reader.text(reader.token()) != str(n) or (token := reader.token()).kind != "ext":
            raise reader.error("an array in chunks that aren't in order")
        array = _array(reader, token)
        if n and array.dtype != dtype:
            raise reader.error("an array in chunks of several types")
        dtype = array.dtype
        pieces.append((array.start, array.end - array.start))
    number = tensor_list.add_source(Pieces(reader.source, pieces, path))
    size = sum(length for _, length in pieces)
    tensor_list.add(path, DTYPES.get(dtype), shape, 0, size, kind=dtype[:40], at=at, number=number)


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "msgpack")


# ---- writing --------------------------------------------------------------------------------------------------


def layout(tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any] | None = None) -> Layout:
    """A file of these tensors, in maps by the parts of their names. Types without a name in numpy or ml_dtypes, and
    tensors of 1 GiB, are refused. The format has no metadata."""
    tree: dict[str, Any] = {}
    for name, spec in tensors:
        if spec.dtype.name not in _NAMES:
            raise UnsupportedError(f"tensor {name!r} is {spec.dtype}, for which numpy has no name", hint="--dtype f32")
        if spec.nbytes > _MOST:
            raise UnsupportedError(f"tensor {name!r} has {spec.nbytes:,} bytes; Flax writes at most 1 GiB in one piece",
                                   hint="write .safetensors, which Flax reads through safetensors.flax")  # fmt: skip
        node, *keys, last = tree, *name.split(".")
        for key in keys:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise UsageError(f"tensor {name!r} is below another tensor", hint="rename one of them")
        if last in node:
            raise UsageError(f"two tensors are called {name!r}, or one is below another", hint="rename one of them")
        node[last] = (name, spec)
    pieces: list[tuple[int, bytes]] = []
    slots: list[Slot] = []
    at = 0
    for item in _items(tree):
        if isinstance(item, bytes):
            pieces.append((at, item))
            at += len(item)
        else:
            slots.append(Slot(*item, at))
            at += item[1].nbytes
    return Layout(NAME, tuple(pieces), tuple(slots), at, no_metadata(metadata))


def _items(tree: Mapping[str, Any]) -> Iterator[bytes | tuple[str, Spec]]:
    """The bytes of a map, and in their places its tensors."""
    yield _head(len(tree), 0x80, 15, (0xDE, 0xDF), ("", "H", "I"))
    for key, value in tree.items():
        text = key.encode()
        yield _head(len(text), 0xA0, 31, (0xD9, 0xDA, 0xDB)) + text
        if isinstance(value, dict):
            yield from _items(value)
            continue
        _, spec = value
        numpy = _NAMES[spec.dtype.name].encode()
        shape = b"".join(_head(n, 0, 0x7F, (0xCC, 0xCD, 0xCE, 0xCF), "BHIQ") for n in spec.shape)
        inner = b"\x93" + _head(len(spec.shape), 0x90, 15, (0xDC, 0xDD), ("", "H", "I")) + shape
        inner += _head(len(numpy), 0xA0, 31, (0xD9, 0xDA, 0xDB)) + numpy
        inner += _head(spec.nbytes, 0, -1, (0xC4, 0xC5, 0xC6))
        size = len(inner) + spec.nbytes
        power = size.bit_length() - 1 if size & (size - 1) == 0 else -1
        head = bytes((0xD4 + power,)) if 0 <= power <= 4 else _head(size, 0, -1, (0xC7, 0xC8, 0xC9))
        yield head + bytes((_ARRAY,)) + inner
        yield value


def _head(length: int, fixed: int, most: int, heads: Sequence[int], codes: Sequence[str] = ("B", "H", "I")) -> bytes:
    """The head of a value, or an integer: one byte up to `most`, or one of `heads` and the length."""
    if length <= most:
        return bytes((fixed | length,))
    codes = [code for code in codes if code]
    for head, code in zip(heads, codes, strict=True):
        if length < 1 << 8 * struct.calcsize(code):
            return bytes((head,)) + struct.pack(f">{code}", length)
    raise UnsupportedError("a value is too long for msgpack")
