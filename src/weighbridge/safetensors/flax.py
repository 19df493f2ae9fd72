"""The drop-in's functions for JAX arrays, under the name of the reference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from weighbridge.adapters.arrays import nodes_of
from weighbridge.adapters.jax import to_jax
from weighbridge.adapters.numpy import to_numpy
from weighbridge.safetensors import numpy
from weighbridge.safetensors.reading import safe_open

if TYPE_CHECKING:
    import jax


def save(tensors: Mapping[str, jax.Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file of arrays."""
    return numpy.save({name: to_numpy(node) for name, node in nodes_of(tensors).items()}, metadata)


def save_file(
    tensors: Mapping[str, jax.Array], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a file."""
    numpy.save_file({name: to_numpy(node) for name, node in nodes_of(tensors).items()}, filename, metadata)


def load(data: bytes) -> dict[str, jax.Array]:
    """The arrays of a file in memory."""
    return {name: to_jax(node) for name, node in nodes_of(numpy.load(data)).items()}


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, jax.Array]:
    """The arrays of a file."""
    with safe_open(filename, framework="flax", backend=backend) as file:
        return file.get_tensors()
