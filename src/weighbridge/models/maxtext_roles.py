"""Checkpoints of MaxText through a family's table: their parameters under the family's canonical names.

    from_maxtext(model)    the model under canonical names; None if it isn't MaxText's, or of no family in the table

Layers are one tensor with the layers along its second axis (`decoder.layers.mlp.wi_0.kernel`), or a tensor each
(`decoder.layers_3...`). Matrices are [in, out], those of attention [in, heads, size] and [heads, size, out]. The table
of roles is maxtext_roles.toml.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct, convert

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.imports.tables import read_table
from weighbridge.models.model import OpenModel
from weighbridge.models.roles_by_name import BIAS, by_roles
from weighbridge.models.stored_tensors import Dropped

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_OPTIMIZER: Final = "opt_state."
#: The kind of config's `rope_scaling` with which MaxText stores the rows of q and k in pairs.
_PAIRED: Final = "llama3"


class RepeatedLayers(Struct, frozen=True, forbid_unknown_fields=True):
    """`root`: the type of the factor of the embedding; `ends`: of the first components of names, for the layers of a
    block; `block`: layers of a block with numbers."""

    root: str
    ends: tuple[str, ...] = ()
    block: int = 0


class MaxTextRoles(Struct, frozen=True, forbid_unknown_fields=True):
    """maxtext_roles.toml."""

    families: dict[str, bool]
    repeated: dict[str, RepeatedLayers]
    outside: dict[str, str]
    vectors: dict[str, tuple[str, ...]]
    matrices: dict[str, tuple[str, ...]]
    experts: dict[str, tuple[str, ...]]


@cache
def maxtext_roles() -> MaxTextRoles:
    """The table of roles."""
    return convert(read_table(__file__, "maxtext_roles.toml"), MaxTextRoles)


def from_maxtext(model: OpenModel) -> tuple[OpenModel, list[str]] | None:
    """The model under canonical names, and notes; `left_out` also lists parameters without a role. None if it isn't
    MaxText's, or has no config of a family in the table. FormatError for a shape that contradicts the config."""
    embedding = maxtext_roles().outside["embed"]
    front = next((name.removesuffix(embedding) for name in model.stored if name.endswith(embedding)), None)
    try:
        if front is None or model.family.name not in maxtext_roles().families:
            return None
        parameters = MaxTextParameters(model, front)
        named = by_roles(model, parameters.of_role, parameters.used, _OPTIMIZER)
    except UnsupportedError:
        return None
    notes = ["MaxText's names are replaced by those of the family"]
    if parameters.repeated is not None:
        notes.append("the norms are stored plus 1, the embedding times the root of the width: both are undone")
    if parameters.factor != 1:
        notes.append(f"MaxText's queries are multiplied by {parameters.factor:.6g}, the root of the size of a head")
    return replace(named, left_out=(*named.left_out, *parameters.padding)), notes


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
        self.factor = math.sqrt(size) if maxtext_roles().families[model.family.name] else 1.0
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        self.repeated = maxtext_roles().repeated.get(model.family.name)
        self.paired = scaling.get("rope_type", scaling.get("type")) == _PAIRED

    def of_role(self, role: str, index: Mapping[str, int]) -> Node | None:
        """The tensor of a role, matrices as [out, in]; None if the model lacks it."""
        from weighbridge.tensors.nodes import transpose

        table, layer = maxtext_roles(), index.get("l", 0)
        if role in table.outside:
            return self._outside(role)
        if role in table.vectors:
            vectors = (self._in_layer(name, layer) for name in table.vectors[role])
            return self._norm(next((node for node in vectors if node is not None), None))
        for name in table.experts.get(role, ()):
            if (node := self._in_layer(name, layer, index.get("e"))) is not None:
                return transpose(node)
        return self._matrix(role.removesuffix(BIAS), role.endswith(BIAS), layer)

    def _outside(self, role: str) -> Node | None:
        """A tensor outside of the layers; of the vocabulary's, without the rows that pad it."""
        from weighbridge.tensors.nodes import scaled, transpose
        from weighbridge.tensors.slicing import part

        name, rows = maxtext_roles().outside[role], self.model.sizes["V"]
        node = self._take(name)
        if node is None or role == "norm":
            return self._norm(node)
        node = transpose(node) if role == "head" else node
        if role == "embed" and self.repeated is not None:
            node = scaled(node, rounded(math.sqrt(node.spec.shape[1]), self.repeated.root), over=True)
        more = node.spec.shape[0] - rows
        if more <= 0:
            return node
        size = node.spec.nbytes // node.spec.shape[0] * more
        self.padding.append(Dropped(self.front + name, "padding", "rows beyond the vocabulary", more, size))
        return part(node, 0, rows)

    def _matrix(self, role: str, bias: bool, layer: int) -> Node | None:
        """A matrix of a layer, or its bias."""
        from weighbridge.tensors.nodes import gather, reshape, scaled

        names = (f"{name}.{'bias' if bias else 'kernel'}" for name in maxtext_roles().matrices.get(role, ()))
        found = (self._in_layer(name, layer) for name in names)
        node = next((node for node in found if node is not None), None)
        if node is None:
            return None
        node = reshape(node, (node.spec.elements,)) if bias else _flat(node, role == "o")
        if self.paired and role in self.heads:
            heads = range(self.heads[role])  # whose rows at even places come first
            size = node.spec.shape[0] // len(heads)
            node = gather(node, [h * size + row for h in heads for half in (0, 1) for row in range(half, size, 2)])
        return scaled(node, self.factor) if role == "q" else node

    def _in_layer(self, name: str, layer: int, expert: int | None = None) -> Node | None:
        """A layer's parameter, or its part of the stacked one; an expert's of that."""
        repeated, cuts, inner = self.repeated, [] if expert is None else [(0, expert)], ""
        if repeated is not None and repeated.ends:
            layer, number = divmod(layer, len(repeated.ends))
            first, _, rest = name.partition(".")
            name = f"{first}{repeated.ends[number]}.{rest}"
        node = self._take(f"decoder.layers_{layer}.{name}")
        if node is None and repeated is not None and repeated.block:
            whole = self.model.sizes["L"] // repeated.block * repeated.block  # those after it aren't stacked
            if layer >= whole:
                return _cut(self._take(f"decoder.layers_remainder.layers_{layer - whole}.{name}"), cuts)
            layer, number = divmod(layer, repeated.block)
            inner = f"layers_{number}."
        if node is None:
            node, cuts = self._take(f"decoder.layers.{inner}{name}"), [(1, layer), *cuts]
        return _cut(node, cuts)

    def _norm(self, node: Node | None) -> Node | None:
        from weighbridge.tensors.nodes import shift

        return node if node is None or self.repeated is None else shift(node, -1.0)

    def _take(self, name: str) -> Node | None:
        node = self.model.stored.get(self.front + name)
        if node is not None:
            self.used.add(self.front + name)
        return node


def rounded(value: float, kind: str) -> float:
    """A number as F32 or BF16."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if kind == "BF16":
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    (number,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(number)


def _cut(node: Node | None, cuts: Sequence[tuple[int, int]]) -> Node | None:
    """The part of a tensor at these places of axes; None beyond its end."""
    from weighbridge.tensors.nodes import reshape
    from weighbridge.tensors.slicing import take

    for axis, number in cuts:
        if node is None or len(node.spec.shape) <= axis or number >= node.spec.shape[axis]:
            return None
        shape = node.spec.shape
        node = reshape(take(node, axis, [(number, number + 1)]), (*shape[:axis], *shape[axis + 1 :]))
    return node


def _flat(node: Node, output: bool) -> Node:
    """A kernel as [out, in]. `output`: whether the heads are its inputs."""
    from weighbridge.tensors.nodes import reshape, transpose

    inner = math.prod(node.spec.shape[:-1]) if output else node.spec.shape[0]
    return transpose(reshape(node, (inner, node.spec.elements // max(inner, 1))))
