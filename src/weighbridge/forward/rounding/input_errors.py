"""The error of products whose inputs are rounded: llama.cpp's on a CPU.

It rounds each input of a product with blocks of a type to 8 bits, with one scale for as many inputs as the block has
weights. With a scale of max / 127 for a block, the variance of each input's error is a twelfth of its square.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.forward.column_sums import Matrices, MatrixPlace
from weighbridge.forward.ops import Floats

#: The inputs of one scale: weights of a block, except of types that don't round inputs.
BLOCKS: Final = (32, 256)
_VARIANCE: Final = 1 / (12 * 127**2)

#: By place and columns: matrices of latent attention have several forms, with inputs of their own.
_Sums = dict[tuple[MatrixPlace, int], NDArray[np.float64]]


class InputErrors:
    """Sums over a pass: `observe` is its observer, and `weigh` sees its weights."""

    def __init__(self, matrices: Matrices) -> None:
        self._matrices = matrices
        self._squares: _Sums = {}
        self._peaks: dict[int, _Sums] = {block: {} for block in BLOCKS}
        self._weights: _Sums = {}

    def observe(self, names: Sequence[str], x: Floats, expert: int | None = None) -> None:
        """See `layers.Observer`."""
        places = {place for name in names if (place := self._matrices.get((name, expert))) is not None}
        _add(self._squares, places, np.einsum("ij,ij->j", x, x))
        for block, sums in self._peaks.items():
            if x.shape[1] % block == 0:
                peaks = np.abs(x).reshape(len(x), -1, block).max(2)
                _add(sums, places, np.repeat(np.einsum("ij,ij->j", peaks, peaks), block))

    def weigh(self, place: MatrixPlace, values: Floats) -> None:
        """Adds the squares of a matrix, or of some of its rows; those that are read twice count twice."""
        _add(self._weights, {place}, np.einsum("ij,ij->j", values, values))

    def relative(self, block: int) -> dict[str, float]:
        """The error of each tensor's output, relative to its power. Tensors with other rows, or whose weights were seen
        in another form than their inputs, are missing."""
        errors, powers = defaultdict[str, float](float), defaultdict[str, float](float)
        for key, peaks in self._peaks.get(block, {}).items():
            if (weights := self._weights.get(key)) is not None:
                errors[key[0].name] += float(weights @ peaks) * _VARIANCE
                powers[key[0].name] += float(weights @ self._squares[key])
        return {name: error / powers[name] for name, error in errors.items() if powers[name]}


def _add(sums: _Sums, places: set[MatrixPlace], values: Floats) -> None:
    for place in places:
        key = place, len(values)
        sums[key] = sums.get(key, 0) + values.astype(np.float64)
