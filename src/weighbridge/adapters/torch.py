"""Tensors as torch tensors; torch is imported on first use. If torch can use the file's bytes unchanged, a tensor is
a private mapping of the file: it may be written to, and the file doesn't change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weighbridge.adapters.numpy import mapped
from weighbridge.adapters.remote.extra import package
from weighbridge.base.dtypes import BY_NAME, F32, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.tensors import nodes
from weighbridge.tensors.filling import filled
from weighbridge.tensors.nodes import LogicalTensor, Node

if TYPE_CHECKING:
    import torch


#: Rows of the type table by `str(tensor.dtype)`.
BY_TORCH: Final = {f"torch.{t.torch}": t for t in BY_NAME.values() if t.torch}


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of a row of the type table. UnsupportedError where this torch has none."""
    import torch

    found = getattr(torch, dtype.torch, None) if dtype.torch else None
    if found is None:
        raise UnsupportedError(f"this torch has no {dtype}", hint="ask for f32: values are then decoded")
    return found


def to_torch(node: LogicalTensor, dtype: DType | None = None, device: str | None = None) -> torch.Tensor:
    """The values of `node` on `device` (default: the CPU); quantized tensors are decoded to F32 unless `dtype` is
    given. F4 keeps torch's packed shape: two values a byte on the last axis."""
    package("torch", "a torch tensor", "torch")
    import torch

    if dtype is None and (not isinstance(node, Node) or node.spec.dtype.torch is None):
        dtype = F32
    node = nodes.as_node(node, dtype)
    kind = torch_dtype(node.spec.dtype)
    *lead, last = node.spec.shape or (1,)
    shape = (*lead, last // node.spec.dtype.block) if node.spec.shape else ()
    if not node.spec.nbytes:
        out = torch.empty(shape, dtype=kind, device="cpu")
    else:
        view = mapped(node, private=True)
        data = filled(node).data if view is None else view
        out = torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape)
    return out if device is None else out.to(device)
