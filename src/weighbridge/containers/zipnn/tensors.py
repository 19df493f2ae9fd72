"""The tensors of Safetensors files that ZipNN encoded, decoded as they are read.

ZipNN replaces a tensor by a stream of type U8 (`stream.py`) under its name. The metadata's `znn_compressed_vectors` is
JSON: `{name: {"dtype": "bfloat16", "shape": "[2, 3]"}}`. Streams aren't read before their tensor is, or `examined`
checks them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

import msgspec

from weighbridge.base.dtypes import TABLE, U8, DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SIGNED_64
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Finding, Index
from weighbridge.containers.formats import ZIPNN_KEY as KEY
from weighbridge.containers.safetensors.rules import RULES
from weighbridge.containers.zipnn.stream import KINDS, LARGEST_RATIO, DecodedStreams, read_stream
from weighbridge.io.source import Source

_TORCH: Final = {row.torch: row for row in TABLE if row.torch}
_ENCODED: Final = frozenset(kind.type for kind in KINDS.values())


class EncodedTensor(msgspec.Struct, frozen=True):
    """A tensor as the metadata lists it."""

    dtype: str
    shape: str

    def spec(self) -> Spec | None:
        """Its type and shape; None if they are wrong."""
        dtype: DType | None = _TORCH.get(self.dtype)
        try:
            shape = tuple(msgspec.json.decode(self.shape, type=list[int]))
        except msgspec.MsgspecError:
            return None
        if dtype is None or dtype.name not in _ENCODED or any(not 0 <= n < SIGNED_64 for n in shape):
            return None
        return Spec(shape, dtype)


class EncodedTensorSource(Source):
    """The bytes of an encoded tensor, which are bytes [offset, offset + nbytes) of a file. `tensor`: its name, type and
    shape, which the stream has to repeat. Closing it leaves the file open."""

    coder, is_part = "ZipNN", True

    def __init__(self, file: Source, offset: int, nbytes: int, tensor: Entry) -> None:
        self.file, self.offset, self.nbytes, self.tensor = file, offset, nbytes, tensor
        self.name, self.size, self.remote = f"{file.name}::{tensor.name}", tensor.nbytes, file.remote

    @cached_property
    def decoded(self) -> DecodedStreams:
        """The stream. Raises FormatError unless it is that of the tensor."""
        stream = read_stream(window := self.file.window(self.offset, self.nbytes, self.name), 0)
        expected = self.nbytes, self.tensor.dtype.name, self.tensor.shape
        if (stream.packed, stream.kind.type, stream.shape) != expected or stream.size != self.size:
            raise FormatError("a ZipNN stream isn't that of its tensor", path=self.file.name, offset=self.offset,
                              field=self.tensor.name, expected=expected,
                              found=(stream.packed, stream.kind.type, stream.shape))  # fmt: skip
        return DecodedStreams(window, (stream,))

    def _readinto(self, offset: int, out: memoryview) -> int:
        return self.decoded._readinto(offset, out)

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.decoded.advise(ranges)


def examined(index: Index) -> Index:
    """As `decoded`, without tensors whose streams' headers or tables are wrong, and with findings about these."""
    index, path = decoded(index), index.files[0].name
    damaged = {entry.name: error for entry in index if (error := stream_error(index.files[entry.file])) is not None}
    findings = (
        Finding("safetensors/zipnn", RULES["zipnn"].severity, error.reason if isinstance(error, FormatError)
                else error.message, path, tensor=name)
        for name, error in damaged.items()
    )  # fmt: skip
    kept = tuple(entry for entry in index.entries if entry.name not in damaged)
    return replace(index, entries=kept, findings=(*index.findings, *findings))


def stream_error(file: Source) -> FormatError | UnsupportedError | None:
    """The error in a stream's header or tables."""
    try:
        if isinstance(file, EncodedTensorSource) and (chunk := next(file.decoded.chunks(0, file.size), None)):
            file.decoded.planes(chunk)
    except (FormatError, UnsupportedError) as error:
        return error
    return None


def decoded(index: Index) -> Index:
    """The index of a file with encoded tensors, with these decoded as they are read; their streams aren't read yet. The
    list in the metadata describes the file, not the model, and is removed. FormatError if it is wrong."""
    listed, files = listed_tensors(index), [*index.files]
    entries: list[Entry] = []
    for entry in index.entries:
        if (spec := listed.get(entry.name)) is not None:
            stored, entry = entry, Entry(entry.name, spec.dtype, spec.shape, 0, spec.nbytes, len(files))
            if stored.dtype is not U8 or spec.nbytes > stored.nbytes * LARGEST_RATIO:
                raise _wrong(index, f"{stored.dtype} of {stored.nbytes} bytes for {spec}")
            files.append(EncodedTensorSource(index.files[stored.file], stored.offset, stored.nbytes, entry))
        entries.append(entry)
    metadata = MappingProxyType({key: value for key, value in index.metadata.items() if key != KEY})
    starts = index.data_start + (0,) * (len(files) - len(index.files))
    return replace(index, files=tuple(files), entries=tuple(entries), metadata=metadata, data_start=starts)


def listed_tensors(index: Index) -> dict[str, Spec]:
    """The types and shapes of the encoded tensors, by name."""
    try:
        listed = msgspec.json.decode(index.metadata[KEY], type=dict[str, EncodedTensor])
    except msgspec.MsgspecError as error:
        raise _wrong(index, str(error)) from None
    specs = {name: tensor.spec() for name, tensor in listed.items()}
    if None in specs.values():
        raise _wrong(index, next(repr(listed[name]) for name, spec in specs.items() if spec is None))
    return {name: spec for name, spec in specs.items() if spec is not None}


def _wrong(index: Index, actual: str) -> FormatError:
    return FormatError("the list of ZipNN's tensors is wrong", path=index.files[0].name, field=KEY, found=actual[:200])
