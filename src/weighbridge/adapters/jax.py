"""Tensors as JAX arrays, jax imported only when asked for. On the CPU `device_put` shares memory that starts at a
multiple of 64 bytes; a tensor that lies so in its file is shared, others are read into aligned memory once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.adapters.numpy import numpy_dtype, to_numpy
from weighbridge.base.dtypes import F32, DType
from weighbridge.tensors.filling import fill
from weighbridge.tensors.memory import new_bytes
from weighbridge.tensors.nodes import LogicalTensor, Node, as_node

if TYPE_CHECKING:
    import jax

_LINE = 64


def to_jax(tensor: LogicalTensor, dtype: DType | None = None) -> jax.Array:
    """The values as a JAX array. Quantized tensors come decoded to F32 unless another type is asked for. The memory is
    read-only to JAX and must not be written to by others."""
    import jax

    if dtype is None and (not isinstance(tensor, Node) or tensor.spec.dtype.numpy is None):
        dtype = F32
    node = as_node(tensor, dtype)
    array = to_numpy(node) if not node.sources else None
    if array is None or array.ctypes.data % _LINE:
        whole = new_bytes(node.spec.nbytes + _LINE)
        data = whole[-whole.ctypes.data % _LINE :][: node.spec.nbytes]
        fill(node, data)
        array = data.view(numpy_dtype(node.spec.dtype)).reshape(node.spec.shape)
    return jax.device_put(array)
