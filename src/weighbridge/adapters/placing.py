"""Tensors as arrays of a framework, on a device.

numpy, cpu            numpy arrays
torch, torch:DEVICE   torch tensors, on the CPU or the device; also `cuda`, `cuda:1`, `mps`
mlx                   MLX arrays
jax                   JAX arrays
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UsageError
from weighbridge.tensors.nodes import LogicalTensor

#: Devices that only torch has.
_TORCH_DEVICES: Final = ("cuda", "mps", "xpu", "meta")


def place(tensor: LogicalTensor, device: str, dtype: DType | None = None) -> Any:
    """Returns a tensor's values as an array of the framework of `device`. Raises UsageError for an unknown device."""
    framework, _, rest = device.partition(":")
    if framework in _TORCH_DEVICES:
        framework, rest = "torch", device
    if framework not in _PLACES or (rest and framework != "torch"):
        raise UsageError(f"no device is called {device!r}", hint="numpy, torch, torch:DEVICE, cuda, mps, mlx, jax")
    return _PLACES[framework](tensor, dtype, rest)


def reinterpret(raw: Any, device: str, dtype: DType, shape: Sequence[int]) -> Any:
    """Views a one-dimensional U8 array on a device as an array of `dtype` with `shape`, sharing its memory if the
    framework can. Raises UnsupportedError if the framework lacks the type."""
    if device in ("numpy", "cpu"):
        from weighbridge.adapters.numpy import numpy_dtype

        return raw.view(numpy_dtype(dtype)).reshape(shape)
    if device.startswith(("torch", *_TORCH_DEVICES)):
        from weighbridge.adapters.torch import torch_dtype

        *lead, last = shape or (1,)
        return raw.view(torch_dtype(dtype)).reshape((*lead, last // dtype.block) if shape else ())
    if device == "mlx":
        from weighbridge.adapters.mlx import mlx_dtype

        return raw.view(mlx_dtype(dtype)).reshape(tuple(shape))
    from weighbridge.adapters.jax import bitcast

    return bitcast(raw, dtype, shape)


def _numpy(tensor: LogicalTensor, dtype: DType | None, rest: str) -> Any:
    from weighbridge.adapters.numpy import to_numpy

    return to_numpy(tensor, dtype)


def _torch(tensor: LogicalTensor, dtype: DType | None, rest: str) -> Any:
    from weighbridge.adapters.cuda import to_devices

    return to_devices({"": tensor}, rest or None, dtype)[""]


def _mlx(tensor: LogicalTensor, dtype: DType | None, rest: str) -> Any:
    from weighbridge.adapters.mlx import to_mlx

    return to_mlx(tensor, dtype)


def _jax(tensor: LogicalTensor, dtype: DType | None, rest: str) -> Any:
    from weighbridge.adapters.jax import to_jax

    return to_jax(tensor, dtype)


_PLACES: Final[Mapping[str, Callable[[LogicalTensor, DType | None, str], Any]]] = MappingProxyType(
    {"numpy": _numpy, "cpu": _numpy, "torch": _torch, "mlx": _mlx, "jax": _jax}
)
