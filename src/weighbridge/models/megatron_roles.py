"""Models of Megatron-LM and NeMo through a family's table: their parameters under the family's canonical names.

    from_megatron(model)    the model under canonical names; None if its names aren't Megatron-LM's, or without a table

Megatron-LM's names are the same for every model, so one table of roles serves all families. `linear_qkv` has for each
head of keys the rows of its queries, its key and its value, `linear_kv_up_proj` for each head those of its key and its
value. A gated `linear_fc1` has all rows of the gate, then those of the up projection. Distributed checkpoints stack
layers and experts, and have a tensor for each section of a Mamba-2 mixer's rows. Rows of the vocabulary beyond the
config's are padding.

The names of older versions and of Megatron-DeepSpeed, also in its pipelines, become today's first. Sources: the classes
of Megatron-LM, and the mappings of Megatron-Bridge (models/deepseek/common.py, models/nemotronh/nemotron_h_bridge.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
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


# The parts of `linear_qkv` that a role has: queries, keys, values; those of a head in `linear_kv_up_proj`.
_QKV: Final = {"q": (0,), "k": (1,), "v": (2,), "qkv": (0, 1, 2)}
_KEYS, _VALUES = "k_b", "v_b"
# The sections of a mixer's rows that distributed checkpoints have apart, in order.
_SECTIONS: Final = {"mixer.in_proj.weight": "z x B C dt", "mixer.conv1d.weight": "x B C", "mixer.conv1d.bias": "x B C",
                    "mixer.conv1d_weight": "x B C", "mixer.conv1d_bias": "x B C"}  # fmt: skip


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
    **dict.fromkeys(_QKV, RolePlace(("{l}.self_attention.linear_qkv.{}", "{l}.self_attention.linear_q_proj.{}"), 0)),
    "o": RolePlace(("{l}.self_attention.linear_proj.{}",)),
    "gate": RolePlace(("{l}.mlp.linear_fc1.{}",), 0),
    "up": RolePlace(("{l}.mlp.linear_fc1.{}",), 1),
    "down": RolePlace(("{l}.mlp.linear_fc2.{}",)),
    "conv": RolePlace(("{l}.mixer.conv1d.{}", "{l}.mixer.conv1d_{}")),
    "embed_norm": RolePlace(("embedding.word_embeddings.norm.{}",)),
}
# Both down projections of multi-latent attention, those of the queries first.
_LATENT: Final = "{l}.self_attention.linear_qkv_down_proj.weight"
_EXPERT: Final = ("{l}.mlp.experts.local_experts.{e}.LAYER.weight", "{l}.mlp.experts.LAYER.weight{e}",
                  "{l}.mlp.experts.experts.LAYER.weight")  # fmt: skip
#: The parameters of roles.
PLACES: Final[Mapping[str, RolePlace]] = MappingProxyType(
    {
        "embed": RolePlace(("embedding.word_embeddings.weight",)),
        "position": RolePlace(("embedding.position_embeddings.weight",)),
        "head": RolePlace(("output_layer.weight",)),
        "router": RolePlace(("{l}.mlp.router.weight",)),
        "router_bias": RolePlace(("{l}.mlp.router.expert_bias",)),
        "shared_gate": RolePlace(("{l}.mlp.shared_experts.gate_weight",)),
        "gate_shared": RolePlace(("{l}.mlp.shared_experts.linear_fc1.weight",), 0),
        "up_shared": RolePlace(("{l}.mlp.shared_experts.linear_fc1.weight",), 1),
        "down_shared": RolePlace(("{l}.mlp.shared_experts.linear_fc2.weight",)),
        "latent_down": RolePlace(("{l}.mlp.fc1_latent_proj.weight",)),
        "latent_up": RolePlace(("{l}.mlp.fc2_latent_proj.weight",)),
        "attn_post_norm": RolePlace(("{l}.self_attention.linear_proj.post_layernorm.weight",)),
        "ffn_post_norm": RolePlace(("{l}.mlp.linear_fc2.post_layernorm.weight",)),
        # multi-latent attention
        "q_a": RolePlace(("{l}.self_attention.linear_q_down_proj.weight", _LATENT), 0),
        "q_a_norm": RolePlace(("{l}.self_attention.q_layernorm.weight",
                               "{l}.self_attention.linear_q_up_proj.layer_norm_weight")),
        "q_b": RolePlace(("{l}.self_attention.linear_q_up_proj.weight",)),
        "kv_a": RolePlace(("{l}.self_attention.linear_kv_down_proj.weight", _LATENT), 1),
        "kv_a_norm": RolePlace(("{l}.self_attention.kv_layernorm.weight",
                                "{l}.self_attention.linear_kv_up_proj.layer_norm_weight")),
        **dict.fromkeys((_KEYS, _VALUES), RolePlace(("{l}.self_attention.linear_kv_up_proj.weight",))),
        # layers of one kind, such as Mamba-2 mixers, have one norm
        "layer_norm": RolePlace((
            "{l}.norm.weight", "{l}.mixer.in_proj.layer_norm_weight", "{l}.input_layernorm.weight",
            "{l}.self_attention.linear_qkv.layer_norm_weight", "{l}.pre_mlp_layernorm.weight",
            "{l}.mlp.linear_fc1.layer_norm_weight",
        )),
        "last_norm": RolePlace(("decoder.final_norm.weight", "decoder.final_layernorm.weight")),
        "in": RolePlace(("{l}.mixer.in_proj.weight",)),
        "dt_bias": RolePlace(("{l}.mixer.dt_bias",)),
        "a_log": RolePlace(("{l}.mixer.A_log",)),
        "d": RolePlace(("{l}.mixer.D",)),
        "ssm_norm": RolePlace(("{l}.mixer.norm.weight",)),
        "out": RolePlace(("{l}.mixer.out_proj.weight",)),
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
#: Parts of the names of older versions, and today's.
OLDER: Final = (
    (re.compile(r"^((?:module\.)?)language_model\.(?:encoder|transformer)\."), r"\1decoder."),
    (re.compile(r"^((?:module\.)?)language_model\."), r"\1"),
    (re.compile(r"\.(?:self_attention|attention)\.query_key_value\."), ".self_attention.linear_qkv."),
    (re.compile(r"\.(?:self_attention|attention)\.dense\."), ".self_attention.linear_proj."),
    (re.compile(r"\.dense_h_to_4h\."), ".linear_fc1."),
    (re.compile(r"\.dense_4h_to_h\."), ".linear_fc2."),
    (re.compile(r"\.post_attention_layernorm\."), ".pre_mlp_layernorm."),
)
_PIPELINE: Final = re.compile(r"(?:tied_modules\.\w+|(?P<layer>\d{1,6}))\.(?P<rest>.+)", re.ASCII)
_FIRST_OF_LAYER: Final = "input_layernorm.weight"


def from_megatron(model: OpenModel) -> OpenModel | None:
    """The model under canonical names; `left_out` also lists parameters without a role. None if its names aren't
    Megatron-LM's, or it has no config of a family. FormatError for a parameter whose shape contradicts the config."""
    names = modern_names(model.stored)
    front = next((name.removesuffix(_EMBEDDING) for name in names.values() if name.endswith(_EMBEDDING)), None)
    if front is None or front not in ("", "module.", "model.", "model.module."):
        return None
    try:
        places = model.family.expansion("canonical", model.sizes, "").places
    except UnsupportedError:
        return None
    source = _Parameters(model, front, {modern: name for name, modern in names.items()})
    nodes = {name: node for name, place in places.items() if (node := source.node(place)) is not None}
    unused = ((name, node.spec.nbytes) for name, node in model.stored.items() if name not in source.used)
    dropped = (Dropped(name, "value", "no role of the family", 1, size) for name, size in unused)
    return replace(with_nodes(model, nodes), left_out=(*model.left_out, *source.padding, *dropped))


