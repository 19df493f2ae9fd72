"""Rotations of rows by regular Hadamard matrices, which ComfyUI's rotated formats apply before they quantize.

    H(4)      [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]] / 2
    H(4 n)    the Kronecker product of H(n) and H(4)

The matrices are symmetric and orthogonal, so the same rotation reverses itself. Source: comfy-kitchen
(tensor/int8_utils.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weighbridge.tensors import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP: Final = 4
_PIECE: Final = 1 << 18  # values at a time: their F64 copies stay in the cache


def rotate(values: NDArray[np.float32], size: int) -> None:
    """Rotates each `size` values in turn, in place. Sums are computed in F64, and rounded once."""
    step = max(_PIECE // size, 1) * size
    for at in range(0, values.size, step):
        piece = values[at : at + step]
        piece[:] = _rotated(piece.astype(np.float64), size)


def _rotated(wide: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """H(4) along each base-4 digit of the index."""
    stride = 1
    while stride < size:
        digits = wide.reshape(-1, _STEP, stride)
        half = digits.sum(axis=1, keepdims=True) / 2
        wide = (half - digits[:, ::-1]).reshape(-1)
        stride *= _STEP
    return wide
