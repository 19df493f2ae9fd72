"""Tied weights in a target: one copy where its loader makes the other, as save_pretrained and mlx_lm.convert write it;
listed as a loss where one tensor of the source becomes two.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers import reader
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.losses.shared_storage import copies, is_same
from weighbridge.conversion.plan.model import Loss
from weighbridge.models.arch.tables.spec import Role
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.tensors.nodes import Node

_NOTE = "is {other} (tie_word_embeddings): written once, as loaders expect it"


def copied(
    model: Checkpoint, tensors: Mapping[str, Node], storages: Mapping[str, str] = MappingProxyType({})
) -> list[Loss]:
    """The tensors that share bytes in the source and are written separately. Only PyTorch files can share."""
    if not _shares(model):
        return []
    found = copies(model.stored, tensors, storages)
    return [Loss(f"stored a second time; in the source it shares bytes with {other}", n) for n, other in found.items()]


def drop_tied(model: Checkpoint, draft: PlanBuilder) -> None:
    """Leaves out tensors that a Hugging Face folder's loader derives from another one, if both are one in the
    source."""
    for name, other in tied_names(model).items() if _shares(model) else ():
        if name in draft.tensors and is_same(model.stored[name], model.stored[other]):
            del draft.tensors[name]
            draft.reports.pop(name, None)
            draft.notes.append(f"{name} {_NOTE.format(other=other)}")


def drop_tied_mlx(model: Checkpoint, named: Mapping[str, object], draft: PlanBuilder) -> list[str]:
    """The names of `named`, MLX's, that mlx-lm drops in favour of the embeddings; listed in `draft`."""
    if not model.sizes.facts.get("tie_word_embeddings"):
        return []
    found = _tied(model.family.rows_of("mlx", model.sizes, named), named)
    stored = {a: b for a, b in tied_names(model).items() if is_same(model.stored[a], model.stored[b])}
    for name, other in found.items():
        if stored:
            draft.notes.append(f"{name} {_NOTE.format(other=other)}")
        else:
            draft.losses.append(Loss(f"omitted: mlx-lm uses {other} (tie_word_embeddings)", name))
    return list(found)


def tied_names(model: Checkpoint) -> dict[str, str]:
    """The stored tensors that the config ties to another one: name -> that one's name. None of a model without a
    family."""
    try:
        if not model.sizes.facts.get("tie_word_embeddings"):
            return {}
        return _tied(model.family.rows_of(model.dialect, model.sizes, model.stored), model.stored)
    except WeighbridgeError:
        return {}


def _tied(roles: Mapping[str, Role], tensors: Mapping[str, object]) -> dict[str, str]:
    names = {role.name: name for name, role in roles.items() if name in tensors}
    return {names[role.name]: names[role.tied] for role in roles.values() if role.name in names and role.tied in names}


def _shares(model: Checkpoint) -> bool:
    return reader(model.format).own_target == "torch"
