"""Tensors of torch and numpy as stored nodes, and the values of logical ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.spec import Spec
from weighbridge.io.source import BytesSource
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, Node

_TORCH = {t.torch: t for t in BY_NAME.values() if t.torch}


def of_torch(tensor: Any) -> Node:
    import torch

    tensor = tensor.detach().contiguous()
    dtype = _TORCH[str(tensor.dtype).removeprefix("torch.")]
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return nodes.Stored(Spec(tuple(tensor.shape), dtype), BytesSource(raw), 0)


def of_numpy(array: NDArray[Any], dtype: DType | str) -> Node:
    found = BY_NAME[dtype] if isinstance(dtype, str) else dtype
    return nodes.Stored(Spec(array.shape, found), BytesSource(np.ascontiguousarray(array).tobytes()), 0)


def members(module: str, tensors: Mapping[str, Any]) -> dict[str, Node]:
    return {f"{module}.{name}": of_torch(t) for name, t in tensors.items()}


def values(node: LogicalTensor) -> NDArray[np.float32]:
    return nodes.decode(node).read_all().view(np.float32).reshape(node.spec.shape)
