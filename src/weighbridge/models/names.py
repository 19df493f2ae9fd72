"""The tensors of a checkpoint under the names that a caller asks for: stored, logical, those of a dialect or an alias
table.

An alias table renames canonical names, template by template, and changes no layout; names without a row stay as they
are. `akunu`: the names of that engine's book, chapter "The Weight Provider Abstraction".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

#: How an alias table calls canonical names; `{n}` is a layer.
ALIASES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({
    "akunu": MappingProxyType({
        "embed.weight": "token_embedding.weight",
        "norm.weight": "output_norm.weight",
        "norm.bias": "output_norm.bias",
        "head.weight": "output.weight",
        "head.bias": "output.bias",
        "layers.{n}.attention.o.weight": "layers.{n}.attention.output.weight",
        "layers.{n}.attention.o.bias": "layers.{n}.attention.output.bias",
        "layers.{n}.attention.norm.weight": "layers.{n}.attention_norm.weight",
        "layers.{n}.attention.norm.bias": "layers.{n}.attention_norm.bias",
        "layers.{n}.mlp.gate.weight": "layers.{n}.ffn.gate.weight",
        "layers.{n}.mlp.gate.bias": "layers.{n}.ffn.gate.bias",
        "layers.{n}.mlp.up.weight": "layers.{n}.ffn.up.weight",
        "layers.{n}.mlp.up.bias": "layers.{n}.ffn.up.bias",
        "layers.{n}.mlp.down.weight": "layers.{n}.ffn.down.weight",
        "layers.{n}.mlp.down.bias": "layers.{n}.ffn.down.bias",
        "layers.{n}.mlp.norm.weight": "layers.{n}.ffn_norm.weight",
        "layers.{n}.mlp.norm.bias": "layers.{n}.ffn_norm.bias",
    }),
})  # fmt: skip
_LAYER: Final = re.compile(r"layers\.(\d+)\.")


def alias(style: str, canonical: str) -> str:
    """What the alias table `style` calls a canonical name."""
    layer = _LAYER.match(canonical)
    if layer is None:
        return ALIASES[style].get(canonical, canonical)
    found = ALIASES[style].get(f"layers.{{n}}.{canonical[layer.end() :]}")
    return canonical if found is None else found.replace("{n}", layer[1])


def tensors_named(model: Checkpoint, names: str) -> Mapping[str, LogicalTensor]:
    """The tensors of `model` under the names of a style. UsageError where there is no such style, UnsupportedError
    where a style needs the family's table and none knows the model."""
    if names == "stored":
        return model.stored
    if names == "logical":
        return model.logical
    if names in ALIASES:
        return {alias(names, name): node for name, node in model.resolved.canonical.items()}
    if names == "canonical":
        return model.resolved.canonical
    check_names(model, names)
    saved: Mapping[str, Any] = model.family.save(names, model.sizes, model.roles)
    return saved


def check_names(model: Checkpoint, names: str) -> None:
    """UsageError where there is no such style. One that families have, beside "canonical", asks for the model's."""
    if names in ("stored", "logical", "canonical", *ALIASES):
        return
    if names not in model.family.dialects:
        styles = ", ".join(("stored", "logical", *model.family.dialects, *ALIASES))
        raise UsageError(f"no names are called {names!r}", hint=styles)
