"""Tensors as MLX arrays, mlx imported only when asked for. MLX copies whatever it is given from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.adapters.numpy import to_numpy
from weighbridge.base.dtypes import F32, DType
from weighbridge.tensors.nodes import LogicalTensor, Node

if TYPE_CHECKING:
    import mlx.core as mx

#: Types that MLX has, by our names.
_MLX = frozenset({"BOOL", "U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "C64"})


def to_mlx(tensor: LogicalTensor, dtype: DType | None = None) -> mx.array:
    """The values as an MLX array. Quantized tensors, and types that MLX lacks (FP8, F64), come as F32 unless another
    type is asked for; `parts()` of a tensor are its codes and scales."""
    import mlx.core as mx

    stored = tensor.spec.dtype if isinstance(tensor, Node) else None
    wanted = dtype or (stored if stored is not None and stored.name in _MLX else F32)
    return mx.array(to_numpy(tensor, wanted))
