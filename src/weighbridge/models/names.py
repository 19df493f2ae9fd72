"""The tensors of a model under the names of a style: stored, logical, those of a dialect or of an alias table.

An alias table renames canonical names by templates and changes no layout. Names without a row stay the same. `akunu`
has the names of that engine's book, chapter "The Weight Provider Abstraction".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import UsageError
from weighbridge.models.model import OpenModel
from weighbridge.models.wrapped import unwrapped

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

#: Canonical names -> names of the alias table; `{n}` is a layer. Each row covers a weight and a bias.
ALIASES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({
    "akunu": MappingProxyType({
        "embed.weight": "token_embedding.weight",
        **{
            f"{canonical}.{kind}": f"{name}.{kind}"
            for canonical, name in {
                "norm": "output_norm",
                "head": "output",
                "layers.{n}.attention.o": "layers.{n}.attention.output",
                "layers.{n}.attention.norm": "layers.{n}.attention_norm",
                "layers.{n}.mlp.gate": "layers.{n}.ffn.gate",
                "layers.{n}.mlp.up": "layers.{n}.ffn.up",
                "layers.{n}.mlp.down": "layers.{n}.ffn.down",
                "layers.{n}.mlp.norm": "layers.{n}.ffn_norm",
            }.items()
            for kind in ("weight", "bias")
        },
    }),
})  # fmt: skip
_LAYER: Final = re.compile(r"layers\.(\d+)\.")


def alias(style: str, canonical: str) -> str:
    """Returns the name that the alias table `style` has for a canonical name."""
    layer = _LAYER.match(canonical)
    if layer is None:
        return ALIASES[style].get(canonical, canonical)
    template = ALIASES[style].get(f"layers.{{n}}.{canonical[layer.end() :]}")
    return canonical if template is None else template.replace("{n}", layer[1])


def tensors_named(model: OpenModel, names: str) -> Mapping[str, LogicalTensor]:
    """Returns the tensors of `model` under the names of a style; tensors that the family's table doesn't name keep
    theirs. Raises UsageError for an unknown style, and UnsupportedError if a style needs the family's table and none
    describes the model."""
    if names == "stored":
        return model.stored
    if names == "logical":
        return model.logical
    model, _ = unwrapped(model)
    check_names(model, names)
    resolved = model.resolved
    if names in ALIASES:
        renamed = {alias(names, name): node for name, node in resolved.canonical.items()}
        return {**renamed, **resolved.others}
    return resolved.save_all(names)


def unnamed(model: OpenModel, names: str) -> list[str]:
    """Returns the stored names of the tensors that a style has no name for."""
    if names in ("stored", "logical"):
        return []
    return model.resolved.unnamed("canonical" if names in ALIASES else names)


def check_names(model: OpenModel, names: str) -> None:
    """Raises UsageError for an unknown style. A family's dialect is a style only for its models."""
    if names in ("stored", "logical", "canonical", *ALIASES):
        return
    if names not in model.family.dialects:
        styles = ", ".join(("stored", "logical", *model.family.dialects, *ALIASES))
        raise UsageError(f"unknown names {names!r}", hint=styles)
