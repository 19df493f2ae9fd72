"""The integer formats of compressed-tensors as tensors (`schema/compressed.py` has their form in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read.params import column_order, per_row
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.compressed import INT8, NAME
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor


def build(match: Match[str], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    if match.schema is INT8:
        return build_bytes(match, stored)
    (outer, inner), bits, layout = match.shape, match.bits or 0, match.layout
    codes, scales = stored["codes"], per_row(stored["scales"], outer)
    dense = layout == "stream" and inner * bits == codes.spec.shape[-1] * 32
    members = {"codes": codes if dense else nodes.codes(codes, layout, bits, inner), "scales": scales}
    if "zeros" in stored:
        members["zeros"] = nodes.transpose(nodes.codes(nodes.transpose(stored["zeros"]), layout, bits, outer))
    used = "g_idx" in match.stored and (np.frombuffer(match.values["g_idx"], np.int32) != -1).any()  # -1: never set
    ordered = used and column_order(match, scales.spec.shape[1]) is not None
    if ordered:
        members["g_idx"] = stored["g_idx"]
    zero = None if "zeros" in stored else 1 << (bits - 1)
    packing = IntQuant(NAME, bits if dense else 8, bits, match.group or 0, scales.spec.dtype, zero, ordered=ordered)
    return QuantizedTensor(match.spec, packing, members)


def build_bytes(match: Match[Any], stored: Mapping[str, Node]) -> QuantizedTensor:
    """Codes of a byte each, with scales and zero points."""
    outer = match.shape[0]
    members = {"codes": stored["codes"]} | {
        role: per_row(node, outer) for role, node in stored.items() if role in ("scales", "zeros")
    }
    zero = None if "zeros" in stored else 128
    packing = IntQuant(NAME, 8, 8, match.group or 0, stored["scales"].spec.dtype, zero,
                       shift=128 * (zero is None), signed=True)  # fmt: skip
    return QuantizedTensor(match.spec, packing, members)
