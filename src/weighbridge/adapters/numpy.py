"""Tensors as numpy arrays: a read-only view of the file's mapping if its bytes can be used unchanged, else a new
array. ml_dtypes provides types that numpy lacks (bfloat16, float8); values of any other type are decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.tensors import nodes
from weighbridge.tensors.filling import filled
from weighbridge.tensors.nodes import LogicalTensor, Node
from weighbridge.tensors.prefetch import view_place


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) dtype of one element. UnsupportedError for block types and sub-byte floats."""
    if dtype.numpy is None:
        raise UnsupportedError(f"numpy has no {dtype}", hint="ask for f32: values are then decoded")
    try:
        return np.dtype(dtype.numpy)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.numpy))
        return found


def to_numpy(node: LogicalTensor, dtype: DType | None = None) -> NDArray[Any]:
    """Returns the values of `node`, as `dtype` if given; quantized tensors are decoded to F32 by default.

    The array is read-only if it is a view of the file (no copy); otherwise it belongs to the caller.
    """
    if dtype is None and (not isinstance(node, Node) or node.spec.dtype.numpy is None):
        dtype = F32
    node = nodes.as_node(node, dtype)
    kind = numpy_dtype(node.spec.dtype)
    view = mapped(node)
    data = filled(node) if view is None else np.frombuffer(view, np.uint8)
    return data.view(kind).reshape(node.spec.shape) if data.size else np.empty(node.spec.shape, kind)


def mapped(node: Node, private: bool = False) -> memoryview | None:
    """Returns the bytes of `node` in the mapping of its file; None if they must be computed or aren't aligned."""
    if (place := view_place(node)) is None:
        return None
    source, at = place
    return source.map(private)[at : at + node.spec.nbytes]
