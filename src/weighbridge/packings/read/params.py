"""Parameters of column groups, shared by the readers of several schemes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import FormatError
from weighbridge.packings.schema.base import Match
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node


def column_order(match: Match[Any], groups: int) -> NDArray[np.int32] | None:
    """The group of each column by the stored index; None if groups are sequential. FormatError for an unknown group."""
    index = np.frombuffer(match.values["g_idx"], np.int32)
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < groups:
        raise FormatError("g_idx names a group that isn't there", field=match.stored["g_idx"],
                          expected=f"0 to {groups - 1}", found=f"{index.min()} to {index.max()}")  # fmt: skip
    return None if np.array_equal(index, np.arange(len(index)) // (match.group or 1)) else index


def per_row(node: Node, rows: int) -> Node:
    """Parameters as [rows, groups], from [rows, groups], [rows], [rows, 1] or a single row for all."""
    shape, elements = node.spec.shape, node.spec.elements
    if len(shape) == 2 and shape[0] == rows:
        return node
    if len(shape) != 2 and elements == rows:
        return nodes.reshape(node, (rows, 1))
    return nodes.strided(nodes.reshape(node, (elements,)), 0, (rows, elements), (0, 1))
