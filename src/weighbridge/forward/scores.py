"""How the predictions of a model differ from a reference's: per position, then with error bars.

Positions of a chunk depend on each other, so errors are those of the chunks' means: up to twice as wide as errors that
take all positions for independent, as llama-perplexity's do. Both models read the same tokens: differences are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.records import dataclass

Doubles = NDArray[np.float64]

#: Bytes of one array of a block of positions, in F64.
_BLOCK: Final = 32 << 20


@dataclass(frozen=True)
class SampleMean:
    """A mean and its standard error; None for a single chunk."""

    value: float
    error: float | None


@dataclass(frozen=True)
class ChunkScores:
    """Of each position of a chunk: the log-probability of the next token under the reference and the model, the KL
    divergence in nats, and whether the likeliest token is the same, and the next one."""

    reference: Doubles
    model: Doubles
    kl: Doubles
    same: NDArray[np.bool_]
    hits: NDArray[np.bool_]
    model_hits: NDArray[np.bool_]


def log_softmax(logits: NDArray[np.float32]) -> Doubles:
    """Log-probabilities of logits [positions, vocab]."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x


def score(reference: Doubles, logits: NDArray[np.float32], following: NDArray[np.int64], least: float) -> ChunkScores:
    """Compares a model's `logits` [positions, vocab] with the reference's log-probabilities [positions, vocab].
    `following`: the next token of each position. `least`: the reference's smaller log-probabilities are left out."""
    rows = max(1, _BLOCK // (8 * logits.shape[1]))
    parts = [
        _score(reference[i : i + rows], log_softmax(logits[i : i + rows]), following[i : i + rows], least)
        for i in range(0, len(logits), rows)
    ]
    return ChunkScores(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _score(p: Doubles, q: Doubles, following: NDArray[np.int64], least: float) -> tuple[NDArray[np.generic], ...]:
    at = np.arange(len(p)), following
    kl = np.where(p > least, np.exp(p) * (p - q), 0.0).sum(-1)
    top, other = p.argmax(-1), q.argmax(-1)
    return p[at], q[at], kl, top == other, top == following, other == following


def mean(chunks: Sequence[NDArray[np.generic]]) -> SampleMean:
    """The mean over all positions of chunks of one length."""
    means = np.array([np.asarray(chunk, np.float64).mean() for chunk in chunks])
    error = None if len(means) < 2 else float(means.std(ddof=1) / np.sqrt(len(means)))
    return SampleMean(float(means.mean()), error)


def through(estimate: SampleMean, value: float, slope: float) -> SampleMean:
    """A function of a mean: its value there, and the error by its slope."""
    return SampleMean(value, None if estimate.error is None else abs(slope) * estimate.error)
