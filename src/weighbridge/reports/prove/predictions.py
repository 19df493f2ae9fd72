"""Measures over the logits of two models on the same tokens. All arrays are F32 [positions, vocabulary]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]

_SLAB: Final = 32  # positions at a time


class Agreement(NamedTuple):
    """`divergence`: Kullback-Leibler divergence of the next token, nats, by position. `agreement`: share of positions
    with the same most likely token. `gap`: by position, how much less likely the second's choice is to the first than
    its own, nats."""

    divergence: F64
    agreement: float
    gap: F64


def compare_logits(a: F32, b: F32) -> Agreement:
    """How far `b` predicts otherwise than `a`. Tokens beyond the smaller vocabulary, which pad a matrix, don't count. A
    NaN or Inf in one gives an infinite divergence."""
    import numpy as np

    width = min(a.shape[-1], b.shape[-1])
    found = [_divergence(a[i : i + _SLAB, :width], b[i : i + _SLAB, :width]) for i in range(0, len(a), _SLAB)]
    one, other = (x[:, :width].argmax(-1) for x in (a, b))
    rows = np.arange(len(one))
    gap = a[rows, one].astype(np.float64) - a[rows, other]
    return Agreement(np.concatenate(found), float((one == other).mean()), gap)


def _divergence(a: F32, b: F32) -> F64:
    import numpy as np

    p, q = log_probabilities(a), log_probabilities(b)
    with np.errstate(invalid="ignore", over="ignore"):
        found = (np.exp(p) * (p - q)).sum(-1)
    return np.where(np.isfinite(found), np.maximum(found, 0), np.inf)


def log_probabilities(logits: F32) -> F64:
    """Of every token, [positions, vocabulary]."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
        out: Any = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return out  # type: ignore[no-any-return]


def surprise(logits: F32, ids: list[int]) -> float:
    """The mean negative log-likelihood of each token after its predecessors, nats."""
    import numpy as np

    rows = log_probabilities(logits[:-1])
    return float(-rows[np.arange(len(ids) - 1), ids[1:]].mean())


def cosine_distance(a: F32, b: F32) -> float:
    """1 - cosine of two vectors; 1 where one isn't finite or is zero."""
    import numpy as np

    x, y = a.astype(np.float64), b.astype(np.float64)
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return max(0.0, 1 - float(x @ y) / size) if x.shape == y.shape and np.isfinite(size) and size else 1.0
