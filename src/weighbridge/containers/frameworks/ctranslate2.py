"""CTranslate2's model.bin: a header and the variables, one after the other, without alignment.

    u32 version, text spec, u32 revision, u32 count
    variable   text name, u8 rank, u32 dims, u8 type, u32 bytes, data
    u32 count, aliases: text, text of the variable that it is
    text       u16 length with the NUL, bytes, NUL

Versions 4 to 6; older files don't state types. Aliases are tensors that share their bytes. In an int8 model a weight
is `weight / weight_scale` of its row. Reference: src/models/model.cc, include/ctranslate2/types.h of CTranslate2 4.8.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.base import Index, Region, Rule
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList, framed
from weighbridge.containers.rewritten import Replacement, tensor_parts
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.cursor import Cursor
from weighbridge.io.source import Source

NAME: Final = "ctranslate2"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(dict(COMMON))
#: Type -> its name here (types.h `DataType`).
DTYPES: Final[Mapping[int, str]] = MappingProxyType({0: "F32", 1: "I8", 2: "I16", 3: "I32", 4: "F16", 5: "BF16"})
VERSIONS: Final = range(4, 7)
_SCALE: Final = "_scale"
_NEAR: Final = 4096  # bytes that are read at once: names and shapes are between the data
_OLDER: Final = range(1, 4)


def recognise(probe: Probe) -> Hit | None:
    """A small version, then the name of a class that ends in Spec."""
    version, length = probe.number(0, "<I"), probe.number(4, "<H")
    if version is None or not length or not 0 < version <= 64 or length > 128:
        return None
    name = probe.at(6, length)
    text = name[:-1].decode("latin-1")
    if not name.endswith(b"Spec\0") or not text.isidentifier() or not text.isascii():
        return None
    return Hit(NAME, evidence=(f"CTranslate2 version {version}, {text}",), detail={"spec": text, "version": version})


def parse(source: Source) -> Index:
    """The variables in file order."""
    tensor_list, cursor = TensorList(NAME, source, RULES), Cursor(source)
    version = cursor.number("I", "version")
    if version not in VERSIONS:
        versions = f"{VERSIONS.start} to {VERSIONS.stop - 1}"
        if version in _OLDER:
            raise UnsupportedError(f"{source.name}: version {version} of CTranslate2's models doesn't state types",
                                   hint="convert the model again with a current CTranslate2")  # fmt: skip
        raise FormatError(
            "no version of CTranslate2's models", path=source.name, offset=0, expected=versions, found=version
        )
    spec = _text(cursor)
    revision = cursor.number("I", "revision")
    for _ in range(_count(cursor, "variables", 9)):
        at, name = cursor.offset, _text(cursor)
        rank = cursor.number("B", "rank")
        dims = cursor.numbers("I" * rank, "dims")
        kind = cursor.number("B", "type")
        nbytes = cursor.number("I", "bytes")
        tensor_list.add(
            name, DTYPES.get(kind), dims, cursor.offset, nbytes, kind=f"number {kind} of CTranslate2", at=at
        )
        cursor.skip(nbytes, name[:40] or "data")
        cursor.chunk = _NEAR
    for _ in range(_count(cursor, "aliases", 4)):
        at, alias, name = cursor.offset, _text(cursor), _text(cursor)
        if name not in tensor_list.entries:
            raise tensor_list.error("an alias of a variable that doesn't exist", alias, at, found=repr(name[:80]))
        for suffix in ("", _SCALE):  # that of a quantized weight's scales isn't written
            entry = tensor_list.entries.get(name + suffix)
            if entry is not None and alias + suffix not in tensor_list.entries:
                place = (entry.shape, entry.offset, entry.nbytes)
                tensor_list.add(alias + suffix, entry.dtype.name, *place, kind=entry.dtype, at=at)
    if cursor.left:
        raise FormatError("bytes after the aliases", path=source.name, offset=cursor.offset)
    return tensor_list.index({"spec": spec, "revision": str(revision)}, version)


def _count(cursor: Cursor, field: str, least: int) -> int:
    """A number of items, each of at least `least` bytes."""
    count = cursor.number("I", field)
    cursor.need(count * least, field)
    return count


def _text(cursor: Cursor) -> str:
    length = cursor.number("H", "text")
    data = cursor.take(length, "text")
    if not data.endswith(b"\0"):
        raise FormatError("a text has no NUL at its end", path=cursor.source.name, offset=cursor.offset)
    return data[:-1].decode("utf-8", "replace")


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "names and shapes")


def parts(index: Index, recoded: Collection[str] = ()) -> list[Replacement]:
    """The places of the variables. An alias is in the place of its variable."""
    return tensor_parts(index)
