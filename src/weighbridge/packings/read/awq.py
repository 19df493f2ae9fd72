"""AWQ as a tensor (`schema/awq.py` has its form in a file)."""

from __future__ import annotations

from collections.abc import Mapping

from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.schema.awq import BITS, NAME
from weighbridge.packings.schema.base import Match
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import Node, QuantizedTensor


def build(match: Match[None], nodes: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    outer = match.shape[0]
    members = {
        role: n.transpose(node if role == "scales" else n.codes(node, "awq", BITS, outer))
        for role, node in nodes.items()
    }
    zero = None if "zeros" in nodes else 1 << (BITS - 1)
    packing = IntQuant(NAME, 8, BITS, match.group or 0, nodes["scales"].spec.dtype, zero)
    return QuantizedTensor(match.spec, packing, members)
