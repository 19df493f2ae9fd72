"""Tensors as JAX arrays; jax is imported on first use. On the CPU `device_put` shares memory aligned to 64 bytes:
tensors aligned so in their file are shared, others are read into aligned memory once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weighbridge.adapters.numpy import numpy_dtype, to_numpy
from weighbridge.adapters.remote.extra import package
from weighbridge.base.dtypes import F32, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.tensors.filling import fill
from weighbridge.tensors.memory import new_bytes
from weighbridge.tensors.nodes import LogicalTensor, Node, as_node

if TYPE_CHECKING:
    import jax

_LINE = 64


def bitcast(raw: jax.Array, dtype: DType, shape: Sequence[int]) -> jax.Array:
    """A U8 array as one of `dtype`. UnsupportedError if numpy, and so JAX, lacks the type."""
    import jax

    if dtype.numpy is None:
        raise UnsupportedError(f"JAX has no {dtype}", hint="ask for f32: values are then decoded")
    cells = raw if dtype.size == 1 else raw.reshape((-1, dtype.size))
    return jax.lax.bitcast_convert_type(cells, numpy_dtype(dtype)).reshape(tuple(shape))


def to_jax(tensor: LogicalTensor, dtype: DType | None = None) -> jax.Array:
    """The values as a JAX array. Quantized tensors come decoded to F32 unless another type is asked for. The memory is
    read-only to JAX and must not be written to by others."""
    package("jax", "a JAX array", "jax")
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
