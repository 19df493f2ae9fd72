"""Models of KerasHub through a family's table: their variables under the family's canonical names.

    from_keras_hub(model)    the model under canonical names; None if it isn't KerasHub's, or of no family in the table

Keras names a variable by the path of its layer and a number: `layers/gemma_backbone/layers/gemma_decoder_block_1/
attention/query_dense/vars/0`. A layer's place among those of its class is in its name, without a number for the first.
The table of roles is keras_roles.toml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct, convert

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.imports.tables import read_table
from weighbridge.models.model import OpenModel
from weighbridge.models.roles_by_name import BIAS, by_roles

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_OPTIMIZER: Final = "optimizer/"
_BACKBONE: Final = re.compile(r"^(?:layers/\w+_backbone/)?layers/")
_UNDERSCORES: Final = re.compile(r"(^|/)_+")
_LAYER: Final = re.compile(r"^(?:[a-z0-9]+_)?(?:transformer_decoder|transformer_encoder|decoder_block)(?:_(\d{1,6}))?/")
_NORM: Final = re.compile(r"^(?:[a-z0-9]+_)?(?:rms_normalization|layer_norm(?:alization)?)/")
# Gemma's projections, whose first axis counts heads.
_HEADS_FIRST: Final = re.compile(r"^\d+/attention/(?:query|key|value)_dense/")
_JOINED: Final[Mapping[str, tuple[str, ...]]] = {"qkv": ("q", "k", "v")}


class KerasRoles(Struct, frozen=True, forbid_unknown_fields=True):
    """keras_roles.toml."""

    families: frozenset[str]
    matrices: dict[str, tuple[str, ...]]
    norms: dict[str, tuple[str, ...]]
    variables: dict[str, str]
    experts: dict[str, str]


@cache
def keras_roles() -> KerasRoles:
    """The table of roles."""
    return convert(read_table(__file__, "keras_roles.toml"), KerasRoles)


def plain_path(name: str) -> str:
    """The path of a variable as the table of roles has it."""
    path = _UNDERSCORES.sub(r"\1", _BACKBONE.sub("", name))
    return _NORM.sub("norm/", _LAYER.sub(lambda found: f"{int(found[1] or 0)}/", path))


def from_keras_hub(model: OpenModel) -> OpenModel | None:
    """The model under canonical names; `left_out` also lists variables without a role. None if it isn't KerasHub's, or
    has no config of a family in the table. FormatError for a variable whose shape contradicts the config."""
    names = [name for name in model.stored if not name.startswith(_OPTIMIZER)]
    paths = {plain_path(name): name for name in names}
    try:
        if model.family.name not in keras_roles().families or len(paths) < len(names):  # or two models in one file
            return None
        variables = KerasVariables(model, paths)
        return by_roles(model, variables.of_role, variables.used, _OPTIMIZER)
    except UnsupportedError:
        return None


class KerasVariables:
    """The variables of a model by their paths in the table of roles. `used`: the names of those that were taken."""

    def __init__(self, model: OpenModel, paths: Mapping[str, str]) -> None:
        self.model, self.paths = model, paths
        self.used: set[str] = set()

    def of_role(self, role: str, index: Mapping[str, int]) -> Node | None:
        """The tensor of a role, matrices as [out, in]; None if the model lacks it."""
        from weighbridge.tensors.nodes import concat, transpose

        table, base, number = keras_roles(), role.removesuffix(BIAS), int(role.endswith(BIAS))
        if base in _JOINED:
            nodes = [self.of_role(one + BIAS * number, index) for one in _JOINED[base]]
            return concat([node for node in nodes if node is not None]) if None not in nodes else None
        if role in table.experts:
            return self._expert(table.experts[role].format(**index), index.get("e", 0))
        if role in table.variables:
            node = self._take(table.variables[role].format(**index))
            return transpose(node) if node is not None and role == "head" else node
        return self._in_layer(base, number, index)

    def _in_layer(self, role: str, number: int, index: Mapping[str, int]) -> Node | None:
        """A vector or a matrix of a layer."""
        from weighbridge.tensors.nodes import reshape

        table = keras_roles()
        for layer in table.norms.get(role, table.matrices.get(role, ())):
            path = f"{layer}/vars/{number}".format(**index)
            if (node := self._take(path)) is not None:
                if number or role in table.norms:
                    return reshape(node, (node.spec.elements,))
                return _as_matrix(node, role == "o", _HEADS_FIRST.match(path) is not None)
        return None

    def _expert(self, path: str, expert: int) -> Node | None:
        from weighbridge.tensors.nodes import reshape, transpose
        from weighbridge.tensors.slicing import part

        node = self._take(path)
        if node is None or len(node.spec.shape) != 3 or expert >= node.spec.shape[0]:
            return None
        return transpose(reshape(part(node, expert, expert + 1), node.spec.shape[1:]))

    def _take(self, path: str) -> Node | None:
        name = self.paths.get(path)
        if name is None:
            return None
        self.used.add(name)
        return self.model.stored[name]


def _as_matrix(node: Node, output: bool, heads_first: bool) -> Node:
    """A projection as [out, in]. `output`: whether the heads are its inputs."""
    from weighbridge.tensors.nodes import concat, reshape, transpose
    from weighbridge.tensors.slicing import part

    if len(node.spec.shape) != 3:
        return transpose(node) if len(node.spec.shape) == 2 else node
    first, second, third = node.spec.shape
    if output:
        return transpose(reshape(node, (first * second, third)))
    if heads_first:
        heads = (reshape(part(node, head, head + 1), (second, third)) for head in range(first))
        return concat([transpose(head) for head in heads])
    return transpose(reshape(node, (first, second * third)))
