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
    from weighbridge.tensors.nodes import stack

    nodes: dict[str, Node] = {}
    for name, place in model.family.expansion("canonical", model.sizes, "").places.items():
        found = [of_role(role, dict(zip(place.indices, at, strict=True))) for role, at in place.instances]
        each = [node for node in found if node is not None]
        if len(each) < len(found):
            continue
        node = each[0] if len(each) == 1 else stack(each)  # the experts of a layer
        if node.spec.shape != place.shape:
            raise FormatError("a tensor whose shape differs from config.json's", path=str(model.place.path), field=name,
                              expected=list(place.shape), found=list(node.spec.shape))  # fmt: skip
        nodes[name] = node
    dropped: list[Dropped] = []
    for name, stored in model.stored.items():
        if name not in used:
            mine = name.startswith(optimizer)
            part, why = ("optimizer", "is the optimizer's") if mine else ("value", "no role of the family")
            dropped.append(Dropped(name, part, why, 1, stored.spec.nbytes))
    return replace(with_nodes(model, nodes), left_out=(*model.left_out, *dropped))
