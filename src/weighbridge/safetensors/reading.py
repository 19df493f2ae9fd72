"""`safe_open`: a file whose tensors are read on access."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import EllipsisType, MappingProxyType, TracebackType
from typing import Any, Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.source import FileSource
from weighbridge.safetensors.core import SafetensorError

#: The reference's names of frameworks -> Weighbridge's.
_FRAMEWORKS: Final[Mapping[str, str]] = MappingProxyType({
    **dict.fromkeys(("pt", "torch", "pytorch"), "torch"), **dict.fromkeys(("np", "numpy"), "numpy"),
    "mlx": "mlx", **dict.fromkeys(("jax", "flax"), "jax"),
})  # fmt: skip


class safe_open:
    """A safetensors file. `framework`: "pt", "np", "mlx" or "flax", as the reference spells them; `device`: of torch's
    tensors. `backend` is checked and has no effect: torch's tensors share the file's pages, others are copied.

    Raises FileNotFoundError, and SafetensorError for an invalid file. Threads may share it."""

    def __init__(
        self, filename: str | os.PathLike[str], framework: str, device: Any = "cpu", *, backend: str = "mmap"
    ) -> None:
        if framework not in _FRAMEWORKS:
            raise SafetensorError(f"framework {framework} is invalid")
        if backend not in ("mmap", "pread"):
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
        self._framework, self._device = _FRAMEWORKS[framework], device
        if self._framework != "torch" and device not in ("cpu", None):
            raise SafetensorError(f"Device {device} is not supported for framework {framework}")
        self._index: Index | None = _parsed(filename)

    def _opened(self) -> Index:
        if self._index is None:
            raise SafetensorError("File is closed")
        return self._index

    def _entry(self, name: str) -> Entry:
        entry = self._opened().by_name.get(name)
        if entry is None:
            raise SafetensorError(f"File does not contain tensor {name}")
        return entry

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._opened().by_name)

    def offset_keys(self) -> list[str]:
        """The names of the tensors in the order of the file."""
        return [e.name for e in sorted(self._opened(), key=lambda e: e.offset)]

    def metadata(self) -> dict[str, str] | None:
        """The texts of `__metadata__`; None without any."""
        return dict(self._opened().metadata) or None

    def get_tensor(self, name: str) -> Any:
        """One tensor. SafetensorError for an unknown name."""
        entry = self._entry(name)
        from weighbridge.adapters.placing import place
        from weighbridge.models.stored_tensors import node_builder

        node = node_builder(self._opened())(entry)
        if self._framework == "torch":
            from weighbridge.adapters.torch import to_torch

            return to_torch(node, device=None if self._device in ("cpu", None) else self._device)
        if self._framework != "numpy":
            return place(node, self._framework)
        from weighbridge.adapters.numpy import to_numpy

        array = to_numpy(node)
        return array if array.flags.writeable else array.copy()

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of the file."""
        from weighbridge.models.stored_tensors import node_builder
        from weighbridge.tensors.prefetch import prefetch_behind

        prefetch_behind(map(node_builder(self._opened()), self._opened()), private=self._framework == "torch")
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> PySafeSlice:
        """A tensor that reads only the indexed part."""
        return PySafeSlice(self, self._entry(name))


def _parsed(filename: str | os.PathLike[str]) -> Index:
    try:
        source = FileSource(filename)
    except FileNotFoundError:
        raise FileNotFoundError(f"No such file or directory: {os.fspath(filename)}") from None
    except WeighbridgeError as error:
        raise SafetensorError(f"Error while deserializing header: {error}") from None
    try:
        return safetensors.parse_stored(source)
    except WeighbridgeError as error:
        source.close()
        raise SafetensorError(f"Error while deserializing header: {error}") from None


def _safe_open_handle(handle: Any, framework: str, device: Any = "cpu") -> safe_open:
    """As `safe_open`, for an open file that has a name."""
    return safe_open(handle.name, framework, device)


class PySafeSlice:
    """One tensor of an open file, under the reference's name of the class. Indexed with integers, slices and `...`."""

    def __init__(self, file: safe_open, entry: Entry) -> None:
        self._file, self._entry = file, entry

    def get_shape(self) -> list[int]:
        """The shape; 4-bit floats count as elements."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """The type's name in the header."""
        return str(self._entry.dtype.safetensors)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            if key:
                raise SafetensorError("Non empty lists are not implemented")
            key = slice(0, 0)
        key = key if isinstance(key, tuple) else (key,)
        _check_bounds(key, self.get_shape())
        from weighbridge.adapters.numpy import to_numpy
        from weighbridge.adapters.placing import place
        from weighbridge.models.stored_tensors import node_builder
        from weighbridge.tensors.nodes import const
        from weighbridge.tensors.slicing import narrow

        node, index = narrow(node_builder(self._file._opened())(self._entry), key)
        array = to_numpy(node)[index].copy()
        if self._file._framework == "numpy":
            return array
        device = self._file._device
        target = self._file._framework
        if target == "torch" and device not in ("cpu", None):
            target = f"torch:{device}"
        return place(const(array, self._entry.dtype), target)


def _check_bounds(key: tuple[Any, ...], shape: list[int]) -> None:
    """SafetensorError for a stop beyond the dimension, which the reference refuses and numpy clips."""
    if any(isinstance(k, EllipsisType) for k in key):
        return
    for at, (k, size) in enumerate(zip(key, shape, strict=False)):
        if isinstance(k, int) and k < -size:
            raise SafetensorError(f"Invalid index {k} for dimension {at} of size {size}")
        last = k if isinstance(k, int) else -1 if k.stop is None else k.stop - 1
        if last >= size:
            shown = ", ".join(str(s) if isinstance(s, int) else f"{_shown(s.start)}:{_shown(s.stop)}" for s in key)
            raise SafetensorError(f"Error during slicing [{shown}] with shape {shape}: index {last} out of bounds for "
                                  f"tensor dimension #{at} of size {size}")  # fmt: skip


def _shown(bound: int | None) -> str:
    return "" if bound is None else str(bound)
