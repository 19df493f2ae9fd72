"""A rank's part of a model under any style of names, canonical ones too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.model import OpenModel
from weighbridge.models.names import ALIASES, alias, tensors_named
from weighbridge.models.tensor_parallel.partition import partition_tensors
from weighbridge.models.tensor_parallel.rank_view import rank_view
from weighbridge.models.wrapped import unwrapped

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor


def rank_tensors(model: OpenModel, names: str, rank: int, ranks: int) -> Mapping[str, LogicalTensor]:
    """The parts of a rank by the names of `tensors_named`. Stored tensors are cut like in `rank_view`,
    packed ones between their groups; others by their role. UsageError, with the numbers of ranks
    that work, if a tensor can't be divided; UnsupportedError for a packed tensor whose rows are in another order."""
    from weighbridge.tensors.slicing import take

    part = rank_view(model, rank, ranks)
    if names in ("stored", "logical"):
        return tensors_named(part, names)
    model, _ = unwrapped(model)
    dialect = "canonical" if names in ALIASES else names
    whole = tensors_named(model, dialect)
    divided = partition_tensors(model.family, dialect, model.sizes, whole, ranks)
    stored = {id(tensor): name for name, tensor in model.logical.items()}
    out: dict[str, LogicalTensor] = {}
    for name, tensor in whole.items():
        kept, partition = stored.get(id(tensor)), divided.get(name)
        made = tensor
        if kept is not None and kept in part.logical:
            made = part.logical[kept]
        elif partition is not None:
            try:
                made = take(tensor, partition.axis, partition.ranges(rank, ranks))
            except UnsupportedError as error:
                raise UnsupportedError(f"{name}: {error.message}", hint=error.hint) from None
        out[alias(names, name) if names in ALIASES else name] = made
    return out
