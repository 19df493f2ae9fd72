"""The drop-in's functions for arrays of JAX and MLX, which go through numpy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from weighbridge.adapters.arrays import nodes_of
from weighbridge.adapters.numpy import to_numpy
from weighbridge.safetensors import numpy
from weighbridge.safetensors.reading import safe_open

Array = TypeVar("Array")


class ArrayFunctions(Generic[Array]):
    """The functions for one framework, by the reference's name of it. `to_array` makes an array from a node."""

    def __init__(self, framework: str, to_array: Callable[..., Array]) -> None:
        self._framework, self._to_array = framework, to_array

    def save(self, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
        """The bytes of a file of arrays."""
        return numpy.save({name: to_numpy(node) for name, node in nodes_of(tensors).items()}, metadata)

    def save_file(
        self, tensors: Mapping[str, Array], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes arrays to a file."""
        numpy.save_file({name: to_numpy(node) for name, node in nodes_of(tensors).items()}, filename, metadata)

    def load(self, data: bytes) -> dict[str, Array]:
        """The arrays of a file in memory."""
        return {name: self._to_array(node) for name, node in nodes_of(numpy.load(data)).items()}

    def load_file(self, filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
        """The arrays of a file."""
        with safe_open(filename, framework=self._framework, backend=backend) as file:
            return file.get_tensors()
