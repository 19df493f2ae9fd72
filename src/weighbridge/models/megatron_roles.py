"""Models of Megatron-LM and NeMo through a family's table: their parameters under the family's canonical names.

    from_megatron(model)    the model under canonical names; None if its names aren't Megatron-LM's, or without a table

Megatron-LM's names are the same for every model, so one table of roles serves all families. `linear_qkv` has for each
head of keys the rows of its queries, its key and its value. A gated `linear_fc1` has all rows of the gate, then those
of the up projection. Distributed checkpoints stack layers and experts. Rows of the vocabulary beyond the config's are
padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.models.arch.size_keys import HEADS
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import TensorSlot
    from weighbridge.tensors.nodes import Node


# The parts of `linear_qkv` that a role has: queries, keys, values.
_QKV: Final = {"q": (0,), "k": (1,), "v": (2,), "qkv": (0, 1, 2)}


class RolePlace(NamedTuple):
    """The ends of the names of a role's parameter, one of which a model has. `part`: the number of its part in a joined
    one; None for the whole parameter."""

    tails: tuple[str, ...]
    part: int | None = None


# The places of weights that also have biases, with `{}` for either; those that have none.
_BOTH: Final = {
    "norm": RolePlace(("decoder.final_layernorm.{}", "decoder.final_norm.{}")),
    "attn_norm": RolePlace(("{l}.input_layernorm.{}", "{l}.self_attention.linear_qkv.layer_norm_{}")),
    "ffn_norm": RolePlace(("{l}.pre_mlp_layernorm.{}", "{l}.mlp.linear_fc1.layer_norm_{}")),
    "q_norm": RolePlace(("{l}.self_attention.q_layernorm.{}",)),
    "k_norm": RolePlace(("{l}.self_attention.k_layernorm.{}",)),
    **dict.fromkeys(_QKV, RolePlace(("{l}.self_attention.linear_qkv.{}",), 0)),
    "o": RolePlace(("{l}.self_attention.linear_proj.{}",)),
    "gate": RolePlace(("{l}.mlp.linear_fc1.{}",), 0),
    "up": RolePlace(("{l}.mlp.linear_fc1.{}",), 1),
    "down": RolePlace(("{l}.mlp.linear_fc2.{}",)),
}
_EXPERT: Final = ("{l}.mlp.experts.local_experts.{e}.LAYER.weight", "{l}.mlp.experts.LAYER.weight{e}",
                  "{l}.mlp.experts.experts.LAYER.weight")  # fmt: skip
#: The parameters of roles.
PLACES: Final[Mapping[str, RolePlace]] = MappingProxyType(
    {
        "embed": RolePlace(("embedding.word_embeddings.weight",)),
        "position": RolePlace(("embedding.position_embeddings.weight",)),
        "head": RolePlace(("output_layer.weight",)),
        "router": RolePlace(("{l}.mlp.router.weight",)),
        **{
            f"{role}{end}": RolePlace(tuple(tail.replace("{}", kind) for tail in place.tails), place.part)
            for role, place in _BOTH.items() for kind, end in (("weight", ""), ("bias", "_bias"))
        },
        **{
            role: RolePlace(tuple(tail.replace("LAYER", layer) for tail in _EXPERT), part)
            for role, layer, part in (("gate_exp", "linear_fc1", 0), ("up_exp", "linear_fc1", 1),
                                      ("down_exp", "linear_fc2", None))
        },
    }
)  # fmt: skip
_LAYERS: Final = "decoder.layers"
_EMBEDDING: Final = PLACES["embed"].tails[0]
_VOCABULARY: Final = frozenset({"embed", "head"})


def from_megatron(model: OpenModel) -> OpenModel | None:
    """The model under canonical names; `left_out` also lists parameters without a role. None if its names aren't
    Megatron-LM's, or it has no config of a family. FormatError for a parameter whose shape contradicts the config."""
    front = next((name.removesuffix(_EMBEDDING) for name in model.stored if name.endswith(_EMBEDDING)), None)
    if front is None or front not in ("", "module.", "model.", "model.module."):
        return None
    try:
        places = model.family.expansion("canonical", model.sizes, "").places
    except UnsupportedError:
        return None
    source = _Parameters(model, front)
    nodes = {name: node for name, place in places.items() if (node := source.node(place)) is not None}
    unused = ((name, node.spec.nbytes) for name, node in model.stored.items() if name not in source.used)
    dropped = (Dropped(name, "value", "no role of the family", 1, size) for name, size in unused)
    return replace(with_nodes(model, nodes), left_out=(*model.left_out, *source.padding, *dropped))


