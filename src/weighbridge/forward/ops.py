"""The operations of decoders on F32 arrays, as transformers computes them on a CPU.

Arrays of tokens are [tokens, columns]; heads are [tokens, heads, head_dim]. Source: transformers 5
(modeling_rope_utils.py, activations.py, modeling_llama.py, modeling_gpt_oss.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.words import plural
from weighbridge.forward.graph import yarn_magnitude
from weighbridge.providers.config import RopeConfig

Floats = NDArray[np.float32]

#: Queries per block of scores, which bounds the memory of attention.
_QUERIES: Final = 512
# Abramowitz and Stegun, 7.1.26: erf within 1.5e-7.
_ERF: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_P: Final = 0.3275911


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight."""
    scale = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
    return np.asarray(x / np.sqrt(scale + np.float32(eps)) * weight, np.float32)


def layer_norm(x: Floats, weight: Floats, bias: Floats | None, eps: float) -> Floats:
    """(x - mean) / sqrt(variance + eps) * weight + bias."""
    x = x - x.mean(-1, keepdims=True)
    out = rms_norm(x, weight, eps)
    return out if bias is None else out + bias


# ---------------------------------------------------------------- activations


def _erf(x: Floats) -> Floats:
    t = 1 / (1 + _ERF_P * np.abs(x))
    series = t * (_ERF[0] + t * (_ERF[1] + t * (_ERF[2] + t * (_ERF[3] + t * _ERF[4]))))
    return np.asarray(np.sign(x) * (1 - series * np.exp(-x * x)), np.float32)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), np.float32)


def _gelu(x: Floats) -> Floats:
    return np.asarray(0.5 * x * (1 + _erf(x * np.float32(math.sqrt(0.5)))), np.float32)


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)), np.float32)


def _relu_squared(x: Floats) -> Floats:
    positive = np.maximum(x, 0)
    return positive * positive


#: Activations under transformers' names.
ACTIVATIONS: Final[Mapping[str, Callable[[Floats], Floats]]] = MappingProxyType({
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": _relu_squared,
})  # fmt: skip


def clamped_swiglu(gate: Floats, up: Floats) -> Floats:
    """gpt-oss' gated unit: (up + 1) * gate * sigmoid(1.702 * gate), with both clamped at 7."""
    gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
    return (up + 1) * gate * sigmoid(np.float32(1.702) * gate)


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)


# ---------------------------------------------------------------- positions


class Rotation(NamedTuple):
    """Angles of rotary embeddings: `frequencies` [pairs] at position 1; `factor`: of the cosines and sines."""

    frequencies: NDArray[np.float64]
    factor: float


def rotation(rope: RopeConfig, tokens: int, context: int | None) -> Rotation:
    """The rotation of a text of `tokens`. `context`: the model's longest. Raises UnsupportedError for a scaling that
    isn't computed."""
    plain = rope.theta ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    found = _SCALINGS.get(rope.type)
    if found is None:
        raise UnsupportedError(f"rope scaling {rope.type!r} isn't computed")
    return found(plain, rope, tokens, context)


def _linear(plain: NDArray[np.float64], rope: RopeConfig, tokens: int, context: int | None) -> Rotation:
    return Rotation(plain / rope.parameters["factor"], 1.0)


def _dynamic(plain: NDArray[np.float64], rope: RopeConfig, tokens: int, context: int | None) -> Rotation:
    trained = rope.original_context or context or tokens
    if tokens > trained:
        raise UnsupportedError(f"dynamic rope scaling isn't computed beyond {plural(trained, 'position')}")
    return Rotation(plain, 1.0)


def _llama3(plain: NDArray[np.float64], rope: RopeConfig, tokens: int, context: int | None) -> Rotation:
    factor, trained = rope.parameters["factor"], rope.original_context or context or tokens
    low, high = rope.parameters["low_freq_factor"], rope.parameters["high_freq_factor"]
    smooth = np.clip((trained * plain / (2 * math.pi) - low) / (high - low), 0, 1)
    return Rotation((1 - smooth) * plain / factor + smooth * plain, 1.0)


def _yarn(plain: NDArray[np.float64], rope: RopeConfig, tokens: int, context: int | None) -> Rotation:
    p, trained = rope.parameters, rope.original_context or context or tokens
    factor = float(p["factor"])

    def dimension(turns: float) -> float:
        return rope.dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(p.get("beta_fast") or 32), dimension(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / ((high - low) or 0.001), 0, 1)
    return Rotation(plain / factor * ramp + plain * (1 - ramp), _yarn_factor(p, factor))


