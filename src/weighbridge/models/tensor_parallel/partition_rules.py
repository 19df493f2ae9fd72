"""The axis along which each role is split, by the family's table (`[tensor_parallel]`; mixins/common.toml has the usual
roles): column-parallel layers by outputs, row-parallel layers by inputs. Everything else is whole on every rank.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.tables.spec import Role

_AXES: Final = {"column": 0, "row": 1}


class Unit(StrEnum):
    """Units that a split never cuts; the values are for messages."""

    HEADS = "attention head"
    KV_HEADS = "key/value head"
    QKV = "query, key and value heads in one tensor"
    WIDTH = "inner width"
    VOCABULARY = "vocabulary"
    STATE_HEADS = "state-space head"
    KEY_HEADS = "linear attention's key head"


class SplitRule(NamedTuple):
    """The axis of a role's shape [outputs, inputs] to split, and the unit that stays whole."""

    axis: int
    unit: Unit


def rule_of(family: Family, role: Role) -> SplitRule | None:
    """How a role is split; None: whole on every rank. UnsupportedError for a role without a rule."""
    words = family.document.tensor_parallel.get(role.name)
    is_norm = role.kind == "norm" or role.name.endswith("norm_bias")
    if words == "whole" or (words is None and is_norm):
        return None
    if words is None:
        raise UnsupportedError(
            f"no tensor-parallel rule for the role {role.name!r}",
            hint=f"the {family.name} table needs it in [tensor_parallel]",
        )
    direction, _, unit = words.partition(" ")
    rule = SplitRule(_AXES[direction], Unit[unit.upper()])
    per_head = rule.unit in (Unit.HEADS, Unit.KV_HEADS) and is_norm
    return None if per_head and len(role.shape) == 1 else rule  # one norm for all heads
