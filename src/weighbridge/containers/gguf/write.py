"""The header of a new GGUF and the place of every tensor: version 3, little-endian, keys and tensors in the order
given, offsets contiguous and padded, the last one too, so that llama.cpp takes it (gguf.cpp) and the specification.

What llama.cpp could not load is refused here, before anything is written. Arrays read from another GGUF are copied as
bytes, without being decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from weighbridge.base import limits
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout, Slot
from weighbridge.containers.gguf.read import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, KEY_MAX, MAGIC, VERSION, padded
from weighbridge.containers.gguf.values import IDS, KV, SCALARS, LazyArray, check_type, element_type, infer, raw_text
from weighbridge.containers.gguf.values import kvs as typed

Tensors = Sequence[tuple[str, Spec]]
# No machine has larger pages to align to, and every tensor is padded by as much.
_ALIGNMENT_MAX: Final = 1 << 16


def layout(tensors: Tensors, metadata: Mapping[str, Any], *, alignment: int | None = None) -> Layout:
    """A GGUF of these tensors and key-values (`KV`s, a parsed file's `Metadata`, or plain values).

    `alignment` is what `general.alignment` in `metadata` says, else 32; another one is written as that key.
    """
    header, align = _header(tensors, metadata, alignment)
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


def _header(tensors: Tensors, metadata: Mapping[str, Any], alignment: int | None) -> tuple[bytes, int]:
    pairs = typed(metadata)
    align = _alignment(pairs, alignment)
    names = _names(tensors)
    head = struct.pack("<4sIQQ", MAGIC, VERSION, len(tensors), len(pairs))
    parts = chain([head], (_pair(key, kv) for key, kv in pairs.items()), _directory(tensors, names, align))
    return b"".join(parts), align


def _alignment(pairs: dict[str, KV], wanted: int | None) -> int:
    """The effective alignment; adds the key to `pairs` if it is needed."""
    stated = pairs[ALIGNMENT_KEY].value if ALIGNMENT_KEY in pairs else None
    align = wanted or stated or DEFAULT_ALIGNMENT
    # The specification requires a multiple of 8, llama.cpp a power of two of type u32.
    if not isinstance(align, int) or not 8 <= align <= _ALIGNMENT_MAX or align & (align - 1):
        hint = f"a power of two from 8 to {_ALIGNMENT_MAX}; 32 is the usual one"
        raise UsageError(f"a GGUF can't be aligned to {align}", hint=hint)
    if stated is not None and (stated != align or pairs[ALIGNMENT_KEY].type != "u32"):
        raise UsageError(f"{ALIGNMENT_KEY} is {pairs[ALIGNMENT_KEY]}, but the file is to be aligned to {align}")
    if stated is None and align != DEFAULT_ALIGNMENT:
        pairs[ALIGNMENT_KEY] = KV("u32", align)
    return align


# -- tensor directory ----------------------------------------------------------------------------------------------


def _names(tensors: Tensors) -> list[bytes]:
    names = [raw_text(name) for name, _ in tensors]
    for raw in names:
        if len(raw) > limits.GGUF_NAME:
            name = raw.decode(errors="replace")
            raise UsageError(f"tensor name {name!r} has {len(raw)} bytes; GGUF takes {limits.GGUF_NAME}")
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UsageError(f"two tensors are called {twice.decode(errors='replace')!r}")
    return names


def _directory(tensors: Tensors, names: list[bytes], align: int) -> Iterable[bytes]:
    offset = 0
    for (name, spec), raw in zip(tensors, names, strict=True):
        dims = spec.shape[::-1]
        if len(dims) > limits.GGUF_DIMS:
            raise UsageError(f"{name!r} has {len(dims)} dimensions; GGUF takes {limits.GGUF_DIMS}")
        if spec.dtype.ggml is None:
            raise UnsupportedError(f"{name!r} is {spec.dtype}, which GGUF has no type for", hint="cast it, to F16 say")
        if (dims[0] if dims else 1) % spec.dtype.block:
            raise UsageError(f"{name!r}: rows of {spec} aren't whole blocks of {spec.dtype.block} elements")
        form = f"<Q{len(raw)}sI{len(dims)}QIQ"
        yield struct.pack(form, len(raw), raw, len(dims), *dims, spec.dtype.ggml, offset)
        offset += padded(spec.nbytes, align)


# -- key-values ----------------------------------------------------------------------------------------------------


def _pair(key: str, kv: KV) -> bytes:
    raw = raw_text(key)
    if not 0 < len(raw) <= KEY_MAX:
        raise UsageError(f"a GGUF key has 1 to {KEY_MAX} bytes, not {len(raw)}")
    check_type(kv.type)
    try:
        kind = "arr" if kv.type.startswith("arr") else kv.type
        return _string(raw) + struct.pack("<I", IDS[kind]) + _value(kv)
    except (struct.error, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"{key} can't be stored as {kv.type}: {error}") from None


def _string(raw: bytes) -> bytes:
    return _LENGTH(len(raw)) + raw


_LENGTH: Final = struct.Struct("<Q").pack


def _value(kv: KV) -> bytes:
    inner = element_type(kv.type)
    if inner is not None:
        return _array(inner, kv.value)
    if kv.type == "str":
        return _string(raw_text(kv.value))
    return struct.pack("<" + SCALARS[kv.type], _bit(kv.value) if kv.type == "bool" else kv.value)


def _bit(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value!r} isn't a bool")
    return bool(value)


def _array(kind: str, values: Any) -> bytes:
    if isinstance(values, (str, bytes, bytearray)) and kind != "u8":
        raise TypeError(f"{type(values).__name__} isn't a list")
    head = struct.pack("<IQ", IDS["arr" if kind.startswith("arr") else kind], len(values))
    if isinstance(values, LazyArray) and values.type == kind and (values.order, values.width) == ("<", 8):
        return head + values.raw
    if kind == "str":
        return head + _strings(values)
    if kind.startswith("arr"):
        return head + b"".join(_array(*_nested(kind, v)) for v in values)
    if kind == "bool":
        return head + bytes(map(_bit, values))
    return head + struct.pack(f"<{len(values)}{SCALARS[kind]}", *values)


_TOGETHER: Final = 1 << 14  # texts: what is made of them on the way then takes a megabyte or two


def _strings(values: Sequence[str]) -> bytes:
    """Texts one after the other."""
    return b"".join(_run(values[at : at + _TOGETHER]) for at in range(0, len(values), _TOGETHER))


def _run(values: Sequence[str]) -> bytes:
    """Some texts, without a step of Python for each."""
    try:
        raws = list(map(str.encode, values))
    except (UnicodeEncodeError, TypeError):  # surrogate escapes, or what isn't text
        raws = list(map(raw_text, values))
    lengths = list(map(len, raws))
    heads = {length: _LENGTH(length) for length in set(lengths)}
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
