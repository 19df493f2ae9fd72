"""GPTQ as a tensor (`schema/gptq.py` has its form in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from weighbridge.base.dtypes import I32
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read.params import column_order
from weighbridge.packings.schema.base import Match, settings
from weighbridge.packings.schema.gptq import GPTQ, NAME, GptqLayout, version
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor

_FORMATS: Final = ("gptq", "gptq_v2")


def build(match: Match[GptqLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    inner, bits, planar = match.shape[1], match.bits or 0, match.layout.planar
    codes = nodes.transpose(stored["codes"])
    members = {"codes": nodes.codes(codes, "planar", bits, inner) if planar else codes}
    members["scales"] = nodes.transpose(stored["scales"])
    zero, zeros = _zeros(match, stored)
    if zeros is not None:
        members["zeros"] = nodes.transpose(zeros)
    groups = stored["scales"].spec.shape[0]
    ragged = inner % groups != 0  # the last group is incomplete
    if "g_idx" not in stored or not stored["g_idx"].spec.elements:
        if ragged:
            members["g_idx"] = nodes.const(np.arange(inner, dtype=np.int32) // (match.group or 1), I32)
    elif column_order(match, groups) is not None or ragged:
        members["g_idx"] = stored["g_idx"]
    shift = int(zero is None and not planar and match.layout.version != "gptq_v2")
    packing = IntQuant(NAME, 8 if planar else bits, bits, match.group or 0, stored["scales"].spec.dtype, zero,
                       shift=shift, ordered="g_idx" in members)  # fmt: skip
    return QuantizedTensor(match.spec, packing, members)


def _zeros(match: Match[GptqLayout], stored: Mapping[str, Node]) -> tuple[int | None, Node | None]:
    """(the zero point that all groups share, None), or (None, the zero point of each group as U8 [groups, out])."""
    bits, outer = match.bits or 0, match.shape[0]
    middle = 1 << (bits - 1)
    if "zeros" not in stored:
        return middle, None
    layout = "planar" if match.layout.planar else "stream"
    zeros = nodes.codes(nodes.Const(stored["zeros"].spec, match.values["zeros"]), layout, bits, outer).read_all()
    if any((zeros == zero).all() for zero in (middle, middle - 1)):  # symmetric, in either format
        return middle, None
    return None, nodes.codes(stored["zeros"], layout, bits, outer)


def mislabelled(module: str, tensors: Mapping[str, Node], config: Mapping[str, Any]) -> str:
    """The checkpoint format that the config declares, if a symmetric weight's zero points contradict it; empty if it
    is right or can't be verified. Reads the zero points."""
    declared = version(settings(config))
    zeros, scales = (tensors.get(module + GPTQ.members[role].suffix) for role in ("zeros", "scales"))
    if declared not in _FORMATS or zeros is None or scales is None:
        return ""
    outer = scales.spec.shape[-1]
    bits = zeros.spec.shape[-1] * 32 // max(outer, 1)
    stored = nodes.codes(zeros, "stream", bits, outer).read_all()
    contradiction = (1 << (bits - 1)) - 1 + (declared == "gptq")  # format 1 has zero - 1
    return declared if stored.size and (stored == contradiction).all() else ""
