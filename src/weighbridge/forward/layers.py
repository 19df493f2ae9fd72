"""A layer of a decoder: attention, then a feed-forward network or experts, each with norms and a residual sum.

Latent attention takes keys and values of all heads from one vector of each token. A GGUF keeps the up-projection apart,
head by head, and absorbs it: the keys' part is multiplied with the query, the values' part with what a head collects of
the latent vectors. Source: transformers 5 (modeling_deepseek_v3.py), llama.cpp b11549 (src/models/deepseek2.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from weighbridge.forward import ops
from weighbridge.forward.graph import Graph
from weighbridge.forward.ops import Floats
from weighbridge.providers.base import Provider

#: The epsilon of the norms of latent vectors, which no setting states.
_LATENT_EPSILON: Final = 1e-6


class ObservedError(Exception):
    """An observer has what it needs: the rest isn't computed."""


class Observer(Protocol):
    """Takes the rows that enter matrix products. It may raise ObservedError, before the matrices are read."""

    def __call__(self, names: Sequence[str], x: Floats, expert: int | None = None) -> None:
        """`names`: of the weights (canonical) that multiply the rows of x [tokens, columns]; `expert`: which of a
        stack."""


class Rounding(Protocol):
    """Replaces weights by what a type makes of them."""

    def __call__(self, name: str, expert: int | None, values: Floats) -> Floats:
        """`name`: canonical; `expert`: which of a stack."""


class Weights:
    """The weights of one model as F32. Nothing is kept: a caller holds those that it uses."""

    def __init__(
        self, provider: Provider, graph: Graph, observer: Observer | None = None, rounding: Rounding | None = None
    ) -> None:
        self.provider, self.graph, self.observer, self.rounding = provider, graph, observer, rounding

    def get(self, name: str, index: int | slice | None = None) -> Floats:
        """A weight, one expert of a stack, or a range of rows."""
        found: Floats = self.provider.get(name, ... if index is None else index, dtype="f32")
        if self.rounding is None:
            return found
        return self.rounding(name, None if isinstance(index, slice) else index, found)

    def optional(self, name: str) -> Floats | None:
        return self.get(name) if self.graph.has(name) else None

    def linears(self, *names: str) -> Callable[[Floats], list[Floats]]:
        """Products with several matrices of the same input. Each has its bias. They are read for the first input."""
        observed = [f"{name}.weight" for name in names]
        matrices: list[tuple[Floats, Floats | None]] = []

        def apply(x: Floats) -> list[Floats]:
            if self.observer is not None:
                self.observer(observed, x)
            if not matrices:
                matrices.extend((self.get(f"{name}.weight").T, self.optional(f"{name}.bias")) for name in names)
            return [x @ matrix if bias is None else x @ matrix + bias for matrix, bias in matrices]

        return apply

    def norm(self, name: str, eps: float = 0.0) -> Callable[[Floats], Floats] | None:
        """A norm; None if the model lacks it. `eps`: in place of the model's."""
        graph, config = self.graph, self.graph.config
        eps = eps or config.norm_eps or 1e-5
        weight, bias = self.optional(f"{name}.weight"), self.optional(f"{name}.bias")
        if weight is None and not graph.row.plain_norms:
            return None
        scale = np.ones(1, np.float32) if weight is None else weight + np.float32(graph.row.norm_offset)
        if "layer" in (config.norm, graph.row.norm) or graph.row.plain_norms:
            return lambda x: ops.layer_norm(x, scale, bias, eps)
        return lambda x: ops.rms_norm(x, scale, eps)


Block = Callable[[Floats], Floats]


