"""Scans ONNX models for tensors whose data is in other files. The graph's operators aren't read (`unsupported.py`).

The messages are those of onnx.proto; messages that hold no tensor are skipped. onnx sets every key of a tensor's
external data as an attribute of a Python object (onnx/external_data_helper.py), and opens the file that `location`
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.io.source import Source
from weighbridge.reports.scan.archive.streams import leads_out
from weighbridge.reports.scan.model import OverLimit, Part, Piece, escape

# For each message: the fields that are messages which may hold tensors.
_MESSAGES: Final[Mapping[str, Mapping[int, str]]] = MappingProxyType(
    {
        "model": {7: "graph", 20: "training", 25: "function"},
        "training": {1: "graph", 2: "graph"},
        "graph": {1: "node", 5: "tensor", 15: "sparse"},
        "function": {7: "node", 11: "attribute"},
        "node": {5: "attribute"},
        "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
        "sparse": {1: "tensor", 2: "tensor"},
        "tensor": {13: "entry"},
    }
)
_KEYS: Final = frozenset({b"location", b"offset", b"length", b"checksum", b"basepath"})
_FIELDS: Final = 2_000_000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = MappingProxyType({_FIXED64: 8, _FIXED32: 4})
_LONGEST: Final = 4096


def scan(part: Part) -> Iterator[Piece]:
    """Scans the external data of an ONNX model's tensors."""
    for key, value in _external_data(part.source):
        name = value.decode("utf-8", "replace")
        if key not in _KEYS:
            yield part.finding(
                "onnx/external-key", f"external data has the key {escape(key.decode('utf-8', 'replace'))!r}"
            )
        if key == b"basepath" or (key == b"location" and (leads_out(name) or "://" in name or name[1:2] == ":")):
            message = f"tensor data in {escape(name)}"
            yield part.finding("onnx/outside", message, consequence="Loaders read that file as weights.")


def _external_data(source: Source) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of external data."""
    stack, left = [("model", 0, source.size)], _FIELDS
    while stack:
        message, start, end = stack.pop()
        texts = {1: b"", 2: b""}
        for number, at, stop in _fields(source, start, end):
            left -= 1
            if left < 0:
                raise OverLimit(f"the ONNX model has more than {_FIELDS} fields")
            if message == "entry" and number in texts:
                texts[number] = source.read(at, min(stop - at, _LONGEST))
            elif message != "entry" and number in _MESSAGES[message]:
                stack.append((_MESSAGES[message][number], at, stop))
        if message == "entry":
            yield texts[1], texts[2]


def _fields(source: Source, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The length-delimited fields of a message: number, start and end."""
    while at < end:
        tag, at = _varint(source, at, end)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(source, at, end)
        elif kind == _BYTES:
            length, at = _varint(source, at, end)
            if length <= end - at:
                yield tag >> 3, at, at + length
            at += length
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise FormatError("a field has a type that ONNX doesn't use", path=source.name, offset=at)
        if at > end:
            raise FormatError("a field is longer than its message", path=source.name, offset=end)


def _varint(source: Source, at: int, end: int) -> tuple[int, int]:
    """A number, and the offset after it."""
    value = 0
    for place, byte in enumerate(source.read(at, min(10, end - at))):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise FormatError("a number has no end", path=source.name, offset=at)
