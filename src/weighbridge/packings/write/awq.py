"""AWQ: factors for the columns of matrices, whose inverse the layer before takes. Columns with large inputs are then
rounded more finely.

Errors are those of the products with a text's inputs X, tr(D H D^T) with H = X^T X; AutoAWQ runs each layer again.
Source: J. Lin et al., "AWQ: Activation-aware Weight Quantization", arXiv 2306.00978; AutoAWQ 0.2 (quantizer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.packings.write.gptq import Doubles, Floats, Gptq
from weighbridge.packings.write.rounding import GroupRule

#: Exponents of the inputs' magnitudes that are tried: 0, 0.05, ... 0.95.
_STEPS: Final = 20
#: Rows of a matrix on which factors are judged, spread over it.
_ROWS: Final = 512


class Consumer(NamedTuple):
    """A matrix that multiplies the inputs: `read` gives its weights [rows, columns]."""

    read: Callable[[], Floats]
    rule: GroupRule


def column_factors(
    consumers: Iterable[Consumer], products: Doubles, magnitudes: Doubles, tied: NDArray[np.int64] | None = None
) -> Floats:
    """Factors [columns] with the least error of all consumers together; 1 if none has a smaller one. `products`: H;
    `magnitudes`: the mean of |x|, [columns]; `tied`: a number for each column; columns of one number have one
    factor."""
    chosen, relative, rows = [], np.zeros(len(magnitudes)), 0
    for consumer in consumers:
        weights = consumer.read()
        group = consumer.rule.group
        parts = np.abs(weights).reshape(len(weights), -1, group)
        relative += (parts / (parts.max(-1, keepdims=True) + 1e-6)).reshape(weights.shape).sum(0)
        rows += len(weights)
        picked = np.unique(np.linspace(0, len(weights) - 1, min(len(weights), _ROWS)).astype(np.int64))
        chosen.append((weights[picked], Gptq(consumer.rule)))
    relative /= max(rows, 1)
    if tied is not None:
        counts = np.bincount(tied)
        magnitudes, relative = ((np.bincount(tied, each) / counts)[tied] for each in (magnitudes, relative))
    candidates: list[Floats] = [np.ones(len(magnitudes), np.float32)]
    for exponent in (n / _STEPS for n in range(_STEPS)):
        tried = np.maximum(magnitudes**exponent / (relative ** (1 - exponent) + 1e-4), 1e-4)
        tried /= np.sqrt(tried.max() * tried.min())
        candidates.append(np.where(np.isfinite(tried) & (tried > 0), tried, 1).astype(np.float32))
    errors = []
    for factors in candidates:
        decoded = [gptq.decoded_nearest(np.ascontiguousarray(weights * factors)) / factors for weights, gptq in chosen]
        errors.append(sum(float(gptq.errors(weights - values, products).sum())
                          for (weights, gptq), values in zip(chosen, decoded, strict=True)))  # fmt: skip
    return candidates[int(np.argmin(errors))]
