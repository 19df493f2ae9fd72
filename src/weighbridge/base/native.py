"""The interface to the compiled extension, and the fallbacks without it.

`native` is the module `weighbridge._native`, or None with the `reason`. Numbers fall back to `tensors/reference/` (see
`tensors/kernels.py`), the walk over GGUF strings to the functions here, since parsers must not load numpy, and the walk
over pickles to the abstract machine. Both ways return the same results.

`WEIGHBRIDGE_SIMD` chooses an instruction-set level (baseline, avx2, avx512) or `none` for no extension at all.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from struct import Struct
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from weighbridge.base.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENVIRONMENT: Final = "WEIGHBRIDGE_SIMD"
Value = TypeVar("Value")


def _load() -> tuple[Any, str | None]:
    level = os.environ.get(ENVIRONMENT, "")
    if level == "none":
        return None, f"turned off by {ENVIRONMENT}=none"
    try:
        module: ModuleType = import_module("weighbridge._native")
    except ImportError as error:  # not built, or built for another Python or machine
        return None, str(error)
    if level:
        if level not in module.levels():
            raise UsageError(
                f"{ENVIRONMENT}={level}: this machine doesn't have that instruction-set level",
                hint=f"it has {', '.join(module.levels())}; none turns the native part off",
            )
        module.set_level(level)
    return module, None


native: Any
reason: str | None
native, reason = _load()

SLOW_JOB: Final = 64 << 20  # bytes that take the pure Python version about a minute


def slow_version() -> str | None:
    """One line about the pure Python version and why it is in use. None with the extension."""
    return None if native is not None else f"pure Python, about a hundred times slower than the kernels: {reason}"


# The length field of a string: u32 in GGUF version 1, u64 since.
_LENGTHS: Final = MappingProxyType(
    {(width, big): Struct("<>"[big] + code) for width, code in ((4, "I"), (8, "Q")) for big in (False, True)}
)
_MOST: Final = (1 << 63) - 1  # more strings than any buffer contains: a count from a file may be any number


def plain_pickle_end(data: Buffer, names: Buffer) -> tuple[int, list[tuple[str, int]]]:
    """The end of the pickle at the beginning of `data`, and the storages that it names, with their bytes.

    Returns 0 if the pickle isn't complete, if it has anything except plain data and tensors, if loaders may read it
    differently, or without the extension; the abstract machine (`unpickle/machine.py`) then decides. `names`: the table
    in native/pickles.hpp."""
    return native.plain_pickle_end(data, names) if native is not None else (0, [])


# The bits of 4 bytes of floats that are a sign, and an exponent.
_SIGNS: Final = MappingProxyType({16: (0x80008000, 0x7F807F80), 32: (0x80000000, 0x7F800000)})


def join_planes(count: int, sign: int, planes: bytes, out: memoryview) -> None:
    """Fills `out` with bytes of `count` planes, which follow each other: byte p, p + count ... from plane p. `sign`: 16
    or 32, the bits of floats whose sign comes after the exponent in whole 4 bytes; 0 for other values."""
    if hasattr(native, "join_planes"):
        native.join_planes(count, sign, planes, out)
        return
    joined, at = bytearray(len(planes)), 0
    for plane in range(count):
        size = (len(planes) - plane + count - 1) // count
        joined[plane::count] = planes[at : at + size]
        at += size
    whole = len(planes) // 4 * 4
    if sign and whole:  # as one long number: nothing else is as fast without numpy
        value = int.from_bytes(memoryview(joined)[:whole], "little")
        sign_bits, exponent_bits = (
            int.from_bytes(m.to_bytes(4, "little") * (whole // 4), "little") for m in _SIGNS[sign]
        )
        rest = value & ~(sign_bits | exponent_bits)
        joined[:whole] = (value << 8 & sign_bits | value >> 1 & exponent_bits | rest).to_bytes(whole, "little")
    out[:] = joined


def plain_safetensors(
    json: Buffer, types: Buffer, start: int, size: int, dtypes: tuple[Any, ...], entry: Callable[..., Value]
) -> tuple[dict[str, Value], dict[str, str]] | None:
    """`entry(name, dtype, shape, offset, bytes)` of each tensor by name, in the order of their bytes, and the metadata
    of a safetensors header. The file's data is `size` bytes from byte `start` on.

    Returns None unless the header has the usual spelling and no problem or oddity, and without the extension. `types`:
    the table in native/headers.hpp; `dtypes`: the objects of its rows."""
    return native.plain_safetensors(json, types, start, size, dtypes, entry) if native is not None else None


def gguf_merges(json: Buffer, tokens: dict[str, int]) -> tuple[int, bytes] | None:
    """The number of merges in an array of a tokenizer.json, and their GGUF strings. None unless the array has the usual
    spelling and all parts are `tokens`, and without the extension (or with an older one)."""
    walk = getattr(native, "gguf_merges", None)
    return walk(json, tokens) if walk is not None else None


def distinct_strings(buffer: Buffer, count: int, width: int, big_endian: bool) -> bool:
    """Whether a buffer begins with `count` complete strings that all differ, and none is empty or has a NUL."""
    if (walk := getattr(native, "distinct_strings", None)) is not None:
        return bool(walk(buffer, 0, min(count, _MOST), width, big_endian))
    texts = read_strings(buffer, 0, count, width, big_endian)[0]
    distinct = set(texts)
    return len(distinct) == count and "" not in distinct and "\0" not in "".join(distinct)


def skip_strings(buffer: Buffer, at: int, count: int, width: int, big_endian: bool) -> tuple[int, int]:
    """Skips up to `count` strings at `at`: the position after them and their number. Fewer than `count` if one isn't
    complete in the buffer (the position is then its start): the caller may read more."""
    if native is not None:
        position, done = native.skip_strings(buffer, at, min(count, _MOST), width, big_endian)
        return position, done
    data, unpack = memoryview(buffer).cast("B"), _LENGTHS[width, big_endian].unpack_from
    done, size, last = 0, len(data), len(data) - width
    while done < count and at <= last:
        end = at + width + unpack(data, at)[0]
        if end > size:
            break
        at = end
        done += 1
    return at, done


def string_offsets(buffer: Buffer, at: int, count: int, width: int, big_endian: bool) -> array[int]:
    """The offsets of up to `count` strings (of their length fields), and the end of the last. The text of string i
    is `buffer[offsets[i] + width : offsets[i + 1]]`."""
    data = memoryview(buffer).cast("B")
    most = min(count, max(len(data) - at, 0) // width)  # a string has at least its length
    if native is not None:
        out = array("q", bytes(8 * (most + 1)))
        done = native.string_offsets(data, at, width, big_endian, out)
        return out[: done + 1]
    offsets, unpack, size = array("q", [at]), _LENGTHS[width, big_endian].unpack_from, len(data)
    for _ in range(most):
        if at + width > size:
            break
        at += width + unpack(data, at)[0]
        if at > size:
            break
        offsets.append(at)
    return offsets


def read_strings(buffer: Buffer, at: int, count: int, width: int, big_endian: bool) -> tuple[list[str], int]:
    """Up to `count` strings as str, and the position after them. Invalid UTF-8 becomes lone surrogates
    (`surrogateescape`), so that it can be written back unchanged."""
    if native is not None:
        strings, position = native.read_strings(buffer, at, min(count, _MOST), width, big_endian)
        return strings, position
    data = memoryview(buffer).cast("B")
    offsets = string_offsets(data, at, count, width, big_endian)
    texts = [str(data[a + width : b], "utf-8", "surrogateescape") for a, b in pairwise(offsets)]
    return texts, offsets[-1]
