"""Models under a family's canonical names, from a function that finds the tensor of a role under other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import TensorSlot
    from weighbridge.tensors.nodes import Node

#: The suffix of a bias's role.
BIAS: Final = "_bias"


def by_roles(
    model: OpenModel, of_role: Callable[[str, Mapping[str, int]], Node | None], used: set[str], optimizer: str
) -> OpenModel:
    """The model under canonical names. `of_role`: the tensor of a role with these indices, None without one; it adds
    the stored names that it takes to `used`. The others are added to `left_out`, as the optimizer's if their
    names begin with `optimizer`. Raises FormatError for a tensor whose shape contradicts the config, UnsupportedError
    without a family."""
    nodes: dict[str, Node] = {}
    for name, place in model.family.expansion("canonical", model.sizes, "").places.items():
        if (node := _joined(place, of_role)) is not None:
            if node.spec.shape != place.shape:
                raise FormatError("a tensor whose shape differs from config.json's", path=str(model.place.path),
                                  field=name, expected=list(place.shape), found=list(node.spec.shape))  # fmt: skip
            nodes[name] = node
    reasons = {True: ("optimizer", "is the optimizer's"), False: ("value", "no role of the family")}
    dropped = (
        Dropped(name, *reasons[name.startswith(optimizer)], 1, node.spec.nbytes)
        for name, node in model.stored.items() if name not in used
    )  # fmt: skip
    return replace(with_nodes(model, nodes), left_out=(*model.left_out, *dropped))


def _joined(place: TensorSlot, of_role: Callable[[str, Mapping[str, int]], Node | None]) -> Node | None:
    """The tensor of a slot, the experts of a layer stacked; None if one is missing."""
    from weighbridge.tensors.nodes import stack

    found = [of_role(role, dict(zip(place.indices, at, strict=True))) for role, at in place.instances]
    nodes = [node for node in found if node is not None]
    if len(nodes) < len(found):
        return None
    return nodes[0] if len(nodes) == 1 else stack(nodes)
