"""The header of a new GGUF and the place of every tensor.

A written file has version 3 and is little-endian by default. Keys and tensors keep the given order; offsets are
contiguous, and every tensor is padded, the last one too, as the specification and llama.cpp (gguf.cpp) require.

Files that llama.cpp couldn't load are refused before anything is written. Arrays that were read from another GGUF are
copied as bytes, without being decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from weighbridge.base import limits
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers.base import Layout, Slot
from weighbridge.containers.gguf.read import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, KEY_MAX, MAGIC, VERSION, padded
from weighbridge.containers.gguf.values import IDS, KV, SCALARS, LazyArray, check_type, element_type, infer, raw_text
from weighbridge.containers.gguf.values import kvs as typed
from weighbridge.containers.sniff import diffusion

Tensors = Sequence[tuple[str, Spec]]
# No machine has larger pages to align to, and every tensor is padded by as much.
_ALIGNMENT_MAX: Final = 1 << 16


def layout(tensors: Tensors, metadata: Mapping[str, Any], *, alignment: int | None = None, order: str = "<") -> Layout:
    """A GGUF of these tensors and key-values (`KV`s, a parsed file's `Metadata`, or plain values).

    `alignment` defaults to `general.alignment` in `metadata`, else 32; a different one is written as that key.
    `order`: ">" for the header of a big-endian file.
    """
    header, align = _header(tensors, metadata, alignment, order)
    at, slots = padded(len(header), align) if tensors else len(header), []  # as the reference: nothing to align
    for name, spec in tensors:
        slots.append(Slot(name, spec, at))
        at += padded(spec.nbytes, align)
    return Layout("gguf", ((0, header),), tuple(slots), at)


def header_bytes(tensors: Tensors, metadata: Mapping[str, Any], *, alignment: int | None = None) -> bytes:
    """Everything before the tensor data, padding included."""
    header, align = _header(tensors, metadata, alignment)
    return header.ljust(padded(len(header), align), b"\0")


def header_size(tensors: Tensors, metadata: Mapping[str, Any], *, alignment: int | None = None) -> int:
    """The header's length: if it equals that of an existing file with the same tensors, metadata can be changed in
    place."""
    header, align = _header(tensors, metadata, alignment)
    return padded(len(header), align)


def _header(
    tensors: Tensors, metadata: Mapping[str, Any], alignment: int | None, order: str = "<"
) -> tuple[bytes, int]:
    pairs = typed(metadata)
    stated = pairs[ALIGNMENT_KEY].value if ALIGNMENT_KEY in pairs else None
    align = alignment or stated or DEFAULT_ALIGNMENT
    # The specification requires a multiple of 8, llama.cpp a power of two of type u32.
    if not isinstance(align, int) or not 8 <= align <= _ALIGNMENT_MAX or align & (align - 1):
        hint = f"a power of two from 8 to {_ALIGNMENT_MAX}; 32 is the usual one"
        raise UsageError(f"a GGUF can't be aligned to {align}", hint=hint)
    if stated is not None and (stated != align or pairs[ALIGNMENT_KEY].type != "u32"):
        raise UsageError(f"{ALIGNMENT_KEY} is {pairs[ALIGNMENT_KEY]}, but the file is to be aligned to {align}")
    if stated is None and align != DEFAULT_ALIGNMENT:
        pairs[ALIGNMENT_KEY] = KV("u32", align)
    directory = _directory(tensors, align, order, _bounds(tensors, pairs))
    head = struct.pack(f"{order}4sIQQ", MAGIC, VERSION, len(tensors), len(pairs))
    keys = (_pair(key, kv, order) for key, kv in pairs.items())
    return b"".join(chain([head], keys, directory)), align


# -- tensor directory ----------------------------------------------------------------------------------------------


class _Bounds(NamedTuple):
    """The most bytes of a name, and dimensions of a tensor, that the readers of a file take."""

    name: int
    dims: int


def _bounds(tensors: Tensors, pairs: Mapping[str, KV]) -> _Bounds:
    """The bounds of llama.cpp's reader, or those of ComfyUI-GGUF for a file of its architectures that needs them."""
    usual = _Bounds(limits.GGUF_NAME, limits.GGUF_DIMS)
    if all(len(raw_text(name)) <= usual.name and len(spec.shape) <= usual.dims for name, spec in tensors):
        return usual
    stated = pairs.get("general.architecture")
    pictures = stated is not None and stated.value in diffusion.architectures()
    return _Bounds(limits.GGUF_PICTURE_NAME, limits.GGUF_PICTURE_DIMS) if pictures else usual


def _directory(tensors: Tensors, align: int, order: str, bounds: _Bounds) -> list[bytes]:
    names = [raw_text(name) for name, _ in tensors]
    for raw in names:
        if len(raw) > bounds.name:
            name = raw.decode(errors="replace")
            raise UsageError(f"tensor name {name!r} has {len(raw)} bytes; GGUF takes {bounds.name}")
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UsageError(f"two tensors are called {twice.decode(errors='replace')!r}")
    entries, offset = [], 0
    for (name, spec), raw in zip(tensors, names, strict=True):
        dims = spec.shape[::-1]
        if len(dims) > bounds.dims:
            raise UsageError(f"{name!r} has {plural(len(dims), 'dimension')}; GGUF takes {bounds.dims}")
        if spec.dtype.ggml is None:
            raise UnsupportedError(f"{name!r} is {spec.dtype}, which GGUF has no type for", hint="cast it, to F16 say")
        if (dims[0] if dims else 1) % spec.dtype.block:
            raise UsageError(f"{name!r}: rows of {spec} aren't whole blocks of {spec.dtype.block} elements")
        form = f"{order}Q{len(raw)}sI{len(dims)}QIQ"
        entries.append(struct.pack(form, len(raw), raw, len(dims), *dims, spec.dtype.ggml, offset))
        offset += padded(spec.nbytes, align)
    return entries


# -- key-values ----------------------------------------------------------------------------------------------------


def _pair(key: str, kv: KV, order: str) -> bytes:
    raw = raw_text(key)
    if not 0 < len(raw) <= KEY_MAX:
        raise UsageError(f"a GGUF key has 1 to {KEY_MAX} bytes, not {len(raw)}")
    check_type(kv.type)
    inner = element_type(kv.type)
    try:
        head = _string(raw, order) + struct.pack(f"{order}I", IDS[kv.type if inner is None else "arr"])
        if inner is not None:
            return head + _array(inner, kv.value, order)
        if kv.type == "str":
            return head + _string(raw_text(kv.value), order)
        return head + struct.pack(order + SCALARS[kv.type], _bit(kv.value) if kv.type == "bool" else kv.value)
    except (struct.error, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"{key} can't be stored as {kv.type}: {error}") from None


def _string(raw: bytes, order: str) -> bytes:
    return struct.pack(f"{order}Q", len(raw)) + raw


def _bit(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value!r} isn't a bool")
    return bool(value)


def _array(kind: str, values: Any, order: str) -> bytes:
    if isinstance(values, (str, bytes, bytearray)) and kind != "u8":
        raise TypeError(f"{type(values).__name__} isn't a list")
    head = struct.pack(f"{order}IQ", IDS["arr" if kind.startswith("arr") else kind], len(values))
    if isinstance(values, LazyArray) and values.type == kind and (values.order, values.width) == (order, 8):
        return head + values.raw
    if kind == "str":
        runs = (values[at : at + _TOGETHER] for at in range(0, len(values), _TOGETHER))
        return head + b"".join(_strings(run, order) for run in runs)
    if kind.startswith("arr"):
        return head + b"".join(_array(*_nested(kind, v), order) for v in values)
    if kind == "bool":
        return head + bytes(map(_bit, values))
    return head + struct.pack(f"{order}{len(values)}{SCALARS[kind]}", *values)


_TOGETHER: Final = 1 << 14  # texts at a time: they take a megabyte or two of memory


def _strings(values: Sequence[str], order: str) -> bytes:
    """Some texts, without a step of Python for each."""
    try:
        raws = list(map(str.encode, values))
    except (UnicodeEncodeError, TypeError):  # surrogate escapes, or values that aren't text
        raws = list(map(raw_text, values))
    lengths = list(map(len, raws))
    heads = {length: struct.pack(f"{order}Q", length) for length in set(lengths)}
    return b"".join(chain.from_iterable(zip(map(heads.__getitem__, lengths), raws, strict=True)))


def _nested(kind: str, value: Any) -> tuple[str, Any]:
    """Element type and elements of an array inside an array; `arr` leaves the type to each one."""
    if isinstance(value, KV):
        kind, value = value
    elif kind == "arr":
        kind = infer(value).type
    inner = element_type(check_type(kind))
    if inner is None:
        raise TypeError(f"{kind} in an array of arrays")
    return inner, value
