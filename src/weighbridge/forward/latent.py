"""Latent attention: keys and values of all heads come from one vector of each token.

A GGUF keeps the up-projection apart, head by head, and absorbs it: the keys' part is multiplied with the query, the
values' part with what a head collects of the latent vectors. Source: transformers 5 (modeling_deepseek_v3.py),
llama.cpp b11549 (src/models/deepseek2.cpp).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from weighbridge.forward import ops
from weighbridge.forward.layers import Block, Weights, attention_rules
from weighbridge.forward.ops import Floats

#: The epsilon of the latent vectors' norms, which no setting states.
_EPSILON: Final = 1e-6


def is_latent(weights: Weights, layer: int) -> bool:
    """Whether a layer has latent attention."""
    return weights.graph.has(f"layers.{layer}.attention.kv_a.weight")


def latent_attention(weights: Weights, layer: int, rotation: ops.Rotation | None) -> Block:
    """A function of the normed input [tokens, dim] of one text."""
    graph, name = weights.graph, f"layers.{layer}.attention"
    (heads, _), size, rank = (
        graph.heads(layer),
        int(graph.config.head_dim or 0),
        graph.shapes[f"{name}.kv_a.norm.weight"][0],
    )
    plain = size - (graph.shapes[f"{name}.kv_a.weight"][0] - rank)  # the first elements of a head don't rotate
    is_low_rank = graph.has(f"{name}.q_a.weight")
    project = weights.linears(f"{name}.{'q_a' if is_low_rank else 'q'}", f"{name}.kv_a")
    queries, output = weights.linears(f"{name}.q_b"), weights.linears(f"{name}.o")
    query_norm = weights.norm(f"{name}.q_a.norm", _EPSILON) if is_low_rank else None
    latent_norm = weights.norm(f"{name}.kv_a.norm", _EPSILON)
    collect = (_Absorbed if graph.has(f"{name}.k_b.weight") else _Expanded)(weights, layer)
    assert latent_norm is not None

    def turn(x: Floats) -> Floats:
        return x if rotation is None else ops.rotate(x, rotation, graph.row.rope == "neighbours")

    def apply(x: Floats) -> Floats:
        q, joint = project(x)
        q = (queries(query_norm(q))[0] if query_norm is not None else q).reshape(len(x), heads, size)
        key = turn(joint[:, None, rank:])
        return output(collect(q[..., :plain], turn(q[..., plain:]), latent_norm(joint[:, :rank]), key))[0]

    return apply


class _Expanded:
    """Keys and values of each head, from one matrix."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self.expand = weights.linears(f"layers.{layer}.attention.kv_b")
        self.rules = attention_rules(weights, layer)

    def __call__(self, plain: Floats, turned: Floats, latent: Floats, key: Floats) -> Floats:
        tokens, heads, size = plain.shape
        both = self.expand(latent)[0].reshape(tokens, heads, -1)
        keys = np.concatenate([both[..., :size], np.broadcast_to(key, turned.shape)], -1)
        return ops.attention(np.concatenate([plain, turned], -1), keys, both[..., size:], self.rules)


class _Absorbed:
    """Latent vectors as the keys and values of all heads."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self.weights, self.name = weights, f"layers.{layer}.attention"
        self.rules, self.matrices = attention_rules(weights, layer), dict[tuple[str, int], Floats]()

    def __call__(self, plain: Floats, turned: Floats, latent: Floats, key: Floats) -> Floats:
        (tokens, heads, _), rank = plain.shape, latent.shape[1]
        if self.weights.observer is not None:
            self.weights.observer([f"{self.name}.kv_b.weight"], latent)
        query = np.empty((tokens, heads, rank + turned.shape[-1]), np.float32)
        query[..., rank:] = turned
        for head in range(heads):
            query[:, head, :rank] = self._input("k_b", head, plain[:, head]) @ self._matrix("k_b", head)
        keys = np.concatenate([latent[:, None], key], -1)
        found = ops.attention(query, keys, latent[:, None], self.rules).reshape(tokens, heads, rank)
        parts = [self._input("v_b", head, found[:, head]) @ self._matrix("v_b", head).T for head in range(heads)]
        return np.concatenate(parts, -1)

    def _input(self, part: str, head: int, x: Floats) -> Floats:
        if self.weights.observer is not None:
            self.weights.observer([f"{self.name}.{part}.weight"], x, head)
        return x

    def _matrix(self, part: str, head: int) -> Floats:
        if (part, head) not in self.matrices:
            self.matrices[part, head] = self.weights.get(f"{self.name}.{part}.weight", head)
        return self.matrices[part, head]
