"""HDF5 files as tensors: every dataset of numbers, by its path.

Contiguous datasets are read in place. Links and data in other files are never followed: they are findings. Datasets in
chunks (compressed ones, for the most part) are unpacked one row of chunks at a time. A dataset that no reader here
understands is left out, with a finding. Reference: HDF5 File Format Specification 3.0; the rules of Keras
(saving_lib.py `safe_get_h5_dataset`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import TABLE
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, HDF5_OBJECTS
from weighbridge.base.records import dataclass
from weighbridge.containers.base import Index, Region, Rule, Severity
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList, framed
from weighbridge.containers.hdf5 import attributes, datasets, links
from weighbridge.containers.hdf5 import headers as object_headers
from weighbridge.containers.hdf5.chunks import ChunkedSource
from weighbridge.containers.hdf5.heaps import GlobalHeap
from weighbridge.containers.hdf5.structure import Fields, Hdf5, starts
from weighbridge.io.source import Source

NAME: Final = "hdf5"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **COMMON,
        "outside": Rule(Severity.ERROR, "a link to another file, or data in one: it isn't followed"),
        "not-read": Rule(Severity.WARNING, "a dataset that is stored in a way that isn't read is left out"),
        "no-data": Rule(Severity.WARNING, "a dataset without data, which reads as its fill value, is left out"),
    }
)
_TEXT: Final = 1 << 20
#: The type that numpy gives ml_dtypes' numbers in HDF5 is only their size; Keras adds an attribute with the name.
_BY_NUMPY: Final = MappingProxyType({row.numpy: row.name for row in TABLE if row.numpy})
_FLOATS: Final = MappingProxyType(
    {(2, 5, 10): "F16", (2, 8, 7): "BF16", (4, 8, 23): "F32", (8, 11, 52): "F64"}  # bytes, exponent and mantissa bits
)
_INT, _FLOAT, _STRING, _OPAQUE, _ENUM, _ANY_LENGTH = 0, 1, 3, 5, 8, 9
_KINDS: Final = ("integer", "float", "time", "text", "bits", "opaque", "compound", "reference", "enum", "text", "array")


@dataclass
class _Object:
    """An object of the file: a group, a dataset, or a type. `text`: the values of its attributes that are texts."""

    links: list[links.Hdf5Link] = field(default_factory=list)
    text: dict[str, str] = field(default_factory=dict)
    kind: Fields | None = None
    space: Fields | None = None
    layout: object_headers.Message | None = None
    filtered: object_headers.Message | None = None
    outside: str = ""


def parse(source: Source) -> Index:
    """The datasets of a file, in the order of their paths."""
    places = starts(source)
    if not places:
        raise FormatError("not an HDF5 file", path=source.name, offset=0)
    return read(TensorList(NAME, source, RULES), source, places[0])


def read(tensor_list: TensorList, source: Source, base: int) -> Index:
    """The datasets of the file that begins at byte `base` of `source`, which may be a part of a larger one."""
    file = Hdf5(source, base)
    if file.declared not in (0, base):
        raise FormatError("the file's addresses count from another place", path=source.name, offset=base,
                          expected=base, found=file.declared)  # fmt: skip
    if file.driver is not None:
        raise UnsupportedError(f"{source.name}: its data is spread over several files")
    metadata: dict[str, str] = {}
    heap = GlobalHeap(file)
    objects: dict[int, _Object] = {}
    stack = [("", file.root)]
    left = HDF5_OBJECTS
    while stack:
        path, address = stack.pop()
        left -= 1
        if left < 0:
            raise UnsupportedError(f"{source.name} has more than {HDF5_OBJECTS:,} objects")
        if address in objects:
            if objects[address].layout is not None:  # one dataset under two names
                _add(tensor_list, file, path, objects[address], metadata)
            continue
        item = objects[address] = _object(file, heap, address)
        if not path:
            metadata |= {name: text for name, text in item.text.items() if "\0" not in text}
        if item.layout is not None:
            _add(tensor_list, file, path, item, metadata)
        elif item.links:
            item.text = {}  # large, and only the root's are of use
        for link in reversed(item.links):
            inner = f"{path}/{link.name}" if path else link.name
            if link.outside is not None or link.kind is not None:
                tensor_list.finding("outside", "a link to another file isn't followed", base + address, inner)
            elif link.address is not None:
                stack.append((inner, link.address))
    return tensor_list.index(metadata)


def _object(file: Hdf5, heap: GlobalHeap, address: int) -> _Object:
    """The parts of an object that matter here."""
    item = _Object()
    if address == file.root and file.cached is not None:
        item.links += links.of_table(file, *file.cached)
    for message in object_headers.messages(file, address):
        if message.kind == object_headers.DATATYPE:
            item.kind = object_headers.resolved(file, message.kind, message.body) if message.shared else message.body
        elif message.kind == object_headers.DATASPACE:
            item.space = object_headers.resolved(file, message.kind, message.body) if message.shared else message.body
        elif message.kind == object_headers.LAYOUT:
            item.layout = message
        elif message.kind == object_headers.FILTERS:
            item.filtered = message
        elif message.kind == object_headers.EXTERNAL:
            item.outside = "its data is in other files"
        elif message.kind in (object_headers.LINK, object_headers.SYMBOLS, object_headers.LINK_INFO):
            names = {link.name for link in item.links}
            item.links += [link for link in links.of_message(file, message) if link.name not in names]
        elif message.kind in (object_headers.ATTRIBUTE, object_headers.ATTRIBUTE_INFO):
            for attribute in attributes.of_message(file, heap, message):
                if len(attribute.values) == 1:
                    at, size = attribute.values[0]
                    file.pay(size := min(size, _TEXT))
                    raw = file.source.read(file.base + at, size).rstrip(b"\0")
                    item.text[attribute.name] = raw.decode("utf-8", "replace")
    return item


def _add(tensor_list: TensorList, file: Hdf5, path: str, item: _Object, root: Mapping[str, str]) -> None:
    """Adds a dataset, or a finding about it."""
    assert item.layout is not None
    at = item.layout.body.at
    if item.outside:
        tensor_list.finding("outside", f"left out: {item.outside}, which are never opened", at, path)
        return
    if item.kind is None or item.space is None:
        raise tensor_list.error("a dataset has no type or no shape", path, at)
    fields = _again(item.space)
    space = attributes.dataspace(fields)
    if space.version > 2 or space.rank > DIMS:
        raise FormatError("a dataset has an impossible shape", path=fields.name, offset=fields.at,
                          found=f"{space.rank} dimensions")  # fmt: skip
    shape = None if space.kind == attributes.NO_ELEMENT else tuple(fields.length() for _ in range(space.rank))
    kind, dtype, order = _dtype(_again(item.kind), item.text, "keras_version" in root)
    if kind in (_STRING, _ANY_LENGTH):
        tensor_list.finding("texts", "left out: texts", at, path)
        return
    spec = tensor_list.spec(path, dtype, shape or (), f"{_KINDS[kind] if kind < len(_KINDS) else kind}", at)
    if spec is None:
        return
    if shape is None:
        tensor_list.finding("no-data", "left out: an empty dataset without a shape", at, path)
        return
    layout, body = _again(item.layout.body), item.layout
    version, form = layout.numbers(1, 1)
    stored = datasets.stored(file, body._replace(body=_again(body.body)))
    if form == datasets.CHUNKED and version in (3, 4):
        try:
            chunked = ChunkedSource(file, path, layout, version, item.filtered, spec)
        except UnsupportedError as error:
            tensor_list.finding("not-read", f"left out: {error.message}", at, path)
            return
        number = tensor_list.add_source(chunked)
        tensor_list.add(path, dtype, spec.shape, 0, spec.nbytes, kind=kind, at=at, number=number, swap=order)
    elif stored is not None and version >= 3:
        tensor_list.add(path, dtype, spec.shape, file.base + stored[0], stored[1], kind=kind, at=at, swap=order)
    elif form == datasets.CONTIGUOUS and version >= 3:
        if spec.nbytes:
            tensor_list.finding("no-data", "left out: nothing was written to it", at, path)
        else:
            tensor_list.add(path, dtype, spec.shape, 0, 0, kind=kind, at=at)
    else:
        virtual = form == datasets.VIRTUAL
        rule, reason = (
            ("outside", "a view of other datasets") if virtual else ("not-read", f"version {version} of its layout")
        )
        tensor_list.finding(rule, f"left out: {reason}", at, path)


def _again(fields: Fields) -> Fields:
    """The same fields from their start."""
    return Fields(fields.data, fields.at, fields.offsets, fields.lengths, fields.name)


def _dtype(f: Fields, text: Mapping[str, str], keras: bool) -> tuple[int, str | None, bool]:
    """A datatype: its class, the name of the type, and whether it is big-endian."""
    kind, flags = f.number(1) & 15, f.number(3)
    size = f.number(4)
    swapped = bool(flags & 1)
    if kind == _INT:
        return kind, f"{'I' if flags & 8 else 'U'}{8 * size}", swapped and size > 1
    if kind == _FLOAT:
        _, _, _, exponent, _, mantissa = f.numbers(2, 2, 1, 1, 1, 1)
        return kind, _FLOATS.get((size, exponent, mantissa)), swapped
    if kind == _ENUM:
        inner = _dtype(f, {}, False)
        boolean = size == 1 and flags & 0xFFFF == 2 and f.data.find(b"FALSE\0") >= 0 and f.data.find(b"TRUE\0") >= 0
        return kind, "BOOL" if boolean else inner[1], inner[2]
    if kind == _OPAQUE:
        named = _BY_NUMPY.get(text.get("dtype", ""))
        return kind, named or ("BF16" if keras and size == 2 else None), False
    return kind, None, False


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "structure of the HDF5 file")
