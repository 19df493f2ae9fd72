"""The axis along which each role is split: column-parallel or row-parallel.

A column-parallel layer is split by outputs: queries, keys and values by heads, gate and up by width, embedding and head
by vocabulary, a state space's inputs by its heads. A row-parallel one is split by inputs (the attention's output, down,
a state space's output), and the ranks' results are summed. Everything else is whole on every rank: norms, routers,
indexers, and the biases of row-parallel layers, which are added once.

Sources: Megatron-LM (core/tensor_parallel/layers.py), vLLM (model_executor/layers/linear.py,
vocab_parallel_embedding.py, mamba/mamba_mixer.py and mamba_mixer2.py; models/qwen3_next.py), transformers 5.23
(`base_model_tp_plan` of its configs).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.tables.spec import Role


class Unit(StrEnum):
    """What a split never cuts through."""

    HEAD = "attention head"
    KV_HEAD = "key/value head"
    FUSED = "query, key and value heads in one tensor"
    WIDTH = "inner width"
    VOCABULARY = "vocabulary"
    STATE = "state-space head"
    KEY_HEAD = "linear attention's key head"


class SplitRule(NamedTuple):
    """The axis of a role's shape [outputs, inputs] to split, and the unit that stays whole."""

    axis: int
    unit: Unit


def _rules(axis: int, unit: Unit, *roles: str) -> dict[str, SplitRule]:
    return dict.fromkeys(roles, SplitRule(axis, unit))


# What families' tables call the roles that are cut.
RULES: Final[Mapping[str, SplitRule]] = MappingProxyType(
    _rules(0, Unit.HEAD, "q", "q_bias", "q_b", "k_b", "v_b", "kv_b", "sinks", "cross_q", "dec_q", "q_full")
    | _rules(1, Unit.HEAD, "o", "cross_o", "dec_o", "o_full", "bias", "dec_bias")
    | _rules(0, Unit.KV_HEAD, "k", "k_bias", "v", "v_bias", "cross_k", "cross_v", "dec_k", "dec_v", "k_full",
             "v_full", "unused_k", "unused_v", "unused_k_full", "unused_v_full")
    | _rules(0, Unit.FUSED, "qkv", "qkv_bias")
    | _rules(0, Unit.WIDTH, "gate", "gate_bias", "up", "up_bias", "gate_exp", "gate_exp_bias", "up_exp", "up_exp_bias",
             "gate_shared", "up_shared", "only", "dec_gate", "dec_up", "dec_only", "gate_wide", "up_wide")
    | _rules(1, Unit.WIDTH, "down", "down_exp", "down_shared", "dec_down", "down_wide")
    | _rules(0, Unit.VOCABULARY, "embed", "head", "head_bias", "next_embed", "next_head", "further_embed",
             "further_head")
    | _rules(0, Unit.STATE, "in", "in_gate", "in_x", "in_b", "in_c", "in_dt", "conv", "conv_bias", "dt", "dt_bias",
             "a_log", "d", "ssm_norm", "lin_q", "lin_k", "lin_v", "lin_z", "lin_a", "lin_b", "conv_q", "conv_k",
             "conv_v")
    | _rules(1, Unit.STATE, "x", "out", "lin_out")
    | _rules(0, Unit.KEY_HEAD, "lin_ba")
)  # fmt: skip
# ... and those that are whole on every rank, besides all norms.
WHOLE: Final = frozenset(
    {"o_bias", "down_bias", "down_exp_bias", "router", "router_bias", "shared_gate", "position", "unused_position",
     "types", "q_a", "kv_a", "next_in", "further_joined", "index_q", "index_k", "index_k_bias", "index_weights",
     "latent_down", "latent_up", "factors", "factors_long", "factors_short"}
    | {"alpha_p", "alpha_n", "beta", "eps"}  # of an activation
    | {"exp_scale", "scale"}  # Gemma 4's
    | {"per_layer_embed", "per_layer_in", "altup_in", "altup_out", "altup_router", "predict", "correct",
       "correct_scale", "laurel_left", "laurel_right", "layer_gate", "layer_out"}  # Gemma 3n's, in part Gemma 4's too
)  # fmt: skip
# Norms of several heads are cut as the heads are, those of a state space as its channels.
_OF_HEADS: Final = MappingProxyType({"q_norm": SplitRule(0, Unit.HEAD), "k_norm": SplitRule(0, Unit.KV_HEAD)})
_OF_STATE: Final = frozenset({"ssm_norm"})


def rule_of(row: Role) -> SplitRule | None:
    """How a role is split; None: whole on every rank. UnsupportedError for a role without a rule."""
    if (row.kind == "norm" or row.name.endswith("norm_bias")) and row.name not in _OF_STATE:
        return _OF_HEADS.get(row.name) if len(row.shape) > 1 else None
    if row.name in WHOLE:
        return None
    if row.name not in RULES:
        raise UnsupportedError(f"no tensor-parallel rule for the role {row.name!r}")
    return RULES[row.name]
