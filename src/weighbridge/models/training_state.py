"""A training checkpoint without pickles: a folder with one safetensors file for each part, and checkpoint.json.

    checkpoint.json          the structure: dicts, lists, tuples, numbers, texts; the place of each tensor
    model.safetensors        tensors of the part `model`, under the names of its state dict: any tool loads it
    optimizer.safetensors    tensors of the part `optimizer` ...

A folder rather than one file, so that the weights are a separate file that tools can load or copy without the rest.
JSON holds null, booleans, texts, lists, finite floats (as the shortest digits that restore them), integers of 64 bits
and dicts with text keys directly. Everything else is an object with one key that begins with `$`:

    {"$float": "nan"}  {"$int": "0x..."}  {"$bytes": "base64"}  {"$tuple": [...]}  {"$dict": [[key, value], ...]}
    {"$ordered": [[key, value], ...]}  {"$tensor": "file/name", "dtype": "F32", "shape": [...], "strides": [...] ...}
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import DIMS, TOKENIZER_JSON
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.base.state import DEPTH, KINDS, Ordered, Ref, extent, path_of, too_deep
from weighbridge.containers.base import Index
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.location import open_source
from weighbridge.models.jsonfile import decode as decode_json
from weighbridge.models.stored_tensors import node_builder

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

FILE: Final = "checkpoint.json"
_FORMAT, _VERSION = "weighbridge-checkpoint", 1
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,100}\Z")
_FLOATS: Final = MappingProxyType({"nan": math.nan, "inf": math.inf, "-inf": -math.inf})
_HEX: Final = re.compile(r"-?0x[0-9a-f]{1,5000}\Z")


# ------------------------------------------------------------------------------------------------ values to JSON


def encode(value: Any) -> bytes:
    """Returns checkpoint.json's bytes. Raises a UsageError that names a value that isn't data."""
    body = {"format": _FORMAT, "version": _VERSION, "state": _encoded(value, "", 0)}
    return json.dumps(body, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def _encoded(value: Any, path: str, depth: int) -> Any:
    too_deep(path, depth)

    def items(values: Iterable[Any]) -> list[Any]:
        return [_encoded(v, path_of(path, i), depth + 1) for i, v in enumerate(values)]

    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -(1 << 63) <= value < 1 << 63 else {"$int": hex(value)}
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case Ref():
            declared = {"$tensor": value.storage, "dtype": value.dtype, "shape": value.shape, "kind": value.kind}
            return {**declared, "strides": value.strides, "offset": value.offset}
        case list():
            return items(value)
        case tuple():
            return {"$tuple": items(value)}
        case dict():
            inner = [(k, _encoded(v, path_of(path, k), depth + 1)) for k, v in value.items()]
            if type(value) is dict and all(isinstance(k, str) and not k.startswith("$") for k in value):
                return dict(inner)
            pairs = [[_encoded(k, path, depth + 1), v] for k, v in inner]
            return {"$ordered" if isinstance(value, Ordered) else "$dict": pairs}
    raise UsageError(
        f"{path}: a {type(value).__name__} can't be saved as data", hint="save its state_dict(), or leave it out"
    )


# ------------------------------------------------------------------------------------------------ JSON to values


def decode(data: bytes, path: str) -> Any:
    """Returns the value of a checkpoint.json. Raises FormatError if it is invalid."""
    body = decode_json(data, path, dict[str, Any], TOKENIZER_JSON)
    if body.get("format") != _FORMAT:
        raise FormatError("not a checkpoint", path=path, field="format", expected=_FORMAT, found=body.get("format"))
    if body.get("version") != _VERSION:
        raise UnsupportedError(f"{path}: a checkpoint of version {body.get('version')}", hint="use a newer Weighbridge")
    return _Decoder(path).value(body.get("state"), 0)


class _Decoder:
    def __init__(self, path: str) -> None:
        self.path = path

    def bad(self, message: str, value: Any) -> FormatError:
        return FormatError(message, path=self.path, found=repr(value)[:80])

    def value(self, value: Any, depth: int) -> Any:
        if depth > 2 * DEPTH:
            raise self.bad("nested too deeply", depth)
        if isinstance(value, list):
            return [self.value(v, depth + 1) for v in value]
        if not isinstance(value, dict):
            return value
        tag = next((k for k in value if k.startswith("$")), None)
        if tag is None:
            return {k: self.value(v, depth + 1) for k, v in value.items()}
        if tag not in _TAGS or (len(value) > 1 and tag != "$tensor"):
            raise self.bad("an object of an unknown kind", tag)
        return _TAGS[tag](self, value if tag == "$tensor" else value[tag], depth + 1)

    def items(self, value: Any, depth: int) -> list[Any]:
        if not isinstance(value, list):
            raise self.bad("not a list", value)
        return [self.value(v, depth) for v in value]

    def pairs(self, value: Any, depth: int) -> dict[Any, Any]:
        if not isinstance(value, list) or not all(isinstance(p, list) and len(p) == 2 for p in value):
            raise self.bad("not pairs", value)
        keys = [self.value(p[0], depth) for p in value]
        if not all(_hashable(k) for k in keys):
            raise self.bad("not a key of a dict", keys)
        return dict(zip(keys, (self.value(p[1], depth) for p in value), strict=True))

    def number(self, value: Any, depth: int) -> float:
        if not isinstance(value, str) or value not in _FLOATS:
            raise self.bad("not a float", value)
        return _FLOATS[value]

    def integer(self, value: Any, depth: int) -> int:
        if not isinstance(value, str) or not _HEX.match(value):
            raise self.bad("not an integer", value)
        return int(value, 16)

    def raw(self, value: Any, depth: int) -> bytes:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise self.bad("not base64", value) from None

    def tensor(self, value: dict[str, Any], depth: int) -> Ref:
        storage, dtype, kind, offset = (value.get(k) for k in ("$tensor", "dtype", "kind", "offset"))
        shape, strides = (self.counts(value.get(k)) for k in ("shape", "strides"))
        good = isinstance(storage, str) and "/" in storage and isinstance(dtype, str) and dtype in BY_NAME
        if not good or kind not in KINDS or not _count(offset) or len(shape) != len(strides):
            raise self.bad("not a tensor", value)
        return Ref(str(storage), str(dtype), shape, strides, int(offset or 0), kind)

    def counts(self, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) > DIMS or not all(map(_count, value)):
            raise self.bad("not a shape", value)
        return tuple(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _hashable(key: Any) -> bool:
    if isinstance(key, tuple) and not isinstance(key, Ref):
        return all(map(_hashable, key))
    return key is None or isinstance(key, bool | int | float | str | bytes)


_TAGS: Final[Mapping[str, Callable[[_Decoder, Any, int], Any]]] = MappingProxyType(
    {
        "$float": _Decoder.number,
        "$int": _Decoder.integer,
        "$bytes": _Decoder.raw,
        "$tuple": lambda self, value, depth: tuple(self.items(value, depth)),
        "$dict": _Decoder.pairs,
        "$ordered": lambda self, value, depth: Ordered(self.pairs(value, depth)),
        "$tensor": _Decoder.tensor,
    }
)


# ------------------------------------------------------------------------------------------------ the folder


@dataclass(frozen=True)
class State(Closing):
    """A nested value with `Ref`s to `storages` ("file/name" -> node) in place of tensors."""

    value: Any
    storages: Mapping[str, Node]
    indexes: tuple[Index, ...] = ()

    def close(self) -> None:
        for index in self.indexes:
            index.close()


def is_checkpoint(folder: Path) -> bool:
    return (folder / FILE).is_file()


def read_state(folder: Path) -> State:
    """Reads the checkpoint in a folder: its structure, and nodes of its tensors. Raises a FormatError that names the
    invalid part."""
    path = str(folder / FILE)
    with open_source(folder / FILE) as source:
        if source.size > TOKENIZER_JSON:
            raise FormatError("the file is too large", path=source.name, expected=f"at most {TOKENIZER_JSON} bytes")
        value = decode(source.read(0, source.size), source.name)
    refs: list[Ref] = []
    _collect(value, refs)
    indexes: dict[str, Index] = {}
    storages: dict[str, Node] = {}
    try:
        for name in dict.fromkeys(r.storage.partition("/")[0] for r in refs):
            if not _FILE_NAME.match(name):
                raise FormatError("not a plain file name", path=path, found=name[:80])
            indexes[name] = safetensors.parse(open_source(folder / f"{name}.safetensors"))
            build = node_builder(indexes[name])
            storages |= {f"{name}/{e.name}": build(e) for e in indexes[name]}
        for ref in refs:  # each view has to be inside its storage
            found = ref.storage[:100]
            if ref.storage not in storages:
                raise FormatError("a tensor that is in no file", path=path, found=found)
            dtype, stored = BY_NAME[ref.dtype], storages[ref.storage].spec.nbytes
            if dtype.block > 1 and (Spec(ref.shape, dtype).nbytes != stored or ref.offset):
                raise FormatError(f"a view of {dtype}", path=path, found=found)
            end = (extent(ref.shape, ref.strides, ref.offset).last + 1) * dtype.size
            if stored % dtype.size or (dtype.block == 1 and end > stored):
                raise FormatError(f"a tensor beyond {stored} bytes", path=path, found=found)
    except BaseException:
        for index in indexes.values():
            index.close()
        raise
    return State(value, storages, tuple(indexes.values()))


def _collect(value: Any, refs: list[Ref]) -> None:
    if isinstance(value, Ref):
        refs.append(value)
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            _collect(part, refs)


def file_of(top: Any) -> str:
    """Returns the name, without suffix, of the safetensors file for the part `top`."""
    return top if isinstance(top, str) and _FILE_NAME.match(top) else "state"
