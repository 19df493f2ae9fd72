"""SmoothQuant: factors for the columns of matrices whose inputs are rounded, too, and whose inverse the layer before
takes. Columns of the inputs with large values then set a smaller scale for their row.

Source: G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
arXiv 2211.10438. llm-compressor 0.14 (SmoothQuantModifier) smooths only the inputs that a norm makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.packings.write.awq import Consumer
from weighbridge.packings.write.gptq import Doubles, Floats

#: The least factor, as in the paper's code.
_LEAST: Final = 1e-5


def smoothing_factors(
    consumers: Iterable[Consumer], peaks: Doubles, alpha: float, tied: NDArray[np.int64] | None = None
) -> Floats:
    """Factors [columns]: peaks^alpha / weights^(1 - alpha), with the largest magnitudes of the inputs, `peaks`, and of
    the columns of all consumers; 1 for a column of zeros. `tied`: as in `awq.column_factors`."""
    weights = np.max([np.abs(consumer.read()).max(0) for consumer in consumers], axis=0).astype(np.float64)
    if tied is not None:
        count = int(tied.max()) + 1
        largest = np.zeros((2, count))
        for row, values in zip(largest, (peaks, weights), strict=True):
            np.maximum.at(row, tied, values)
        peaks, weights = largest[:, tied]
    with np.errstate(all="ignore"):
        factors = np.maximum(peaks**alpha / weights ** (1 - alpha), _LEAST)
    return np.where((peaks > 0) & (weights > 0) & np.isfinite(factors), factors, 1).astype(np.float32)
