"""One model's weights with random numbers added, and a factor."""

from __future__ import annotations

from typing import Any

import numpy as np

from weighbridge.base.records import dataclass
from weighbridge.tensors.merging.base import Band, F32Array, MergeMethod
from weighbridge.tensors.merging.task_vectors import draws


@dataclass(frozen=True)
class Noisy(MergeMethod):
    """(weight + deviation x a normally distributed number) x scale. `keys`: of two random sequences. An element of each
    makes one number (Box and Muller, 1958), so any rows can be computed alone."""

    deviation: float
    scale: float
    keys: tuple[bytes, bytes]

    def rows(self, band: Band, survey: Any) -> F32Array:
        (weights,) = band.inputs
        if not self.deviation:
            return weights * np.float32(self.scale)
        length, angle = ((draws(key, band.first, weights.size) + 0.5) / 2.0**32 for key in self.keys)
        normal = np.sqrt(-2 * np.log(length)) * np.cos(2 * np.pi * angle)
        noisy: F32Array = weights + np.float32(self.deviation) * normal.astype(np.float32).reshape(weights.shape)
        noisy *= np.float32(self.scale)
        return noisy
