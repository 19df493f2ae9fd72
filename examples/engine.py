"""A toy inference engine: a Llama in numpy that takes everything from `wb.provider`, so that one code runs a GGUF, an
MLX folder, a Hugging Face folder and a PyTorch checkpoint.

    python examples/engine.py MODEL [TOKEN ...]        greedy continuation of some token ids

It reads one layer at a time and keeps none: memory is that of a layer and the cache of keys and values.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

import weighbridge as wb
from weighbridge.providers.base import Provider
from weighbridge.providers.config import ModelConfig, RopeConfig

Array = Any  # NDArray[np.float32]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def frequencies(rope: RopeConfig) -> Array:
    """The angle of each pair at position 1, [dim / 2]. Linear and llama3 scaling; others are refused."""
    plain = rope.theta ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    if rope.type == "default":
        return np.asarray(plain, np.float32)
    factor = rope.parameters["factor"]
    if rope.type == "linear":
        return np.asarray(plain / factor, np.float32)
    if rope.type != "llama3" or rope.original_context is None:
        raise SystemExit(f"this engine has no {rope.type} rope scaling")
    low, high = rope.parameters["low_freq_factor"], rope.parameters["high_freq_factor"]
    turns = rope.original_context * plain / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return ((1 - smooth) * plain / factor + smooth * plain).astype(np.float32)


class Engine:
    """`weights`: a provider under canonical names."""

    def __init__(self, weights: Provider) -> None:
        check(weights.config)
        self.weights, self.config = weights, cast("Any", weights.config)
        self.frequencies = frequencies(self.config.rope)
        self.embedding = weights.get("embed.weight", dtype="f32")
        head = "embed.weight" if self.config.tied_embeddings else "head.weight"
        self.head = weights.get(head, dtype="f32")
        self.keys: list[Array] = [None] * self.config.layers
        self.values: list[Array] = [None] * self.config.layers
        self.position = 0

    def forward(self, tokens: Sequence[int]) -> Array:
        """Logits [tokens, vocab] of the next tokens; what came before is remembered."""
        x = self.embedding[list(tokens)]
        angles = np.arange(self.position, self.position + len(tokens))[:, None] * self.frequencies
        for layer in range(self.config.layers):
            x = x + self.attention(layer, x, np.cos(angles), np.sin(angles))
            x = x + self.mlp(layer, x)
        self.position += len(tokens)
        x = self.norm(x, "norm")
        return x @ self.head.T

    def norm(self, x: Array, name: str) -> Array:
        weight = self.weights.get(f"{name}.weight", dtype="f32")
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + (self.config.norm_eps or 0.0)) * weight

    def linear(self, x: Array, *names: str) -> Array:
        """x times the transpose of weights, which are fused into one matrix, and their biases where there are any."""
        fused = self.weights.fuse(*(f"{name}.weight" for name in names), dtype="f32")
        y = x @ wb.Tensor("fused", {"fused": fused.tensor}).numpy().T
        if self.weights.has(f"{names[0]}.bias"):
            y = y + np.concatenate([self.weights.get(f"{name}.bias", dtype="f32") for name in names])
        return y

    def attention(self, layer: int, x: Array, cos: Array, sin: Array) -> Array:
        c, name, n = self.config, f"layers.{layer}.attention", len(x)
        heads, groups, size = int(c.heads), int(c.kv_heads), int(c.head_dim)
        x = self.norm(x, f"{name}.norm")
        qkv = self.linear(x, f"{name}.q", f"{name}.k", f"{name}.v")
        q, k, v = np.split(qkv, [heads * size, (heads + groups) * size], axis=-1)
        q, k = (rotate(part.reshape(n, -1, size), cos, sin) for part in (q, k))
        k, v = self.remember(layer, k, v.reshape(n, groups, size))
        q = q.reshape(n, groups, heads // groups, size)
        scores = np.einsum("qghd,kgd->ghqk", q, k) / math.sqrt(size)
        future = np.arange(len(k)) > np.arange(self.position, self.position + n)[:, None]
        mixed = np.einsum("ghqk,kgd->qghd", softmax(np.where(future, -np.inf, scores)), v)
        return self.linear(mixed.reshape(n, heads * size), f"{name}.o")

    def remember(self, layer: int, k: Array, v: Array) -> tuple[Array, Array]:
        """All keys and values up to now."""
        for kept, new in ((self.keys, k), (self.values, v)):
            before = kept[layer]
            kept[layer] = new if before is None else np.concatenate([before, new])
        return self.keys[layer], self.values[layer]

    def mlp(self, layer: int, x: Array) -> Array:
        name = f"layers.{layer}.mlp"
        x = self.norm(x, f"{name}.norm")
        gate, up = np.split(self.linear(x, f"{name}.gate", f"{name}.up"), 2, axis=-1)
        return self.linear(silu(gate) * up, f"{name}.down")

    def generate(self, tokens: Sequence[int], count: int) -> Iterator[int]:
        """The most likely continuation."""
        for _ in range(count):
            tokens = [int(self.forward(tokens)[-1].argmax())]
            yield tokens[0]


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Pairs (i, i + half) of x [tokens, heads, dim] by their angles [tokens, half]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1).astype(np.float32)


def check(config: ModelConfig) -> None:
    """Exits for a model that this engine doesn't compute."""
    if config.architecture not in ("llama", "mistral3") or config.experts or config.norm != "rms":
        raise SystemExit(f"this engine runs Llama models, not {config.architecture}")


def main() -> None:
    parser = argparse.ArgumentParser(description="run a Llama in numpy, from any format")
    parser.add_argument("model")
    parser.add_argument("tokens", nargs="*", type=int, default=[1])
    parser.add_argument("--count", type=int, default=8)
    given: Any = parser.parse_args()
    with wb.provider(given.model) as weights:
        print(*Engine(weights).generate(given.tokens, given.count))


if __name__ == "__main__":
    main()
