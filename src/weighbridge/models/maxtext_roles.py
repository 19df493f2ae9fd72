"""Checkpoints of MaxText through a family's table: their parameters under the family's canonical names.

    from_maxtext(model)    the model under canonical names; None if it isn't MaxText's, or of no family below

Layers are one tensor with the layers along its second axis (`decoder.layers.mlp.wi_0.kernel`), or a tensor each
(`decoder.layers_3...`). Matrices are [in, out], those of attention [in, heads, size] and [heads, size, out]. Source:
MaxText's converters to Hugging Face (`param_mapping.py`, `llama_mistral_mixtral_orbax_to_hf.py`) of November 2026, for
Llama, Mistral, Mixtral and Qwen 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.model import OpenModel
from weighbridge.models.roles_by_name import BIAS, by_roles
from weighbridge.models.stored_tensors import Dropped

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

#: How the name of a parameter ends that every checkpoint of MaxText has.
EMBEDDING: Final = "token_embedder.embedding"
_OPTIMIZER: Final = "opt_state."
#: Families -> whether MaxText divides the queries by the root of the size of a head.
FAMILIES: Final[Mapping[str, bool]] = MappingProxyType({"llama": True, "qwen3": False, "qwen3moe": False})
#: The kind of config's `rope_scaling` with which MaxText stores the rows of q and k in pairs.
_PAIRED: Final = "llama3"
#: The parameters of roles outside of layers, and in layers, without `.kernel` and `.bias` of matrices.
OUTSIDE: Final[Mapping[str, str]] = MappingProxyType(
    {"embed": EMBEDDING, "norm": "decoder.decoder_norm.scale", "head": "decoder.logits_dense.kernel"}
)
VECTORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attn_norm": "pre_self_attention_layer_norm.scale", "ffn_norm": "post_self_attention_layer_norm.scale",
        "q_norm": "self_attention.query_norm.scale", "k_norm": "self_attention.key_norm.scale",
    }
)  # fmt: skip
MATRICES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "q": ("self_attention.query",), "k": ("self_attention.key",), "v": ("self_attention.value",),
        "o": ("self_attention.out",), "gate": ("mlp.wi_0",), "up": ("mlp.wi_1",), "down": ("mlp.wo",),
        "router": ("MoeBlock_0.gate", "moe_block.gate"),
    }
)  # fmt: skip
EXPERTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "gate_exp": ("MoeBlock_0.wi_0", "moe_block.wi_0"), "up_exp": ("MoeBlock_0.wi_1", "moe_block.wi_1"),
        "down_exp": ("MoeBlock_0.wo", "moe_block.wo"),
    }
)  # fmt: skip


def from_maxtext(model: OpenModel) -> tuple[OpenModel, list[str]] | None:
    """The model under canonical names, and notes; `left_out` also lists parameters without a role. None if it isn't
    MaxText's, or has no config of a family that is known here. FormatError for a shape that contradicts the config."""
    front = next((name.removesuffix(EMBEDDING) for name in model.stored if name.endswith(EMBEDDING)), None)
    try:
        if front is None or model.family.name not in FAMILIES:
            return None
        parameters = MaxTextParameters(model, front)
        notes = ["MaxText's names are replaced by those of the family"]
        if parameters.factor != 1:
            notes.append(f"MaxText's queries are multiplied by {parameters.factor:.6g}, the root of the size of a head")
        named = by_roles(model, parameters.of_role, parameters.used, _OPTIMIZER)
        return replace(named, left_out=(*named.left_out, *parameters.padding)), notes
    except UnsupportedError:
        return None


class MaxTextParameters:
    """The parameters of a model, whose names begin with `front`. `used`: the names of those that were taken; `padding`:
    rows that were left out; `factor`: of the queries."""

    def __init__(self, model: OpenModel, front: str) -> None:
        self.model, self.front = model, front
        self.used: set[str] = set()
        self.padding: list[Dropped] = []
        sizes, config = model.sizes, model.config
        self.heads = {"q": sizes["H"], "k": sizes.get("KV") or sizes["H"]}
        size = config.get("head_dim") or sizes["N"] // sizes["H"]
        self.factor = math.sqrt(size) if FAMILIES[model.family.name] else 1.0
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        self.paired = scaling.get("rope_type", scaling.get("type")) == _PAIRED

    def of_role(self, role: str, index: Mapping[str, int]) -> Node | None:
        """The tensor of a role, matrices as [out, in]; None if the model lacks it."""
        from weighbridge.tensors.nodes import reshape, scaled, transpose

        base, layer = role.removesuffix(BIAS), index.get("l", 0)
        if role in OUTSIDE:
            node = self._take(OUTSIDE[role])
            node = transpose(node) if node is not None and role == "head" else node
            return node if node is None or role == "norm" else self._without_padding(node, self.front + OUTSIDE[role])
        if role in VECTORS:
            return self._in_layer((VECTORS[role],), layer)
        if role in EXPERTS:
            node = self._in_layer(EXPERTS[role], layer, index.get("e"))
            return node and transpose(node)
        end = "bias" if base != role else "kernel"
        node = self._in_layer([f"{name}.{end}" for name in MATRICES.get(base, ())], layer)
        if node is None:
            return None
        if end == "bias":
            node = reshape(node, (node.spec.elements,))
        else:
            inner = math.prod(node.spec.shape[:-1]) if base == "o" else node.spec.shape[0]
            node = transpose(reshape(node, (inner, node.spec.elements // inner)))
        if base in self.heads and self.paired:
            node = _halves(node, self.heads[base])
        return scaled(node, self.factor) if base == "q" else node

    def _without_padding(self, node: Node, name: str) -> Node:
        """The rows of the vocabulary, without those that pad it."""
        from weighbridge.tensors.slicing import part

        rows, found = self.model.sizes["V"], node.spec.shape[0]
        if found <= rows:
            return node
        size = node.spec.nbytes // found * (found - rows)
        self.padding.append(Dropped(name, "padding", "rows beyond the vocabulary", found - rows, size))
        return part(node, 0, rows)

    def _in_layer(self, names: Sequence[str], layer: int, expert: int | None = None) -> Node | None:
        """A layer's parameter, or its part of the stacked one; an expert's of that."""
        from weighbridge.tensors.nodes import reshape
        from weighbridge.tensors.slicing import take

        for name in names:
            single, stacked = self._take(f"decoder.layers_{layer}.{name}"), None
            node = single if single is not None else (stacked := self._take(f"decoder.layers.{name}"))
            if node is None:
                continue
            cuts = [] if stacked is None else [(1, layer)]
            for axis, number in cuts if expert is None else [*cuts, (0, expert)]:
                shape = node.spec.shape
                if len(shape) <= axis or number >= shape[axis]:
                    return None
                node = reshape(take(node, axis, [(number, number + 1)]), (*shape[:axis], *shape[axis + 1 :]))
            return node
        return None

    def _take(self, name: str) -> Node | None:
        node = self.model.stored.get(self.front + name)
        if node is not None:
            self.used.add(self.front + name)
        return node


def _halves(node: Node, heads: int) -> Node:
    """The rows of each head with those at even places first."""
    from weighbridge.tensors.nodes import gather

    size = node.spec.shape[0] // heads
    return gather(node, [head * size + row for head in range(heads) for half in (0, 1) for row in range(half, size, 2)])
