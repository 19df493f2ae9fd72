"""ComfyUI's quantized layers as tensors (`schema/comfy.py` has their form in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weighbridge.base.dtypes import U8
from weighbridge.packings.read import compressed, scaled_float
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.comfy import TILE, TiledScales, layout_of
from weighbridge.packings.schema.scaled_float import ScaledFloatLayout
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor


def build(match: Match[Any], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    weight, scales, layout = stored["weight"], stored["scales"], match.layout
    if isinstance(layout, TiledScales):
        return scaled_float.build_scaled(match.spec, layout_of(layout), weight, _untiled(scales, layout))
    if isinstance(layout, ScaledFloatLayout):
        return scaled_float.build_scaled(match.spec, layout, weight, scales)
    return compressed.build_bytes(match, {"codes": weight, "scales": scales})


def _untiled(scales: Node, layout: TiledScales) -> Node:
    """Scales in tiles of cuBLAS as rows, without padding."""
    height, width = TILE
    down, across = -(-layout.rows // height), -(-layout.groups // width)
    flat = nodes.reshape(nodes.bitcast(scales, U8, scales.spec.shape[-1]), (scales.spec.elements,))
    tile, part = height * width, height // 4
    shape = (down, 4, part, across, width)
    rows = nodes.strided(flat, 0, shape, (across * tile, width, 4 * width, tile, 1))
    grid = nodes.reshape(rows, (down * height * across * width,))
    return nodes.strided(grid, 0, (layout.rows, layout.groups), (across * width, 1))
