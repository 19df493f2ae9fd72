"""Methods that take a second model's weights in some places: where they are near, or where they matter.

The definitions are those of mergekit 0.1 (nearswap.py, arcee_fusion.py); quantiles here are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from weighbridge.base.records import dataclass
from weighbridge.tensors.merging.base import Band, Bands, F32Array, MergeMethod
from weighbridge.tensors.merging.order import cutoffs

# mergekit's constants: the least difference, and what a softmax is raised by.
_NEAREST: Final = 1e-6
_SOFTMAX: Final = 1e-8


@dataclass(frozen=True)
class NearSwap(MergeMethod):
    """The base, moved to the other model where the two differ by little: all the way where by less than `t`."""

    t: float = 0.0

    def rows(self, band: Band, survey: None) -> F32Array:
        base, second = band.inputs
        share = np.clip(np.float32(self.t) / np.maximum(np.abs(base - second), np.float32(_NEAREST)), 0, 1)
        out: F32Array = share * second + (1 - share) * base
        return out


@dataclass(frozen=True)
class ArceeFusion(MergeMethod):
    """The base, with the other model's elements where their importance (difference times the divergence of the rows'
    softmax) is at least the median plus 1.5 times the range between the quartiles."""

    scratch: ClassVar[int] = 14

    @staticmethod
    def _importance(band: Band) -> F32Array:
        base, second = band.inputs
        powers = [np.exp(rows - rows.max(axis=1, keepdims=True)) for rows in (second, base)]
        new, old = (rows / rows.sum(axis=1, keepdims=True) + np.float32(_SOFTMAX) for rows in powers)
        divergence = np.add.reduce(new * np.log(new / old), axis=1, keepdims=True)
        importance: F32Array = np.abs(second - base) * np.maximum(divergence, 0)
        return importance

    def survey(self, bands: Bands, size: int) -> float:
        ranks = [int(share * (size - 1)) for share in (0.25, 0.5, 0.75)]

        def pieces() -> Iterator[tuple[int, list[F32Array]]]:
            for band in bands():
                yield band.first, [self._importance(band)] * len(ranks)

        low, middle, high = (cut.value for cut in cutoffs(pieces, [size - rank for rank in ranks]))
        return middle + 1.5 * (high - low)

    def rows(self, band: Band, survey: float) -> F32Array:
        base, second = band.inputs
        return np.where(self._importance(band) >= np.float32(survey), second, base)