def modern_names(stored: Iterable[str]) -> dict[str, str]:
    """Today's name of each stored one. Layers of DeepSpeed's pipelines are numbered from the first of its modules; the
    norm after them is a module of its own."""
    names = list(stored)
    found = {name: match for name in names if (match := _PIPELINE.fullmatch(name))}
    layers = [int(m["layer"]) for m in found.values() if m["layer"] and m["rest"] == _FIRST_OF_LAYER]
    out = {}
    for stored_name in names:
        name, match = stored_name, found.get(stored_name) if layers else None
        if match:
            number = int(match["layer"]) if match["layer"] else -1
            rest = match["rest"]
            if min(layers) <= number <= max(layers):
                name = f"decoder.layers.{number - min(layers)}.{rest}"
            elif rest in ("weight", "bias"):
                name = f"decoder.final_layernorm.{rest}"
            else:
                name = rest.replace("lm_head.", "output_layer.") if number > max(layers) else f"embedding.{rest}"
        for pattern, new in OLDER:
            name = pattern.sub(new, name)
        out[stored_name] = name
    return out


@dataclass
class _Parameters:
    """The parameters of a model. `front`: the beginning of all names; `names`: the stored name of each of today's;
    `used`: the names of those that were taken; `padding`: rows that were left out."""

    model: OpenModel
    front: str
    names: Mapping[str, str]

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
        fits = joined.spec.elements == math.prod(place.shape) and joined.spec.shape[1:] == place.shape[1:][-1:]
        if not fits and joined.spec.shape != place.shape:
            raise FormatError("a tensor whose shape differs from config.json's", path=str(self.model.place.path),
                              field=place.name, expected=list(place.shape), found=list(joined.spec.shape))  # fmt: skip
        return reshape(joined, place.shape)

    def _role(self, role: str, index: Mapping[str, int], rows: int) -> Node | None:
        """A role's rows of its parameter; all of them if there are no more."""
        from weighbridge.tensors.slicing import take

        place = PLACES.get("layer_norm" if role == "norm" and "l" in index else role)
        found = ((self._find(tail, index), tail) for tail in (place.tails if place else ()))
        node, tail = next(((node, tail) for node, tail in found if node is not None), (None, ""))
        if place is None or node is None:
            return node
        total = node.spec.shape[0] if node.spec.shape else 1
        if role.removesuffix("_bias") in _QKV and ".linear_qkv." in tail:
            return take(node, 0, self._rows_of_heads(total, _QKV[role.removesuffix("_bias")]))
        if role in (_KEYS, _VALUES):
            width = self._total(total, "linear_kv_up_proj", "D", "W")
            start = (index["h"] + 1) * width - rows if role == _VALUES else index["h"] * width
            return take(node, 0, [(start, start + rows)])
        if tail == _LATENT:
            self._total(total, "linear_qkv_down_proj", "Q", "C", "R", heads=1)
        elif place.part is None or total != 2 * rows or role.replace("up", "gate") not in self.model.family.rows:
            return node
        return take(node, 0, [(total - rows, total) if place.part else (0, rows)])

    def _total(self, rows: int, name: str, *sizes: str, heads: int = 0) -> int:
        """The sum of the sizes, which each head has of `rows`."""
        width, heads = sum(self.model.sizes.get(size) or 0 for size in sizes), heads or self.heads
        if rows != heads * width:
            raise FormatError(f"{name} doesn't have the sizes of config.json", path=str(self.model.place.path),
                              expected=f"{heads * width} rows", found=rows)  # fmt: skip
        return width

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
            name = tail.format(l=text, e=expert)
            node = self._stored(name, len(at))
            if node is None or any(n >= size for n, size in zip(at, node.spec.shape[:-1], strict=False)):
                continue
            for number in at:
                node = part(node, number, number + 1)
                node = reshape(node, node.spec.shape[1:])
            return node
        return None

    def _stored(self, name: str, axis: int) -> Node | None:
        """The parameter of a name, or its sections joined along an axis."""
        from weighbridge.tensors.nodes import concat

        sections = next((text for tail, text in _SECTIONS.items() if name.endswith(tail)), "").split()
        for names in ([name], [f"{name}.{section}" for section in sections]):
            stored = [self.names.get(self.front + one, "") for one in names]
            nodes = [node for one in stored if (node := self.model.stored.get(one)) is not None]
            if nodes and len(nodes) == len(names):
                self.used.update(stored)
                return concat(nodes, axis)
        return None
