"""Arrays of numpy, torch, MLX or JAX as nodes: over their own memory if it is in C order, else over a copy.

Frameworks are recognized by the module of an array's type; none is imported unless it is loaded already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from weighbridge.adapters.torch import BY_TORCH
from weighbridge.base.dtypes import BY_NAME, BY_NUMPY, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.tensors.nodes import Const, LogicalTensor, Node, QuantizedTensor


def nodes_of(arrays: Mapping[str, Any]) -> dict[str, LogicalTensor]:
    """Returns a node for each array. Raises UsageError for other objects, UnsupportedError for a type that no format
    has."""
    out: dict[str, LogicalTensor] = {}
    for name, value in arrays.items():
        if not isinstance(name, str):
            raise UsageError(f"a tensor's name is a text, not {name!r}")
        out[name] = node_of(value, name)
    return out


def node_of(value: Any, name: str = "an array") -> LogicalTensor:
    """Returns an array as a node; returns nodes, and tensors from `wb.open`, unchanged."""
    if isinstance(value, Node | QuantizedTensor):
        return value
    if isinstance(node := getattr(value, "node", None), Node | QuantizedTensor):
        return node
    framework = type(value).__module__.partition(".")[0]
    made = _OF.get(framework, _of_numpy if hasattr(value, "__array__") else None)
    if made is None:
        raise UsageError(
            f"{name}: a {type(value).__name__} isn't an array", hint="numpy, torch, MLX and JAX arrays are"
        )
    return made(value, name)


def _of_numpy(value: Any, name: str) -> Node:
    array = np.asarray(value)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    dtype = BY_NUMPY.get(native.dtype.name)
    if dtype is None:
        raise UnsupportedError(f"{name}: an array of {array.dtype} can't be stored", hint="store numbers")
    return _const(np.ascontiguousarray(native).reshape(array.shape), array.shape, dtype)


def _of_torch(value: Any, name: str) -> Node:
    import torch

    dtype = BY_TORCH.get(str(value.dtype))
    if dtype is None or value.layout is not torch.strided or value.is_meta:
        raise UnsupportedError(f"{name}: a tensor of {value.dtype} and layout {value.layout} can't be stored")
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    *lead, last = value.shape or (1,)
    shape = (*lead, last * dtype.block) if value.shape else ()
    data = flat.reshape(-1).view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return _const(data, shape, dtype)


def _of_mlx(value: Any, name: str) -> Node:
    import mlx.core as mx

    if value.dtype == mx.bfloat16:
        return _const(np.array(value.view(mx.uint16), copy=False), tuple(value.shape), BY_NAME["BF16"])
    return _of_numpy(np.array(value, copy=False), name)


_OF: Final[Mapping[str, Callable[[Any, str], Node]]] = MappingProxyType(
    {"numpy": _of_numpy, "torch": _of_torch, "mlx": _of_mlx, "jax": _of_numpy, "jaxlib": _of_numpy}
)


def _const(array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: DType) -> Const:
    data = np.ascontiguousarray(array).reshape(-1)
    return Const(Spec(tuple(shape), dtype), data.view(np.uint8).data)
