"""How a tensor is shared out among the ranks of a tensor-parallel group: what each role is cut along.

A linear layer is cut by its outputs (column-parallel: queries by heads, keys and values by theirs, gate and up by their
width, embedding and head by the vocabulary) or by its inputs (row-parallel: the attention's output, down): then the sum
of the ranks' results is the result. Everything else is whole on every rank: norms, routers, biases of row-parallel
layers, which count once. So it is done in Megatron-LM (core/tensor_parallel/layers.py) and in vLLM
(model_executor/layers/linear.py, vocab_parallel_embedding.py): heads are never cut, and where there are fewer key heads
than ranks, each is on several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.models.arch.expand import Place, Sizes, shape_of
from weighbridge.models.arch.rows import Row
from weighbridge.models.arch.table import Family

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node


class Unit(StrEnum):
    """What isn't cut any further."""

    HEAD = "attention head"
    KV_HEAD = "key/value head"
    FUSED = "query, key and value heads in one tensor"
    WIDTH = "inner width"
    VOCABULARY = "vocabulary"


class Rule(NamedTuple):
    """The axis of a role's own shape [outputs, inputs] that is cut, and between which units."""

    axis: int
    unit: Unit


def _rules(axis: int, unit: Unit, *roles: str) -> dict[str, Rule]:
    return dict.fromkeys(roles, Rule(axis, unit))


# What families' tables call the roles that are cut.
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    _rules(0, Unit.HEAD, "q", "q_bias", "q_b", "k_b", "v_b", "sinks")
    | _rules(1, Unit.HEAD, "o")
    | _rules(0, Unit.KV_HEAD, "k", "k_bias", "v", "v_bias")
    | _rules(0, Unit.FUSED, "qkv", "qkv_bias")
    | _rules(0, Unit.WIDTH, "gate", "gate_bias", "up", "up_bias", "gate_exp", "up_exp", "gate_shared", "up_shared")
    | _rules(1, Unit.WIDTH, "down", "down_exp", "down_shared")
    | _rules(0, Unit.VOCABULARY, "embed", "head", "head_bias", "next_embed", "next_head")
)
# ... and those that are whole on every rank, besides all norms.
WHOLE: Final = frozenset(
    {"o_bias", "down_bias", "router", "router_bias", "shared_gate", "position", "q_a", "kv_a", "next_in"}
    | {"alpha_p", "alpha_n", "beta", "eps"}  # of an activation
)
# Norms of several heads are cut as the heads are.
_OF_HEADS: Final = MappingProxyType({"q_norm": Rule(0, Unit.HEAD), "k_norm": Rule(0, Unit.KV_HEAD)})
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")


class Part(NamedTuple):
    """A run of entries that is shared out by itself: `size` entries, each unit of them on `copies` ranks."""

    size: int
    copies: int = 1


@dataclass(frozen=True)
class Share:
    """How a tensor is shared out: on `axis`, every part in as many runs as there are ranks (over copies)."""

    axis: int
    parts: tuple[Part, ...]

    def runs(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """A rank's entries of the axis."""
        out, start = [], 0
        for size, copies in self.parts:
            each = size * copies // ranks
            first = start + rank // copies * each
            out.append((first, first + each))
            start += size
        return out

    def local(self, ranks: int) -> tuple[int, ...]:
        """How many entries a rank has of each part."""
        return tuple(size * copies // ranks for size, copies in self.parts)


def cut(node: Node, share: Share | None, rank: int, ranks: int) -> Node:
    """A rank's share of a tensor."""
    from weighbridge.tensors.slicing import take

    return node if share is None else take(node, share.axis, share.runs(rank, ranks))


def joined(nodes: Sequence[Node], share: Share | None) -> Node:
    """The tensor whose shares these are, rank by rank."""
    from weighbridge.tensors.nodes import concat
    from weighbridge.tensors.slicing import take

    if share is None:
        return nodes[0]
    out, start = [], 0
    for (_, copies), size in zip(share.parts, share.local(len(nodes)), strict=True):
        out += [take(node, share.axis, [(start, start + size)]) for node in nodes[::copies]]
        start += size
    return concat(out, share.axis)


# ------------------------------------------------------------------------------------------------ by the family's table


def shares(family: Family, dialect: str, sizes: Sizes, names: Mapping[str, Any], ranks: int) -> dict[str, Share | None]:
    """How each of a model's tensors is shared out; None: whole on every rank. UnsupportedError for a role that no rule
    is known for, UsageError where the ranks don't divide what must be divided."""
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, names, sizes)).places
    return {name: _share(family, dialect, sizes, places[name], ranks) for name in names if name in places}


