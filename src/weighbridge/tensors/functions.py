"""Elementwise functions used by layouts, each with its inverse. Pure, over F32 arrays.

A state-space layer decays by A = -exp(A_log): Hugging Face stores A_log, ggml A. Both directions are computed in F64
and rounded once. (The reference converter computes A with torch's exp. That isn't the nearest F32 for about 1 of 100
values, and depends on the machine, so it can't be reproduced.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import add, mul, sub, truediv
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from weighbridge.tensors import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


F32s: TypeAlias = "NDArray[np.float32]"

#: Elements per piece, and the most bytes that a function allocates for each of them.
PIECE: Final = 4096
SCRATCH: Final = 128
_STEPS: Final = range(7, -30, -1)  # powers of two: above any logarithm of an F32, below the finest interval's width


def neg_exp(values: F32s) -> F32s:
    """-exp(x). FloatingPointError if a result isn't a finite F32."""
    with np.errstate(over="raise", under="ignore"):
        return _neg_exp(values)


def _neg_exp(values: F32s) -> F32s:
    return -np.exp(values.astype(np.float64)).astype(np.float32)


def log_neg(values: F32s) -> F32s:
    """log(-a): among the numbers whose `neg_exp` is `a`, the one with the shortest binary fraction, or else the nearest
    number. So BF16 numbers (at least 2^-16 in magnitude, or 0) and F16 numbers (at least 2^-13) survive the round trip
    bit by bit; others become a neighbour with the same A. FloatingPointError if an `a` isn't negative or finite."""
    size = -values
    if not ((size > 0) & np.isfinite(size)).all():
        raise FloatingPointError("no number has this negative exponential")
    exact = size.astype(np.float64)
    low, high = (np.log((exact + np.nextafter(size, np.float32(end))) / 2) for end in (0, np.finfo(np.float32).max))
    short, done = np.zeros_like(exact), (low < 0) & (high > 0)
    for step in (2.0**k for k in _STEPS):
        first = (np.floor(low / step) + 1) * step
        fits = ~done & (first < high)
        short[fits] = first[fits]
        done |= fits
    chosen, nearest = short.astype(np.float32), np.log(exact).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return np.where(done & (_neg_exp(chosen) == values), chosen, nearest)


def exp(values: F32s) -> F32s:
    """exp(x). FloatingPointError if a result isn't a finite F32."""
    return -neg_exp(values)


def log(values: F32s) -> F32s:
    """The inverse of `exp`, as `log_neg` is that of `neg_exp`."""
    return log_neg(-values)


def softplus(values: F32s) -> F32s:
    """log(1 + exp(x)). FloatingPointError if a result isn't a finite F32."""
    with np.errstate(over="raise", under="ignore"):
        return np.logaddexp(values.astype(np.float64), 0).astype(np.float32)


def log_expm1(values: F32s) -> F32s:
    """log(exp(y) - 1), the inverse of `softplus`, rounded once. FloatingPointError if a `y` isn't positive and
    finite."""
    if not ((values > 0) & np.isfinite(values)).all():
        raise FloatingPointError("no number has this softplus")
    exact = values.astype(np.float64)
    return (exact + np.log(-np.expm1(-exact))).astype(np.float32)


#: Added before a reciprocal, as SnakeBeta does (QwenLM/Qwen3-TTS).
NEVER_ZERO: Final = 1e-9


def inverse_exp(values: F32s) -> F32s:
    """1 / (exp(x) + `NEVER_ZERO`). FloatingPointError if the exponential isn't a finite F64."""
    with np.errstate(over="raise", under="ignore"):
        return (1 / (np.exp(values.astype(np.float64)) + NEVER_ZERO)).astype(np.float32)


def log_inverse(values: F32s) -> F32s:
    """The inverse of `inverse_exp`, rounded once. FloatingPointError if no number has this result."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = 1 / values.astype(np.float64) - NEVER_ZERO
    if not ((values > 0) & (rest > 0) & np.isfinite(rest)).all():
        raise FloatingPointError("no number has this reciprocal")
    return np.log(rest).astype(np.float32)


# name -> the function and the name of its inverse
FUNCTIONS: Final[Mapping[str, tuple[Callable[[F32s], F32s], str]]] = MappingProxyType(
    {
        "neg_exp": (neg_exp, "log_neg"),
        "log_neg": (log_neg, "neg_exp"),
        "exp": (exp, "log"),
        "log": (log, "exp"),
        "softplus": (softplus, "log_expm1"),
        "log_expm1": (log_expm1, "softplus"),
        "inverse_exp": (inverse_exp, "log_inverse"),
        "log_inverse": (log_inverse, "inverse_exp"),
    }
)


def multiply_add(values: F32s, by: np.float32, to: F32s) -> F32s:
    """values * by + to, rounded once, like a processor's fused instruction.

    The product is exact in F64. If its sum isn't, the last bit of the sum is set, so that the second rounding knows.
    """
    product, term = values.astype(np.float64) * by, to.astype(np.float64)
    total = product + term
    with np.errstate(invalid="ignore"):
        of_term = total - product
        error = (product - (total - of_term)) + (term - of_term)
    bits = total.view(np.int64)
    changed = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    bits += changed * np.where((error > 0) == (total > 0), 1, -1)
    return total.astype(np.float32)


def erf(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The error function, to the last bits of F64."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(values), np.float64)


#: Activations of networks, over F64 arrays: torch's functions of these names.
ACTIVATIONS: Final[Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = MappingProxyType(
    {
        "": lambda values: values,
        "relu": lambda values: np.maximum(values, 0),
        "silu": lambda values: values / (1 + np.exp(-values)),
        "gelu": lambda values: values * 0.5 * (1 + erf(values / math.sqrt(2))),
    }
)


#: The epsilon of batch norms, torch's default.
BATCH_EPSILON: Final = 1e-5  # as F32


def over_deviation(values: F32s, variances: F32s) -> F32s:
    """Each value divided by the square root of its variance plus `BATCH_EPSILON`."""
    result: F32s = values / np.sqrt(variances + np.float32(BATCH_EPSILON))
    return result


#: Operations on two arrays, element by element. Each step is rounded to F32, like torch's.
PAIRS: Final[Mapping[str, Callable[[F32s, F32s], F32s]]] = MappingProxyType(
    {"plus": add, "times": mul, "minus": sub, "over": truediv, "over_deviation": over_deviation}
)
