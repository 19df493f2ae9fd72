"""Files from tensors in memory and back: the functions under the drop-in's framework modules."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import BY_SAFETENSORS
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.sink import Sink
from weighbridge.io.source import BytesSource

#: torch's and numpy's names of the types that a file holds.
_TYPES: Final = MappingProxyType({name: t for t in BY_SAFETENSORS.values() for name in (t.numpy, t.torch) if name})


class SafetensorError(Exception):
    """A problem of a file or of a request."""


SafetensorError.__module__ = "safetensors"


class TensorSpec:
    """A tensor in memory: `data_len` bytes at address `data_ptr`, which must stay valid while it is saved. `shape`
    counts pairs for 4-bit floats, as torch does."""

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        row = _TYPES.get(dtype)
        if row is None:
            raise SafetensorError(f'Unknown dtype "{dtype}". Supported dtypes: {", ".join(_TYPES)}')
        *lead, last = shape or (1,)
        logical = (*lead, last * row.block) if len(shape) else ()
        self.spec, self.dtype, self.shape = Spec(tuple(logical), row), row.safetensors, list(logical)
        self.data_ptr, self.data_len = data_ptr, data_len

    def view(self) -> memoryview:
        """Its bytes, not copied. SafetensorError if their number doesn't match dtype and shape."""
        if self.data_len != self.spec.nbytes:
            raise SafetensorError(f"{self.data_len} bytes for a tensor of {self.spec}")
        return memoryview((ctypes.c_ubyte * self.data_len).from_address(self.data_ptr)).cast("B")


Tensors = Mapping[str, TensorSpec]


def serialize(tensor_dict: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file. TypeError for values other than TensorSpec, SafetensorError if a file can't store them."""
    layout = _layout(tensor_dict, metadata)
    out = bytearray(layout.size)

    def write(offset: int, piece: bytes | memoryview) -> None:
        out[offset : offset + len(piece)] = piece

    _write(layout, tensor_dict, write)
    return bytes(out)


def serialize_file(
    tensor_dict: Tensors, filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a file atomically; replaces an existing one. Errors: as `serialize`."""
    layout = _layout(tensor_dict, metadata)
    with Sink(filename, folder=False, size=layout.size, overwrite=True) as sink:
        out = sink.create("", layout.size)
        _write(layout, tensor_dict, out.write)


def deserialize(bytes: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Name and {shape, dtype, data} of each tensor of a file in memory. SafetensorError if it isn't a valid file."""
    with translated("Error while deserializing"):
        index = safetensors.parse_stored(BytesSource(bytes))
    data = memoryview(bytes)
    return [
        (e.name, {"shape": list(e.shape), "dtype": e.dtype.safetensors,
                  "data": bytearray(data[e.offset : e.offset + e.nbytes])})
        for e in index
    ]  # fmt: skip


def _layout(tensors: Tensors, metadata: Mapping[str, str] | None) -> Layout:
    if not all(isinstance(t, TensorSpec) for t in tensors.values()):
        raise TypeError("expected a mapping of names to TensorSpec")
    with translated("Error while serializing"):
        return safetensors.layout([(n, t.spec) for n, t in tensors.items()], metadata, order="reference")


def _write(layout: Layout, tensors: Tensors, write: Callable[[int, bytes | memoryview], Any]) -> None:
    for offset, piece in layout.pieces:
        write(offset, piece)
    for slot in layout.slots:
        if slot.spec.nbytes:
            write(slot.offset, tensors[slot.name].view())


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Raises Weighbridge's errors as the SafetensorError that callers of the reference catch."""
    try:
        yield
    except WeighbridgeError as error:
        raise SafetensorError(f"{action}: {error}") from None