def _share(family: Family, dialect: str, sizes: Sizes, place: Place, ranks: int) -> Share | None:
    rows = [family.rows[role] for role in place.roles]
    rules = {_rule(row) for row in rows}
    if len(rules) > 1 and len({rule and rule.axis for rule in rules}) > 1:
        raise UnsupportedError(f"{place.name} joins what is cut on different axes")
    rule = rules.pop()
    if rule is None:
        return None
    if place.dealt or place.plan.layouts:
        raise UnsupportedError(f"{place.name} joins its parts so that they can't be shared out by themselves")
    stacked = place.indices[len(place.named) :]
    parts = [part for row in rows for part in _parts(row, _rule(row) or rule, sizes)]
    lead = len(place.shape) - len(rows[0].shape)
    axis = lead + (len(rows[0].shape) - 1 - rule.axis if rows[0].turned(dialect) else rule.axis)
    if "h" in stacked:  # one tensor a head, in a stack or one under the other
        axis, parts = 0, [_Run(place.shape[0], sizes["H"])]
    return Share(axis, tuple(_part(place.name, rule.unit, run, ranks) for run in parts))


def _rule(row: Row) -> Rule | None:
    """What a role is cut along; None: nothing."""
    if row.kind == "norm" or row.name.endswith("norm_bias"):
        return _OF_HEADS.get(row.name) if len(row.shape) > 1 else None
    if row.name in WHOLE:
        return None
    if row.name not in RULES:
        raise UnsupportedError(f"no rule is known for sharing out {row.name!r} among ranks")
    return RULES[row.name]


class _Run(NamedTuple):
    """A part of a role along its axis: entries, units, and whether a unit may be on several ranks."""

    size: int
    units: int
    copied: bool = False


def _parts(row: Row, rule: Rule, sizes: Sizes) -> list[_Run]:
    """The parts of a role along its axis."""
    whole = shape_of(row, sizes)[rule.axis]
    heads = sizes.get("H") or next((int(n) for key in _HEADS if (n := sizes.facts.get(key))), 1)
    key_heads = sizes.get("KV") or (1 if row.shape[0] == "D" else heads)
    if rule.unit is Unit.HEAD:
        return [_Run(whole, heads)]
    if rule.unit is Unit.KV_HEAD:
        return [_Run(whole, key_heads, copied=True)]
    if rule.unit is not Unit.FUSED:
        return [_Run(whole, whole)]
    if (via := row.via.get("gguf")) is not None and via.layout == "parted":  # each group has its queries, key and value
        return [_Run(whole, sizes[via.symbols[1]])]
    return _terms(row.shape[0], sizes, heads)


def _terms(dim: str, sizes: Sizes, heads: int) -> list[_Run]:
    """Queries, keys and values one under the other: `3*N`, `N+2*D`."""
    out: list[_Run] = []
    for term in dim.split("+"):
        count, _, rest = term.partition("*") if term[0].isdigit() else ("1", "", term)
        size = math.prod(sizes[s] for s in rest.split("*"))
        units = heads if not out or size == out[0].size else 1 if rest == "D" else sizes["KV"]
        out += [_Run(size, units, copied=bool(out))] * int(count)
    return out


def _part(name: str, unit: Unit, run: _Run, ranks: int) -> Part:
    size, units, copied = run
    if units and units % ranks == 0 and size % units == 0:
        return Part(size)
    if copied and units and ranks % units == 0 and size % units == 0:
        return Part(size, ranks // units)
    raise UsageError(
        f"{name}: {ranks} ranks can't share {units:,} evenly ({unit})",
        hint=f"a number of ranks that divides {units:,}, and what else is cut",
    )
