"""The compiled core of the `safetensors` package, `safetensors._safetensors_rust`, played by Weighbridge.

The package is a thin layer of Python (`numpy.py`, `torch.py`) over a Rust module of eight names. Here are the same
names with the same behaviour over our parser, writer, sink and lazy tensors, so that the package's own tests can run
unmodified, its Python layer included. Only what the tests ask for and the Rust module promises is imitated: messages of
index errors, `TypeError` for a plain dict, a closed file.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from types import EllipsisType, TracebackType
from typing import Any

import weighbridge
from weighbridge.base.dtypes import BY_SAFETENSORS
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.sink import Sink
from weighbridge.io.source import BytesSource

__version__ = "0.8.0"

# torch's name first, then numpy's: the names that `TensorSpec` takes.
_TYPES = {name: t for t in BY_SAFETENSORS.values() for name in (t.torch, t.numpy) if name}
_FRAMEWORKS = {
    **dict.fromkeys(("pt", "torch", "pytorch"), "pt"),
    **dict.fromkeys(("np", "numpy", "tf", "tensorflow", "jax", "flax"), "np"),
    "mlx": "mlx",
}


class SafetensorError(Exception):
    """All that can go wrong, in one class."""


SafetensorError.__module__ = "safetensors"


class TensorSpec:
    """A tensor in memory. The shape of F4 is doubled: torch counts pairs, the header elements."""

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        found = _TYPES.get(dtype)
        if found is None:
            raise SafetensorError(f'Unknown dtype "{dtype}". Supported dtypes: {", ".join(_TYPES)}')
        *lead, last = shape or (1,)
        logical = (*lead, last * found.block) if shape else ()
        self.spec, self.dtype, self.shape = Spec(tuple(logical), found), found.safetensors, list(logical)
        self.data_ptr, self.data_len = data_ptr, data_len

    def view(self) -> memoryview:
        return memoryview((ctypes.c_ubyte * self.data_len).from_address(self.data_ptr)).cast("B")


# ---- writing


def _layout(tensors: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None) -> Layout:
    if not all(isinstance(t, TensorSpec) for t in tensors.values()):
        raise TypeError("expected a mapping of names to TensorSpec")
    try:
        return safetensors.layout([(n, t.spec) for n, t in tensors.items()], metadata, order="reference")
    except WeighbridgeError as error:
        raise SafetensorError(f"Error while serializing: {error}") from None


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    layout = _layout(tensor_dict, metadata)
    out = bytearray(layout.size)
    for offset, piece in layout.pieces:
        out[offset : offset + len(piece)] = piece
    for slot in layout.slots:
        if slot.spec.nbytes:
            out[slot.offset : slot.offset + slot.spec.nbytes] = tensor_dict[slot.name].view()
    return bytes(out)


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    layout = _layout(tensor_dict, metadata)
    with Sink(filename, folder=False, size=layout.size, overwrite=True) as sink:
        out = sink.create("", layout.size)
        for offset, piece in layout.pieces:
            out.write(offset, piece)
        for slot in layout.slots:
            if slot.spec.nbytes:
                out.write(slot.offset, tensor_dict[slot.name].view())


# ---- reading


def deserialize(bytes: bytes) -> list[tuple[str, dict[str, Any]]]:
    try:
        index = safetensors.parse(BytesSource(bytes))
    except WeighbridgeError as error:
        raise SafetensorError(f"Error while deserializing: {error}") from None
    data = memoryview(bytes)
    return [
        (
            e.name,
            {"shape": list(e.shape), "dtype": e.dtype.safetensors, "data": bytearray(data[e.offset :][: e.nbytes])},
        )
        for e in index
    ]


class safe_open:
    """A file whose tensors are read when asked for."""

    def __init__(
        self, filename: str | os.PathLike[str], framework: str, device: Any = "cpu", *, backend: str = "mmap"
    ) -> None:
        if framework not in _FRAMEWORKS:
            raise SafetensorError(f"framework {framework} is invalid")
        if backend not in ("mmap", "pread"):  # we choose by ourselves
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
        self._framework, self._device = _FRAMEWORKS[framework], device
        if self._framework != "pt" and device not in ("cpu", None):
            raise SafetensorError(f"Device {device} is not supported for framework {framework}")
        try:
            self._model: weighbridge.Model | None = weighbridge.open(filename, names="stored")
        except FileNotFoundError:
            raise FileNotFoundError(f"No such file or directory: {os.fspath(filename)}") from None
        except WeighbridgeError as error:
            raise SafetensorError(f"Error while deserializing header: {error}") from None

    @property
    def _open(self) -> Any:
        if self._model is None:
            raise SafetensorError("File is closed")
        return self._model

    def _tensor(self, name: str) -> Any:
        if name not in self._open:
            raise SafetensorError(f"File does not contain tensor {name}")
        return self._open[name]

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None

    def keys(self) -> list[str]:
        return sorted(self._open)

    def offset_keys(self) -> list[str]:
        return list(self._open)

    def metadata(self) -> dict[str, str] | None:
        return dict(self._open.metadata) or None

    def get_tensor(self, name: str) -> Any:
        return _handed(self._tensor(name), self._framework, self._device)

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensor(name), self._framework, self._device)


def _safe_open_handle(handle: Any, framework: str, device: Any = "cpu") -> safe_open:
    return safe_open(handle.name, framework, device)


def _handed(tensor: Any, framework: str, device: Any) -> Any:
    if framework == "pt":
        on = None if device in ("cpu", None) else device
        return tensor.torch(device=on)
    return _from_array(tensor.numpy().copy(), framework, device)


def _from_array(array: Any, framework: str, device: Any) -> Any:
    if framework == "np":
        return array
    if framework == "mlx":
        import mlx.core as mx

        return mx.array(array)
    import numpy as np
    import torch

    kind = getattr(torch, array.dtype.name)
    flat = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).reshape(-1)) if array.size else torch.empty(0)
    out = flat.view(kind).reshape(array.shape) if array.size else torch.empty(array.shape, dtype=kind)
    return out if device in ("cpu", None) else out.to(device)


class _Slice:
    """A tensor that is read as far as it is indexed."""

    def __init__(self, tensor: Any, framework: str, device: Any) -> None:
        self._tensor, self._framework, self._device = tensor, framework, device

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return str(self._tensor.dtype)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            if key:
                raise SafetensorError("Non empty lists are not implemented")
            key = slice(0, 0)
        key = key if isinstance(key, tuple) else (key,)
        _check_bounds(key, self.get_shape())
        return _from_array(self._tensor[key].copy(), self._framework, self._device)


def _check_bounds(key: tuple[Any, ...], shape: list[int]) -> None:
    """The Rust module refuses what numpy clips: a stop beyond the dimension."""
    if any(isinstance(k, EllipsisType) for k in key):
        return
    for at, (k, size) in enumerate(zip(key, shape, strict=False)):
        if isinstance(k, int) and k < -size:
            raise SafetensorError(f"Invalid index {k} for dimension {at} of size {size}")
        asked = k if isinstance(k, int) else -1 if k.stop is None else k.stop - 1
        if asked >= size:
            shown = ", ".join(str(s) if isinstance(s, int) else f"{_shown(s.start)}:{_shown(s.stop)}" for s in key)
            words = f"index {asked} out of bounds for tensor dimension #{at} of size {size}"
            raise SafetensorError(f"Error during slicing [{shown}] with shape {shape}: {words}")


def _shown(bound: int | None) -> str:
    return "" if bound is None else str(bound)


if sys.byteorder != "little":
    raise ImportError("this adapter hands bytes over as they are in the file")
