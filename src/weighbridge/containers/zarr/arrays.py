"""Arrays of zarr 2 and 3: their metadata, and their chunks.

    X/.zarray                zarr 2: shape, chunks, dtype, order, compressor, dimension_separator
    X/0.1                    a chunk: row 0, column 1 of the grid
    X/zarr.json, X/c/0/1     zarr 3: data_type, chunk_grid, codecs; with `sharding_indexed` a chunk has chunks, and
                             at its end the u64 offset and length of each, then a CRC-32C

Specifications: zarr-specs.readthedocs.io, v2 and v3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from weighbridge.base.dtypes import BY_NAME, TABLE, DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, SIGNED_64
from weighbridge.base.spec import Shape, Spec
from weighbridge.containers.boxes import Box

#: The ends of the keys with an array's metadata.
ARRAYS: Final = ("/.zarray", "/zarr.json")
_LETTERS: Final = MappingProxyType({"f": "F", "i": "I", "u": "U", "b": "BOOL", "c": "C"})
_NAMED: Final[Mapping[str, DType]] = MappingProxyType({row.numpy: row for row in TABLE if row.numpy})
#: Codecs of chunks, as the metadata and `io/decompress.py` name them.
_CODECS: Final = frozenset({"zstd", "gzip", "zlib"})


class ZarrArray(NamedTuple):
    """`chunk`: the shape of a stored chunk; `inner`: of the chunks in it, if it is sharded; `codec`: of each, or "".
    `swap`: big-endian; `separator`: of the numbers in chunks' keys, which follow `X/c` if `nested`, else `X/`."""

    name: str
    spec: Spec
    chunk: Shape
    inner: Shape | None
    codec: str
    swap: bool
    nested: bool
    separator: str

    @property
    def grid(self) -> Shape:
        """The number of chunks along each axis."""
        return tuple(-(-n // size) for n, size in zip(self.spec.shape, self.chunk, strict=True))

    @property
    def piece(self) -> Shape:
        """The shape of what is decoded together."""
        return self.chunk if self.inner is None else self.inner

    @property
    def piece_bytes(self) -> int:
        return prod(self.piece) * self.spec.dtype.size

    @property
    def pieces(self) -> Shape:
        """The number of inner chunks of a chunk, along each axis; 1 without sharding."""
        return tuple(a // b for a, b in zip(self.chunk, self.piece, strict=True))

    def key(self, place: tuple[int, ...]) -> str:
        """The key of a chunk."""
        if self.nested:
            return self.separator.join([f"{self.name}/c", *map(str, place)])
        return f"{self.name}/{self.separator.join(map(str, place)) or 0}"

    def boxes(self) -> Iterator[tuple[tuple[int, ...], int, Box]]:
        """For each piece the place of its chunk, its number in it, and its box, which ends with the array."""
        whole = Box((0,) * len(self.chunk), self.spec.shape)
        for place in product(*map(range, self.grid)):
            first = [p * n for p, n in zip(place, self.chunk, strict=True)]
            for number, inside in enumerate(product(*map(range, self.pieces))):
                starts = tuple(f + i * n for f, i, n in zip(first, inside, self.piece, strict=True))
                yield place, number, Box(starts, self.piece).common(whole)


def read_array(name: str, data: bytes, path: str) -> ZarrArray:
    """The array that metadata of zarr 2 or 3 describes. Raises FormatError if it is wrong, UnsupportedError for types,
    orders and codecs that aren't read."""
    try:
        array = msgspec.json.decode(data, type=dict[str, Any])
        read = {2: _version_2, 3: _version_3}[array["zarr_format"]]
        result = read(name, array)
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise FormatError("the metadata of an array is wrong", path=path, field=name, found=str(error)[:80]) from None
    shape, chunk = result.spec.shape, result.chunk
    fits = len(shape) == len(chunk) == len(result.piece) <= DIMS and prod(shape) * result.spec.dtype.size < SIGNED_64
    if not fits or prod(chunk) >= SIGNED_64 or any(a % b for a, b in zip(chunk, result.piece, strict=True)):
        raise FormatError("the chunks of an array don't fit it", path=path, field=name, found=(shape, chunk))
    return result


def _shape(values: Any, least: int) -> Shape:
    """A list of numbers. Raises ValueError for any other value."""
    if not isinstance(values, list) or not all(type(n) is int and least <= n < SIGNED_64 for n in values):
        raise ValueError(f"{values!r} is no shape")
    return tuple(values)


def _version_2(name: str, array: Mapping[str, Any]) -> ZarrArray:
    dtype, separator = array["dtype"], array.get("dimension_separator", ".")
    codec = _codec(name, (array["compressor"] or {}).get("id"))
    if array["order"] != "C" or array.get("filters") or separator not in (".", "/"):
        raise UnsupportedError(f"{name}: an array of zarr in order {array['order']!r} or with filters")
    row = _NAMED.get(dtype)
    if row is None and dtype[:1] in "<>|":
        row = BY_NAME.get("BOOL" if dtype[1] == "b" else f"{_LETTERS.get(dtype[1])}{8 * int(dtype[2:])}")
    spec = Spec(_shape(array["shape"], 0), _known(name, row, dtype))
    return ZarrArray(name, spec, _shape(array["chunks"], 1), None, codec, dtype[0] == ">", False, separator)


def _version_3(name: str, array: Mapping[str, Any]) -> ZarrArray:
    grid, keys, codecs = array["chunk_grid"], array["chunk_key_encoding"], array["codecs"]
    if grid["name"] != "regular" or keys["name"] not in ("default", "v2"):
        raise UnsupportedError(f"{name}: an array of zarr with the grid {grid['name']}, the keys {keys['name']}")
    chunk, inner = _shape(grid["configuration"]["chunk_shape"], 1), None
    if codecs[0]["name"] == "sharding_indexed":
        settings = codecs[0]["configuration"]
        names = [codec["name"] for codec in settings["index_codecs"]]
        if len(codecs) > 1 or names != ["bytes", "crc32c"] or settings.get("index_location", "end") != "end":
            raise UnsupportedError(f"{name}: an array of zarr with shards that aren't read")
        inner, codecs = _shape(settings["chunk_shape"], 1), settings["codecs"]
    first, *rest = codecs
    if first["name"] != "bytes" or len(rest) > 1:
        raise UnsupportedError(f"{name}: an array of zarr with the codecs {[c['name'] for c in codecs]}")
    codec = _codec(name, rest[0]["name"] if rest else None)
    swap = (first.get("configuration") or {}).get("endian") == "big"
    default = {"default": "/", "v2": "."}[keys["name"]]
    separator = (keys.get("configuration") or {}).get("separator", default)
    row = _known(name, _NAMED.get(array["data_type"]), array["data_type"])
    return ZarrArray(
        name, Spec(_shape(array["shape"], 0), row), chunk, inner, codec, swap, keys["name"] == "default", separator
    )


def _codec(name: str, codec: str | None) -> str:
    if codec is not None and codec not in _CODECS:
        raise UnsupportedError(
            f"{name}: an array of zarr with the codec {codec!r}", hint="zstd, gzip and zlib are read"
        )
    return codec or ""


def _known(name: str, row: DType | None, dtype: object) -> DType:
    if row is None or row.block > 1:
        raise UnsupportedError(f"{name}: an array of zarr of the type {dtype!r}")
    return row
