"""The parameters and roles of all tensors of a model, which several reports share."""

from __future__ import annotations

from typing import NamedTuple

from weighbridge.base import gc_pause
from weighbridge.models.model import OpenModel
from weighbridge.models.parameter_count import Count
from weighbridge.models.tensor_roles import TensorRole, TensorRoles, roles_of
from weighbridge.reports.inspect.report import counted_parameters


class Survey(NamedTuple):
    """`counted`: the parameters, with packed weights. `roles`: one row per stored tensor."""

    counted: Count
    roles: TensorRoles


def survey(model: OpenModel) -> Survey:
    """Surveys an open model. Reads headers and small files only."""
    with gc_pause.paused():
        counted = counted_parameters(model)
        return Survey(counted, roles_of(model, counted))


def roles_by_name(model: OpenModel) -> dict[str, TensorRole]:
    """Returns the role of each tensor by its stored name, and of each packed weight by its logical name."""
    counted, (_, rows) = survey(model)
    pairs = list(zip(model.index.entries, rows, strict=True))
    packed = {counted.packed[e.name].name: row for e, row in pairs if e.name in counted.packed}
    return packed | {e.name: row for e, row in pairs}
