"""Tied weights: written once if the target's loader restores the copy, as save_pretrained and mlx_lm.convert do.

If one tensor of the source becomes two, that is a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers import own_target
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.losses.shared_storage import copies, is_same
from weighbridge.conversion.result import Loss
from weighbridge.models.arch.tables.spec import Role
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import Node

_NOTE = "is {original} (tie_word_embeddings): written once, as loaders expect it"


def copied(
    model: OpenModel, tensors: Mapping[str, Node], storages: Mapping[str, str] = MappingProxyType({})
) -> list[Loss]:
    """The losses of tensors that share bytes in the source and are written separately. Only PyTorch files can share."""
    if own_target(model.format) != "torch":
        return []
    return [
        Loss(f"stored a second time; in the source it shares bytes with {first}", name)
        for name, first in copies(model.stored, tensors, storages).items()
    ]


def drop_tied(model: OpenModel, draft: PlanBuilder) -> None:
    """Drops tensors that a Hugging Face folder's loader copies from another one, if the source stores both once."""
    if own_target(model.format) != "torch":
        return
    for name, original in tied_names(model).items():
        if name in draft.tensors and is_same(model.stored[name], model.stored[original]):
            del draft.tensors[name]
            draft.reports.pop(name, None)
            draft.notes.append(f"{name} {_NOTE.format(original=original)}")


def drop_tied_mlx(model: OpenModel, named: Mapping[str, object], draft: PlanBuilder) -> list[str]:
    """Lists in `draft` the tensors that mlx-lm drops in favour of the embeddings, and returns their names.

    `named`: the tensors by MLX's names.
    """
    if not model.sizes.facts.get("tie_word_embeddings"):
        return []
    tied = _tied(model.family.rows_of("mlx", model.sizes, named), named)
    stored_once = any(is_same(model.stored[a], model.stored[b]) for a, b in tied_names(model).items())
    for name, original in tied.items():
        if stored_once:
            draft.notes.append(f"{name} {_NOTE.format(original=original)}")
        else:
            draft.losses.append(Loss(f"omitted: mlx-lm uses {original} (tie_word_embeddings)", name))
    return list(tied)


def tied_names(model: OpenModel) -> dict[str, str]:
    """The stored tensors that the config ties to another: name -> that tensor's name. Empty without a family."""
    try:
        if not model.sizes.facts.get("tie_word_embeddings"):
            return {}
        return _tied(model.family.rows_of(model.dialect, model.sizes, model.stored), model.stored)
    except WeighbridgeError:
        return {}


def _tied(roles: Mapping[str, Role], tensors: Mapping[str, object]) -> dict[str, str]:
    names = {role.name: name for name, role in roles.items() if name in tensors}
    return {names[role.name]: names[role.tied] for role in roles.values() if role.name in names and role.tied in names}