def attention_rules(weights: Weights, layer: int) -> ops.AttentionRules:
    """How a layer's queries see keys."""
    graph, config = weights.graph, weights.graph.config
    alibi = config.keys.get("attention.max_alibi_bias") or graph.row.alibi
    return ops.AttentionRules(
        graph.attention_scale(int(config.head_dim or 0)), bool(config.keys.get("attention.causal", True)),
        graph.window if graph.is_sliding(layer) else None, config.attention_softcap,
        weights.optional(f"layers.{layer}.attention.sinks"),
        ops.alibi_slopes(graph.heads(layer)[0], alibi) if alibi else None,
    )  # fmt: skip


def attention(weights: Weights, layer: int, rotation: ops.Rotation | None) -> Block:
    """A function of the normed input [tokens, dim] of one text."""
    graph, name = weights.graph, f"layers.{layer}.attention"
    config, fused = graph.config, graph.has(f"{name}.qkv.weight")
    size, wide = int(config.head_dim or 0), int(config.value_dim or 0)
    project = weights.linears(f"{name}.qkv") if fused else weights.linears(f"{name}.q", f"{name}.k", f"{name}.v")
    output = weights.linears(f"{name}.o")
    norms = [_head_norm(weights, f"{name}.{part}.norm", size) for part in "qk"]
    clamp, heads = config.keys.get("attention.clamp_kqv"), graph.heads(layer)
    rules, late = attention_rules(weights, layer), graph.row.norm_after_rope

    def turn(x: Floats) -> Floats:
        return x if rotation is None else ops.rotate(x, rotation, graph.row.rope == "neighbours")

    def apply(x: Floats) -> Floats:
        parts = project(x)
        q, k, v = _split(parts[0], heads, size, graph.row.qkv == "grouped") if fused else parts
        if clamp:
            q, k, v = (np.clip(part, -clamp, clamp) for part in (q, k, v))
        q, k = (
            norm(turn(part.reshape(len(x), -1, size))) if late else turn(norm(part.reshape(len(x), -1, size)))
            for part, norm in ((q, norms[0]), (k, norms[1]))
        )
        return output(ops.attention(q, k, v.reshape(len(x), -1, wide), rules))[0]

    return apply


def _split(x: Floats, heads: tuple[int, int], size: int, grouped: bool) -> list[Floats]:
    """q, k and v [tokens, ...] of their joint product: one after the other, or (`grouped`) together for each head of k
    and v."""
    if not grouped:
        return np.split(x, [heads[0] * size, (heads[0] + heads[1]) * size], -1)
    parts = x.reshape(len(x), heads[1], -1, size)
    return [part.reshape(len(x), -1) for part in (parts[:, :, :-2], parts[:, :, -2], parts[:, :, -1])]


def _head_norm(weights: Weights, name: str, size: int) -> Block:
    """The norm of q or k [tokens, heads, head_dim]: of each head, or of all heads together."""
    norm = weights.norm(name) if weights.graph.has(f"{name}.weight") else None
    if norm is None:
        return lambda x: x
    shape = weights.graph.shapes[f"{name}.weight"]
    if len(shape) == 2 or shape[-1] == size:
        return norm
    return lambda x: norm(x.reshape(len(x), -1)).reshape(x.shape)


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
    query_norm = weights.norm(f"{name}.q_a.norm", _LATENT_EPSILON) if is_low_rank else None
    latent_norm = weights.norm(f"{name}.kv_a.norm", _LATENT_EPSILON)
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


def feed_forward(weights: Weights, name: str) -> Block:
    """A function of the normed input, gated or not."""
    graph = weights.graph
    activate = ops.ACTIVATIONS[graph.activation]
    down = weights.linears(f"{name}.down")
    if not graph.has(f"{name}.gate.weight"):
        up = weights.linears(f"{name}.up")
        return lambda x: down(activate(up(x)[0]))[0]
    both = weights.linears(f"{name}.gate", f"{name}.up")

    def gated(x: Floats) -> Floats:
        gate, up = both(x)
        return down(activate(gate) * up)[0]

    return gated


