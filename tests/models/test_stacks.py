"""Experts that a file stacks: cut one by one as before, and whole where the other dialect stacks them as well."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.base.dtypes import BF16
from weighbridge.base.spec import Spec
from weighbridge.models.arch.fuse import Roles, RoleStack, StackMember
from weighbridge.tensors.layouts import interleave, separate_stack
from weighbridge.tensors.nodes import Const, Node

COUNT, HEIGHT, WIDTH = 3, 4, 5


def node(*shape: int) -> Node:
    numbers = np.arange(np.prod(shape), dtype=np.uint16)
    return Const(Spec(shape, BF16), numbers.tobytes())


def stacked() -> RoleStack:
    return RoleStack(node(COUNT, HEIGHT, WIDTH), COUNT, (HEIGHT, WIDTH))


def members(stack: RoleStack, order: range) -> Roles:
    return Roles({("gate_exp", (0, e)): StackMember(stack, n) for e, n in enumerate(order)})


def test_a_member_is_its_rows() -> None:
    stack = stacked()
    assert isinstance(stack.node, Node)
    whole = stack.node.read_all().reshape(COUNT, -1)
    for expert, (_, member) in enumerate(members(stack, range(COUNT)).items()):
        assert isinstance(member, Node)
        assert member.spec.shape == (HEIGHT, WIDTH)
        assert member.read_all().tobytes() == whole[expert].tobytes()


@pytest.mark.parametrize(
    ("order", "asked"), [(range(2, -1, -1), range(3)), (range(2), range(2)), (range(3), range(1, 3))]
)
def test_only_the_whole_stack_in_its_order_goes_whole(order: range, asked: range) -> None:
    stack = stacked()
    everything = [("gate_exp", (0, e)) for e in range(COUNT)]
    assert members(stack, range(COUNT)).stack_of(everything) is stack
    assert members(stack, order).stack_of([everything[e] for e in asked]) is None


def test_a_replaced_member_ends_the_stack() -> None:
    roles = members(stacked(), range(COUNT))
    other = node(HEIGHT, WIDTH)
    changed = Roles({**dict(roles.items()), ("gate_exp", (0, 1)): other})
    assert changed.stack_of(list(changed)) is None
    assert roles.behind({("gate_exp", (0, 1)): other})["gate_exp", (0, 1)] is not other
    assert roles.behind({("norm", (0,)): other})["norm", (0,)] is other


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_interleaved_stacks_are_taken_apart_as_each_is_by_itself(groups: int) -> None:
    layout = interleave(groups, (4, 8))
    whole = node(COUNT * 12, WIDTH)
    found = separate_stack(whole, COUNT, groups, (4, 8)).read_all().reshape(COUNT * 12, -1)
    rows = whole.read_all().reshape(COUNT, 12, -1)
    each = []
    for one in rows:
        alone = layout.undo(Const(Spec((12, WIDTH), BF16), one.tobytes()))
        each.append(alone.read_all().reshape(12, -1))
    expected = [part[:4] for part in each] + [part[4:] for part in each]
    assert (found == np.concatenate(expected)).all()
