"""Stored tensors as logical ones, in one call."""

from __future__ import annotations

from collections.abc import Mapping

from weighbridge.packings.schema.base import Config
from weighbridge.packings.schema.groups import OnError
from weighbridge.packings.unpacking import Nodes, groups, replaced
from weighbridge.tensors.nodes import LogicalTensor


def unpack(tensors: Nodes, config: Config, on_error: OnError | None = None) -> Mapping[str, LogicalTensor]:
    """The same tensors with every group replaced by one tensor, at the position of its first member. Without groups,
    the mapping itself. `on_error`: see `schema.groups.find`."""
    return replaced(tensors, groups(tensors, config, on_error))