def _yarn_factor(parameters: Mapping[str, float], factor: float) -> float:
    if (stated := parameters.get("attention_factor")) is not None:
        return stated
    top, bottom = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if top and bottom:
        return yarn_magnitude(factor, top) / yarn_magnitude(factor, bottom)
    return yarn_magnitude(factor, 1)


def _longrope(plain: NDArray[np.float64], rope: RopeConfig, tokens: int, context: int | None) -> Rotation:
    p, trained = rope.parameters, rope.original_context or context or tokens
    factors = p.get("long_factor" if tokens > trained else "short_factor")
    if not factors or len(factors) != len(plain):
        raise UnsupportedError("longrope without its factors isn't computed")
    scale = p.get("factor") or (context or trained) / trained
    attention = p.get("attention_factor") or p.get("long_mscale" if tokens > trained else "short_mscale")
    if attention is None:
        attention = math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0
    return Rotation(plain / np.asarray(factors, np.float64), attention)


_SCALINGS: Final = MappingProxyType({
    "default": lambda plain, *_: Rotation(plain, 1.0),
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
})  # fmt: skip


def rotate(x: Floats, rotation: Rotation, neighbours: bool) -> Floats:
    """Rotates the first elements of each head, x [tokens, heads, head_dim], from position 0: pairs (i, i + half), or
    (2i, 2i + 1) for `neighbours`."""
    half = len(rotation.frequencies)
    angles = np.arange(len(x))[:, None] * rotation.frequencies
    cos, sin = (np.asarray(f(angles) * rotation.factor, np.float32)[:, None] for f in (np.cos, np.sin))
    out = x.copy()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if neighbours else (slice(half), slice(half, 2 * half))
    )
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def alibi_slopes(heads: int, most: float) -> Floats:
    """The slopes of linear biases, [heads], for the largest bias `most` (8 in BLOOM)."""
    power = 2 ** math.floor(math.log2(heads))
    even = 2.0 ** (-most / power * np.arange(1, power + 1))
    odd = 2.0 ** (-most / (2 * power) * np.arange(1, 2 * (heads - power), 2))
    return np.concatenate([even, odd]).astype(np.float32)


# ---------------------------------------------------------------- attention


class AttentionRules(NamedTuple):
    """How queries see keys. `window`: the last keys that a query sees, with its own; None: all. `softcap`: of scores.
    `sinks`: a score per head that takes weight and has no value. `slopes`: of linear biases per head."""

    scale: float
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    sinks: Floats | None = None
    slopes: Floats | None = None


def attention(q: Floats, k: Floats, v: Floats, rules: AttentionRules) -> Floats:
    """The values that each query collects, [tokens, heads * value_dim]. q [tokens, heads, head_dim]; k, v [tokens,
    kv_heads, dim]."""
    tokens, heads, _ = q.shape
    groups = k.shape[1]
    each = heads // groups
    out = np.empty((tokens, heads, v.shape[-1]), np.float32)
    for group in range(groups):
        mine = slice(group * each, (group + 1) * each)
        keys, values = k[:, group].T, v[:, group]
        for start in range(0, tokens, _QUERIES):
            rows = slice(start, min(start + _QUERIES, tokens))
            scores = np.matmul(q[rows, mine].transpose(1, 0, 2), keys) * np.float32(rules.scale)
            out[rows, mine] = (_weights(scores, rules, mine, start) @ values).transpose(1, 0, 2)
    return out.reshape(tokens, -1)


def _weights(scores: Floats, rules: AttentionRules, heads: slice, start: int) -> Floats:
    """Softmax of scores [heads, queries, keys] with the rules' mask; queries begin at `start`."""
    if rules.softcap:
        scores = np.tanh(scores / np.float32(rules.softcap)) * np.float32(rules.softcap)
    distance = np.arange(start, start + scores.shape[1])[:, None] - np.arange(scores.shape[2])
    if rules.slopes is not None:
        scores = scores - rules.slopes[heads, None, None] * distance.astype(np.float32)
    hidden = (distance < 0) if rules.causal else np.zeros_like(distance, bool)
    if rules.window is not None:
        hidden |= (distance if rules.causal else np.abs(distance)) >= rules.window
    scores = np.where(hidden, np.float32(-np.inf), scores)
    if rules.sinks is None:
        return softmax(scores)
    sinks = np.broadcast_to(rules.sinks[heads, None, None], (*scores.shape[:2], 1))
    return softmax(np.concatenate([scores, sinks], -1))[..., :-1]