def experts(weights: Weights, layer: int) -> Block:
    """A function of the normed input of all texts: each expert is read once, and computes its own tokens."""
    graph, name = weights.graph, f"layers.{layer}.moe"
    router = weights.get(f"{name}.router.weight").T
    bias = weights.optional(f"{name}.router.bias")
    shared = feed_forward(weights, f"{name}.shared") if graph.has(f"{name}.shared.up.weight") else None
    gate = weights.optional(f"{name}.shared.router.weight")

    def apply(x: Floats) -> Floats:
        if weights.observer is not None:
            weights.observer([f"{name}.router.weight"], x)
        chosen, share = route(graph, x @ router, bias)
        out, is_whole = np.zeros_like(x), True
        for expert in range(router.shape[1]):
            rows, slots = np.nonzero(chosen == expert)
            if len(rows):
                try:
                    out[rows] += _expert(weights, name, expert, x[rows]) * share[rows, slots, None]
                except ObservedError:
                    is_whole = False
        if shared is not None:
            out += shared(x) if gate is None else shared(x) * _shared_gate(weights, name, x, gate)
        if not is_whole:
            raise ObservedError
        return out

    return apply


def _shared_gate(weights: Weights, name: str, x: Floats, gate: Floats) -> Floats:
    if weights.observer is not None:
        weights.observer([f"{name}.shared.router.weight"], x)
    return ops.sigmoid(x @ gate.reshape(-1, 1))


def _expert(weights: Weights, name: str, expert: int, x: Floats) -> Floats:
    """One expert's output for its rows."""
    graph = weights.graph

    def product(parts: Sequence[str], x: Floats) -> list[Floats]:
        if weights.observer is not None:
            weights.observer([f"{name}.experts.{part}.weight" for part in parts], x, expert)
        out = []
        for part in parts:
            y = x @ weights.get(f"{name}.experts.{part}.weight", expert).T
            if graph.has(f"{name}.experts.{part}.bias"):
                y = y + weights.get(f"{name}.experts.{part}.bias", expert)
            out.append(y)
        return out

    activate = ops.ACTIVATIONS[graph.activation]
    if not graph.has(f"{name}.experts.gate.weight"):
        return product(["down"], activate(product(["up"], x)[0]))[0]
    gate, up = product(["gate", "up"], x)
    inner = ops.clamped_swiglu(gate, up) if graph.row.gated == "clamped" else activate(gate) * up
    return product(["down"], inner)[0]


def route(graph: Graph, logits: Floats, bias: Floats | None) -> tuple[np.ndarray, Floats]:
    """(experts [tokens, used], their weights) for the router's logits [tokens, experts]."""
    keys, rules, used = graph.config.keys, graph.row.routing, int(graph.config.experts_used or 1)
    if bias is not None and rules.bias == "logits":
        logits, bias = logits + bias, None
    scores = ops.sigmoid(logits) if graph.is_sigmoid else ops.softmax(logits)
    choice = scores if bias is None else scores + bias
    choice = _limited(choice, *graph.expert_groups)
    chosen = np.argsort(-choice, axis=-1, kind="stable")[:, :used]
    share = np.take_along_axis(scores, chosen, -1)
    if keys.get("expert_weights_norm", rules.normed):
        share = share / (share.sum(-1, keepdims=True) + np.float32(1e-20))
    return chosen, share * np.float32(keys.get("expert_weights_scale") or 1)


def _limited(choice: Floats, groups: int, used: int, best_of: int) -> Floats:
    """The scores, with -inf for experts outside of the best groups; a group counts by its best `best_of` experts."""
    if groups <= 1 or used >= groups:
        return choice
    parted = choice.reshape(len(choice), groups, -1)
    best = np.sort(parted, -1)[..., -best_of:].sum(-1)
    kept = np.argsort(-best, axis=-1, kind="stable")[:, :used]
    hidden = np.ones((len(choice), groups), bool)
    np.put_along_axis(hidden, kept, False, -1)
    return np.where(hidden[..., None], np.float32(-np.inf), parted).reshape(choice.shape)
