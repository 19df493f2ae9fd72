"""The drop-in's functions for numpy arrays. Loaded arrays are writable copies. Unlike the reference, it loads and saves
bfloat16 and float8 as arrays of ml_dtypes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_SAFETENSORS
from weighbridge.safetensors.core import TensorSpec, deserialize, serialize, serialize_file
from weighbridge.safetensors.reading import safe_open

Arrays = Mapping[str, NDArray[Any]]


def save(tensor_dict: Arrays, metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes that the reference writes for C-contiguous arrays."""
    kept: list[Any] = []
    return serialize(_specs(tensor_dict, kept), metadata)


def save_file(tensor_dict: Arrays, filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Writes arrays to a file."""
    kept: list[Any] = []
    serialize_file(_specs(tensor_dict, kept), filename, metadata)


def load(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a file in memory."""
    from weighbridge.adapters.numpy import numpy_dtype

    return {
        name: np.frombuffer(t["data"], numpy_dtype(BY_SAFETENSORS[t["dtype"]])).reshape(t["shape"])
        for name, t in deserialize(data)
    }


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, NDArray[Any]]:
    """The arrays of a file."""
    with safe_open(filename, framework="np", backend=backend) as file:
        return file.get_tensors()


def _specs(arrays: Arrays, kept: list[Any]) -> dict[str, TensorSpec]:
    """Specs of the arrays' memory. `kept`: copies, which must live until they are written."""
    out = {}
    for name, array in arrays.items():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        data = np.ascontiguousarray(little).reshape(array.shape)
        kept.append(data)
        out[name] = TensorSpec(
            dtype=array.dtype.name, shape=array.shape, data_ptr=data.ctypes.data, data_len=data.nbytes
        )
    return out
