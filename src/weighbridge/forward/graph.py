"""What a decoder computes, from its hyperparameters and the tensors it has; `graphs.toml` has the rest.

A graph is admitted if its architecture has a row, its layers have no tensor that the graph lacks, and its settings are
all computed. `graph_of` refuses others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal

import msgspec

from weighbridge.base.errors import UncomputedError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.providers.config import ModelConfig

_SIGMOID: Final = 2  # of expert_gating_func, gguf's ExpertGatingFuncType
_LAYER: Final = re.compile(r"layers\.(\d+)\.(.+)")


class Routing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a router's logits choose experts. `normed`: the weights of the chosen ones are divided by their sum, if no
    setting states it. `bias`: of the logits, or of the choice only."""

    normed: bool = True
    bias: Literal["choice", "logits"] = "choice"


class FamilyGraph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A family of `graphs.toml`: where it differs from Llama.

    `activation`: if no setting names it. `rope`: which elements of a head form a pair. `rotated`, `unrotated_every`:
    which layers rotate. `parallel`: attention and feed-forward network read the same input. `qkv`: the rows of a joint
    matrix, by part or grouped by heads of k and v. `window`: the config's key of a window that a GGUF lacks.
    `norm`: if the settings state the other kind. `norm_offset`: added to the weights of norms. `plain_norms`: norms
    without weights. `alibi`: the largest linear bias. `embedding`: the factor of embeddings. `logits`: how the logit
    scale is applied. `gated`: gpt-oss' unit. `sharpened`: yarn's `mscale_all_dim` scales attention.
    """

    activation: str = ""
    rope: Literal["neighbours", "none", "halves"] = "halves"
    rotated: Literal["all", "sliding"] = "all"
    unrotated_every: int = 0
    parallel: bool = False
    qkv: Literal["parts", "grouped"] = "parts"
    window: str = ""
    norm: Literal["", "layer"] = ""
    norm_offset: float = 0.0
    plain_norms: bool = False
    norm_after_rope: bool = False
    embedding: Literal["", "sqrt"] = ""
    logits: Literal["multiply", "divide"] = "multiply"
    alibi: float = 0.0
    gated: Literal["", "clamped"] = ""
    sharpened: bool = False
    routing: Routing = Routing()


class GraphTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`keys`: the settings that every row computes. `tensors`: the tensors of a layer, by their canonical names after
    `layers.N.`; `outer`: those outside of the layers."""

    keys: frozenset[str]
    tensors: frozenset[str]
    outer: frozenset[str]
    graph: Mapping[str, FamilyGraph]


@cache
def table() -> GraphTable:
    return msgspec.convert(read_table(__file__, "graphs.toml"), GraphTable)


@dataclass(frozen=True)
class Graph:
    """One model's graph. `shapes`: of its tensors by canonical name. `facts`: the effective config, for settings that
    no GGUF states."""

    config: ModelConfig
    row: FamilyGraph
    shapes: Mapping[str, Shape]
    facts: Mapping[str, Any]

    @property
    def head(self) -> str:
        """The name of the output matrix, which may be the embeddings."""
        return "head.weight" if self.has("head.weight") else "embed.weight"

    def has(self, name: str) -> bool:
        return name in self.shapes

    @property
    def layers(self) -> int:
        """The layers that compute the next token; those for further tokens come after them."""
        return self.config.layers - (self.config.keys.get("nextn_predict_layers") or 0)

    @property
    def activation(self) -> str:
        return self.row.activation or self.config.activation or "silu"

    @property
    def parallel(self) -> bool:
        """Attention and feed-forward network read the same input."""
        return bool(self.config.keys.get("use_parallel_residual", self.row.parallel))

    @property
    def embedding_scale(self) -> float:
        if self.config.embedding_scale is not None:
            return self.config.embedding_scale
        return math.sqrt(self.config.dim) if self.row.embedding == "sqrt" else 1.0

    @property
    def logit_scale(self) -> float:
        stated = self.config.logit_scale or 1.0
        return 1 / stated if self.row.logits == "divide" else stated

    def attention_scale(self, head_dim: int) -> float:
        if self.config.attention_scale:
            return self.config.attention_scale
        scale = 1 / math.sqrt(float(self.facts.get("query_pre_attn_scalar") or head_dim))
        rope = self.config.rope
        if not self.row.sharpened or rope is None or rope.type == "default":
            return scale
        return scale * yarn_magnitude(rope.parameters["factor"], rope.parameters.get("mscale_all_dim") or 0.0) ** 2

    @property
    def is_sigmoid(self) -> bool:
        """How a router's logits become scores: by a sigmoid, or by a softmax."""
        return self.config.keys.get("expert_gating_func") == _SIGMOID

    @property
    def expert_groups(self) -> tuple[int, int, int]:
        """Groups of experts, how many of them a token uses, and by how many of its best experts a group counts."""
        keys = self.config.keys
        if self.facts.get("topk_method") == "greedy":
            return 1, 1, 1
        groups = int(keys.get("expert_group_count") or 1), int(keys.get("expert_group_used_count") or 1)
        return *groups, 2 if self.is_sigmoid else 1

    def heads(self, layer: int) -> tuple[int, int]:
        """Heads of queries, and of keys and values."""
        q, kv = ((n[layer] if isinstance(n, tuple) else n) or 1 for n in (self.config.heads, self.config.kv_heads))
        return q, kv

    @property
    def window(self) -> int | None:
        """The sliding window of layers that have one."""
        stated: int | None = self.config.sliding_window or self.facts.get(self.row.window)
        return stated

    def is_sliding(self, layer: int) -> bool:
        sliding = self.config.sliding_layers
        return bool(self.window) and (not sliding or layer in sliding)

    def is_rotated(self, layer: int) -> bool:
        """Whether the layer's queries and keys rotate."""
        if self.row.rope == "none" or self.config.rope is None:
            return False
        pattern = self.config.keys.get("attention.rope_pattern")
        if pattern is not None:
            return bool(pattern[layer])
        every = self.facts.get("unrotated_every") if "no_rope_layers" in self.facts else self.row.unrotated_every
        if every:
            return (layer + 1) % int(every) != 0
        return self.row.rotated == "all" or not self.window or self.is_sliding(layer)


def graph_of(family: str, config: ModelConfig, shapes: Mapping[str, Shape], facts: Mapping[str, Any]) -> Graph:
    """The graph of a model. Raises UncomputedError for one that isn't computed, with the reason."""
    known = table()
    row = known.graph.get(family)
    if row is None:
        raise UncomputedError(
            f"the graph of {family} models isn't computed", hint="wb help supported lists those that are"
        )
    graph = Graph(config, row, shapes, facts)
    settings = sorted(set(config.keys) - known.keys)
    tensors = sorted({rest for name in shapes if (rest := _unknown(name, known, graph.layers))})
    for what, found in (("settings", settings), ("tensors", tensors)):
        if found:
            raise UncomputedError(
                f"a {family} model with the {what} {', '.join(found[:5])} isn't computed",
            )
    return graph


def _unknown(name: str, known: GraphTable, layers: int) -> str:
    """The part of a tensor's name that the graph lacks; "" if it has it."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return "" if name in known.outer else name
    return "" if int(match[1]) >= layers or match[2] in known.tensors else match[2]


def yarn_magnitude(factor: float, multiplier: float) -> float:
    """By how much yarn scales queries and keys."""
    return 0.1 * multiplier * math.log(factor) + 1 if factor > 1 else 1.0
