"""The integer formats of compressed-tensors as tensors (`schema/compressed.py` has their form in a file)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read.params import column_order, per_row
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.compressed import INT8, NAME
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import Node, QuantizedTensor


def build(match: Match[str], nodes: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    return _bytes(match, nodes) if match.schema is INT8 else _words(match, nodes)


def _words(match: Match[str], nodes: Mapping[str, Node]) -> QuantizedTensor:
    (outer, inner), bits, layout = match.shape, match.bits or 0, match.layout
    codes, scales = nodes["codes"], per_row(nodes["scales"], outer)
    dense = layout == "stream" and inner * bits == codes.spec.shape[-1] * 32
    members = {"codes": codes if dense else n.codes(codes, layout, bits, inner), "scales": scales}
    if "zeros" in nodes:
        members["zeros"] = n.transpose(n.codes(n.transpose(nodes["zeros"]), layout, bits, outer))
    if ordered := _is_ordered(match, scales.spec.shape[1]):
        members["g_idx"] = nodes["g_idx"]
    zero = None if "zeros" in nodes else 1 << (bits - 1)
    packing = IntQuant(NAME, bits if dense else 8, bits, match.group or 0, scales.spec.dtype, zero, ordered=ordered)
    return QuantizedTensor(match.spec, packing, members)


def _is_ordered(match: Match[str], groups: int) -> bool:
    if "g_idx" not in match.stored or (np.frombuffer(match.values["g_idx"], np.int32) == -1).all():  # -1: never set
        return False
    return column_order(match, groups) is not None


def _bytes(match: Match[str], nodes: Mapping[str, Node]) -> QuantizedTensor:
    outer = match.shape[0]
    members = {"codes": nodes["codes"]} | {
        role: per_row(node, outer) for role, node in nodes.items() if role in ("scales", "zeros")
    }
    zero = None if "zeros" in nodes else 128
    packing = IntQuant(NAME, 8, 8, match.group or 0, nodes["scales"].spec.dtype, zero,
                       shift=128 * (zero is None), signed=True)  # fmt: skip
    return QuantizedTensor(match.spec, packing, members)