@dataclass
class _Parameters:
    """The parameters of a model. `front`: the beginning of all names; `used`: the names of those that were taken;
    `padding`: rows that were left out."""

    model: OpenModel
    front: str

    def __post_init__(self) -> None:
        self.used: set[str] = set()
        self.padding: list[Dropped] = []
        config = self.model.config
        self.heads = self.model.sizes.get("H") or next((int(config[k]) for k in HEADS.config if k in config), 1)
        self.groups = self.model.sizes.get("KV") or self.heads

    def node(self, place: TensorSlot) -> Node | None:
        """The tensor of a slot; None if the model lacks it."""
        from weighbridge.tensors.nodes import concat

        instances, rows = place.instances, math.prod(place.shape[: max(len(place.shape) - 1, 1)])
        nodes = []
        for role, index in instances:
            node = self._role(role, dict(zip(place.indices, index, strict=True)), rows // len(instances))
            if node is None:
                return None
            nodes.append(node)
        return self._fitted(concat(nodes), place, rows if instances[0][0] in _VOCABULARY else 0)

    def _fitted(self, joined: Node, place: TensorSlot, vocabulary: int) -> Node:
        """The tensor in the shape of its slot. `vocabulary`: the rows after which there is padding; 0 for none."""
        from weighbridge.tensors.nodes import reshape
        from weighbridge.tensors.slicing import part

        if vocabulary and (more := joined.spec.shape[0] - vocabulary) > 0:
            size = joined.spec.nbytes // joined.spec.shape[0] * more
            self.padding.append(Dropped(place.name, "padding", "rows beyond the vocabulary", more, size))
            joined = part(joined, 0, vocabulary)
        if joined.spec.elements != math.prod(place.shape) or joined.spec.shape[1:] != place.shape[1:][-1:]:
            raise FormatError("a tensor whose shape differs from config.json's", path=str(self.model.place.path),
                              field=place.name, expected=list(place.shape), found=list(joined.spec.shape))  # fmt: skip
        return reshape(joined, place.shape)

    def _role(self, role: str, index: Mapping[str, int], rows: int) -> Node | None:
        """A role's rows of its parameter; all of them if there are no more."""
        from weighbridge.tensors.slicing import take

        place = PLACES.get(role)
        found = (self._find(tail, index) for tail in (place.tails if place else ()))
        node = next((node for node in found if node is not None), None)
        if place is None or node is None:
            return node
        if role.removesuffix("_bias") in _QKV:
            return take(node, 0, self._rows_of_heads(node.spec.shape[0], _QKV[role.removesuffix("_bias")]))
        if place.part is None or node.spec.shape[0] != 2 * rows:
            return node
        return take(node, 0, [(place.part * rows, (place.part + 1) * rows)])

    def _rows_of_heads(self, total: int, parts: Sequence[int]) -> list[tuple[int, int]]:
        """The rows of q, k and v (0, 1, 2) in `linear_qkv`, one range for each group of heads."""
        queries = self.heads // self.groups
        starts = (0, queries, queries + 1, queries + 2)
        if total % (self.groups * starts[-1]):
            raise FormatError("linear_qkv doesn't have the heads of config.json", path=str(self.model.place.path),
                              expected=f"a multiple of {self.groups * starts[-1]} rows", found=total)  # fmt: skip
        width = total // (self.groups * starts[-1])
        return [
            ((group * starts[-1] + starts[n]) * width, (group * starts[-1] + starts[n + 1]) * width)
            for n in parts for group in range(self.groups)
        ]  # fmt: skip

    def _find(self, tail: str, index: Mapping[str, int]) -> Node | None:
        """The parameter of a layer and an expert, or their part of a stacked one."""
        from weighbridge.tensors.nodes import reshape
        from weighbridge.tensors.slicing import part

        layer, expert = index.get("l", 0), index.get("e", 0)
        inside = [expert] if "e" in index and "{e}" not in tail else []
        for text, at in ((f"{_LAYERS}.{layer}", inside), (_LAYERS, [layer, *inside])):
            name = self.front + tail.format(l=text, e=expert)
            node = self.model.stored.get(name)
            if node is None or any(n >= size for n, size in zip(at, node.spec.shape[:-1], strict=False)):
                continue
            self.used.add(name)
            for number in at:
                node = part(node, number, number + 1)
                node = reshape(node, node.spec.shape[1:])
            return node
        return None
