"""AWQ as a tensor (`schema/awq.py` has its form in a file)."""

from __future__ import annotations

from collections.abc import Mapping

from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.schema.awq import BITS, NAME
from weighbridge.packings.schema.base import Match
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor


def build(match: Match[None], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    outer, group = match.shape[0], match.group or 0
    members = {
        role: nodes.transpose(node if role == "scales" else nodes.codes(node, "awq", BITS, outer))
        for role, node in stored.items()
    }
    words = group % 32 == 0  # as streams of whole words; other groups as a byte for each code
    if words:
        members["codes"] = nodes.transpose(nodes.awq_by_rows(stored["codes"]))
    zero = None if "zeros" in stored else 1 << (BITS - 1)
    packing = IntQuant(NAME, BITS if words else 8, BITS, group, stored["scales"].spec.dtype, zero)
    return QuantizedTensor(match.spec, packing, members)
