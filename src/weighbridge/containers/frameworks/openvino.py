"""OpenVINO's intermediate representation: NAME.xml describes the graph, NAME.bin has the constants, without alignment.

    <layer name="w" type="Const"><data element_type="f32" shape="2, 3" offset="0" size="24"/>

The XML is read by expat, which opens nothing: a document type is refused, and entities with it. Compressed weights are
constants of integers, followed by Convert, Subtract and Multiply. All of their constants are tensors here. Reference:
IR versions 10 and 11 of OpenVINO 2026.4 (ir_deserializer).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Final
from xml.parsers import expat

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, XML_DEPTH, XML_GRAPH
from weighbridge.containers.base import Index, Region, Rule
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.source import Source

NAME: Final = "openvino"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(dict(COMMON))
#: element_type -> type. Also: string, nf4, dynamic.
DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "f32": "F32", "f16": "F16", "bf16": "BF16", "f64": "F64", "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64",
        "u8": "U8", "u16": "U16", "u32": "U32", "u64": "U64", "boolean": "BOOL", "f8e4m3": "F8_E4M3",
        "f8e5m2": "F8_E5M2", "f8e8m0": "F8_E8M0", "f4e2m1": "F4", "u4": "U4", "i4": "I4", "nf4": "U4", "u3": "U3",
        "u2": "U2", "u1": "U1",
    }
)  # fmt: skip
_STEP: Final = 1 << 16
_VERSIONS: Final = ("10", "11")


def recognise(probe: Probe) -> Hit | None:
    """An XML document whose root is <net name= version=>."""
    text = probe.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"<?xml"):
        text = text.partition(b"?>")[2].lstrip()
    tag = text[: text.find(b">")] if text.startswith(b"<net ") else b""
    if b"version=" not in tag or b"<layers" not in probe.head:
        return None
    return Hit(NAME, evidence=("XML document <net> (OpenVINO)",))


class _Graph:
    """Collects the constants while expat reads."""

    def __init__(self, tensor_list: TensorList, data: str) -> None:
        self.tensor_list, self.data, self.path = tensor_list, data, list[str]()
        self.name, self.layer, self.metadata = "", "", dict[str, str]()
        self.version: int | None = None
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.buffer_text = True

    def _doctype(self, *_: object) -> None:
        raise self._error("a document type, which OpenVINO doesn't write")

    def _error(self, reason: str, field: str | None = None, actual: str | None = None) -> FormatError:
        at = max(self.parser.CurrentByteIndex, 0)
        return FormatError(reason, path=self.tensor_list.source.name, offset=at, field=field, found=actual)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self.path) >= XML_DEPTH:
            raise UnsupportedError(f"{self.tensor_list.source.name}: elements are nested more than {XML_DEPTH} deep")
        self.path.append(tag)
        if len(self.path) == 1:
            if tag != "net" or attributes.get("version") not in _VERSIONS:
                raise UnsupportedError(f"{self.tensor_list.source.name}: no OpenVINO model of version 10 or 11")
            self.version = int(attributes["version"])
            self.metadata["name"] = attributes.get("name", "")
        elif tag == "layer":
            self.name, self.layer = attributes.get("name", ""), attributes.get("type", "")
        elif tag == "data" and self.layer == "Const" and self.path[-2:-1] == ["layer"]:
            at, kind = self.parser.CurrentByteIndex, attributes.get("element_type", "")
            for key in ("offset", "size"):
                text = attributes.get(key, "")
                if not (text.isascii() and text.isdigit() and len(text) < 20):
                    reason = f"the {key} of a constant is no number"
                    raise self._error(reason, field=self.name[:80], actual=repr(text[:40]))
            offset, size = int(attributes["offset"]), int(attributes["size"])
            dims = [text.strip() for text in attributes.get("shape", "").split(",") if text.strip()]
            if len(dims) > DIMS or not all(text.isascii() and text.isdigit() and len(text) < 20 for text in dims):
                raise self._error("the shape of a constant can't be read", field=self.name[:80])
            if kind == "string":
                self.tensor_list.finding("texts", "left out: texts", at, self.name)
                return
            shape = [int(text) for text in dims]
            self.tensor_list.add(
                self.name, DTYPES.get(kind), shape, offset, size, kind=kind[:40], file=self.data, at=at
            )

    def _end(self, tag: str) -> None:
        self.path.pop()


def parse(source: Source) -> Index:
    """The constants in the order of their layers."""
    if source.size > XML_GRAPH:
        raise UnsupportedError(f"{source.name}: the graph has more than {XML_GRAPH:,} bytes")
    graph = _Graph(TensorList(NAME, source, RULES), f"{PurePath(source.name).stem}.bin")
    try:
        for at in range(0, source.size, _STEP):
            graph.parser.Parse(source.read(at, min(_STEP, source.size - at)), False)
        graph.parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise FormatError(f"the XML can't be read: {expat.ErrorString(error.code)}", path=source.name,
                          offset=max(graph.parser.ErrorByteIndex, 0)) from None  # fmt: skip
    return graph.tensor_list.index(graph.metadata, graph.version)


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named: it is one text."""
    return [Region(0, source.size, "value", "XML of the graph")] if source.size else []
