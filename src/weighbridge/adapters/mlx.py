"""Tensors as MLX arrays; mlx is imported on first use. MLX copies any array passed from Python, but reads a file
directly into its own memory. Large tensors are therefore passed as a file."""

from __future__ import annotations

import json
from io import RawIOBase
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from weighbridge.adapters.numpy import numpy_dtype, to_numpy
from weighbridge.adapters.remote.extra import package
from weighbridge.base.dtypes import F32, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.tensors.filling import fill
from weighbridge.tensors.nodes import LogicalTensor, Node, as_node

if TYPE_CHECKING:
    import mlx.core as mx

#: Types that MLX has, by our names.
_MLX = frozenset({"BOOL", "U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "C64"})
#: Smaller tensors are copied: reading a file starts a thread of MLX's.
_AS_FILE: Final = MIB


def mlx_dtype(dtype: DType) -> mx.Dtype:
    """MLX's dtype of a row of the type table. UnsupportedError if MLX has none."""
    import mlx.core as mx

    if dtype.name not in _MLX:
        raise UnsupportedError(f"MLX has no {dtype}", hint="ask for f32: values are then decoded")
    return mx.array(np.empty(0, numpy_dtype(dtype))).dtype


def to_mlx(tensor: LogicalTensor, dtype: DType | None = None) -> mx.array:
    """The values as an MLX array. Quantized tensors, and types that MLX lacks (FP8, F64), come as F32 unless another
    type is asked for; `parts()` of a tensor are its codes and scales."""
    package("mlx.core", "an MLX array", "mlx")
    import mlx.core as mx

    stored = tensor.spec.dtype if isinstance(tensor, Node) else None
    wanted = dtype or (stored if stored is not None and stored.name in _MLX else F32)
    node = as_node(tensor, wanted)
    if node.spec.nbytes < _AS_FILE or wanted.name not in _MLX:
        return mx.array(to_numpy(node))
    return _TensorFile(node).loaded()


class _TensorFile(RawIOBase):
    """A safetensors file of one tensor. MLX reads the header, then the values in one call from a thread of its own.
    An exception in that call would kill the process, so it is kept and raised afterwards."""

    name = "tensor.safetensors"

    def __init__(self, node: Node) -> None:
        self._node, self._at, self._error = node, 0, list[BaseException]()
        entry = {"dtype": node.spec.dtype.safetensors, "shape": node.spec.shape, "data_offsets": [0, node.spec.nbytes]}
        text = json.dumps({"w": entry}).encode()
        self._header = len(text).to_bytes(8, "little") + text

    def loaded(self) -> mx.array:
        """The array. Errors: what reading the tensor raises."""
        import mlx.core as mx

        load: Any = mx.load  # its stub asks for more of a file than it does
        found: mx.array = load(self, format="safetensors")["w"]
        if self._error:
            raise self._error[0]
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._header) + self._node.spec.nbytes)[whence]
        return self._at

    def readinto(self, out: Any) -> int:
        """Header or values: MLX asks for one or the other."""
        try:
            if self._at < len(self._header):
                out[:] = self._header[self._at : self._at + len(out)]
            else:
                fill(self._node, np.frombuffer(out, np.uint8))
        except BaseException as error:
            self._error.append(error)
        self._at += len(out)
        return len(out)
