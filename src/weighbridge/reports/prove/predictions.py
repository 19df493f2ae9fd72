"""Compares the logits of two models on the same tokens. Logits are F32 arrays [positions, vocabulary]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]

_SLAB: Final = 32  # positions at a time


class Agreement(NamedTuple):
    """`divergence`: F64 [positions], the Kullback-Leibler divergence of the next token in nats. `agreement`: share of
    positions with the same most likely token. `gap`: F64 [positions], in nats, how much less likely than its own choice
    the first model finds the second's."""

    divergence: F64
    agreement: float
    gap: F64


def compare_logits(a: F32, b: F32) -> Agreement:
    """Compares the predictions of `b` with those of `a`. Tokens beyond the smaller vocabulary, which pad a matrix, are
    ignored. NaN or Inf on one side results in an infinite divergence."""
    import numpy as np

    width = min(a.shape[-1], b.shape[-1])
    divergences = []
    for i in range(0, len(a), _SLAB):
        p, q = (log_probabilities(logits[i : i + _SLAB, :width]) for logits in (a, b))
        with np.errstate(invalid="ignore", over="ignore"):
            divergence = (np.exp(p) * (p - q)).sum(-1)
        divergences.append(np.where(np.isfinite(divergence), np.maximum(divergence, 0), np.inf))
    choice_a, choice_b = (x[:, :width].argmax(-1) for x in (a, b))
    rows = np.arange(len(choice_a))
    gap = a[rows, choice_a].astype(np.float64) - a[rows, choice_b]
    return Agreement(np.concatenate(divergences), float((choice_a == choice_b).mean()), gap)


def log_probabilities(logits: F32) -> F64:
    """Returns the log probability of every token, F64 [positions, vocabulary]."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
        out: Any = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return out  # type: ignore[no-any-return]


def surprise(logits: F32, ids: list[int]) -> float:
    """Returns the mean negative log-likelihood of each token after its predecessors, in nats."""
    import numpy as np

    rows = log_probabilities(logits[:-1])
    return float(-rows[np.arange(len(ids) - 1), ids[1:]].mean())


def cosine_distance(a: F32, b: F32) -> float:
    """Returns 1 - cosine of two F32 vectors; 1 if one is zero or not finite."""
    import numpy as np

    x, y = a.astype(np.float64), b.astype(np.float64)
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return max(0.0, 1 - float(x @ y) / size) if x.shape == y.shape and np.isfinite(size) and size else 1.0
