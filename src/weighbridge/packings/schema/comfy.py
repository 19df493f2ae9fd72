"""ComfyUI's quantized layers: JSON with a `format`, in a U8 tensor P.comfy_quant, or for all layers in the metadata of
the file (`_quantization_metadata`).

    float8_e4m3fn, float8_e5m2   P.weight, P.weight_scale: one F32
    mxfp8                        P.weight F8_E4M3, P.weight_scale U8 or F8_E8M0, a power of two per 32 columns, in tiles
    int8_tensorwise              P.weight I8, P.weight_scale F32: one, or one a row

A tile has the scales of 128 rows and 4 groups, in cuBLAS's order: that of row 32a + b and group c is byte 16b + 4a + c.
Other formats are refused (nvfp4 also has its codes in the other order than ModelOpt's), and so are rotated weights.
Source: comfy-kitchen of 2026-08-21 (float_utils.py `to_blocked`, tensor/*.py), ComfyUI QUANTIZATION.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, E4M3, E8M0, F32, U8
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.base.spec import Spec
from weighbridge.packings.schema import compressed, scaled_float
from weighbridge.packings.schema.base import METADATA, Evidence, Group, Member, PackingSchema, Solution
from weighbridge.packings.schema.scaled_float import ScaledFloatLayout

#: Rows and columns of a tile of scales.
TILE: Final = (128, 4)
_GROUP: Final = 32  # columns that share a scale of mxfp8
_KEY: Final = "_quantization_metadata"
_PREFIXES: Final = ("model.diffusion_model.", "diffusion_model.", "model.")
_FLOATS: Final = {"float8_e4m3fn": E4M3, "float8_e5m2": BY_NAME["F8_E5M2"]}


class TiledScales(NamedTuple):
    """8-bit floats with scales in tiles: the shape of the scales without padding."""

    rows: int
    groups: int


def _applies(group: Group) -> bool:
    return "config" in group.specs or _in_metadata(group) is not None


def _in_metadata(group: Group) -> Mapping[str, Any] | None:
    """The settings of a layer in the file's metadata, whose names may lack the file's prefix."""
    metadata = group.config.get(METADATA)
    text = metadata.get(_KEY) if isinstance(metadata, Mapping) else None
    layers = _layers(text) if isinstance(text, str) and len(text) <= CONFIG_JSON else {}
    names = (group.module, *(group.module.removeprefix(p) for p in _PREFIXES), *(p + group.module for p in _PREFIXES))
    return next((layers[name] for name in names if isinstance(layers.get(name), Mapping)), None)


@lru_cache(maxsize=4)
def _layers(text: str) -> Mapping[str, Any]:
    try:
        layers = json.loads(text).get("layers")
    except (ValueError, AttributeError, RecursionError):
        return {}
    return layers if isinstance(layers, Mapping) else {}


def _settings(group: Group) -> Mapping[str, Any]:
    if "config" not in group.specs:
        return _in_metadata(group) or {}
    try:
        settings = json.loads(group.values["config"])
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise FormatError("comfy_quant isn't a JSON object", field=group.module)
    return settings


def _solve(group: Group) -> Solution:
    settings, weight, scales = _settings(group), group.specs["weight"], group.specs["scales"]
    name = settings.get("format")
    if name in _FLOATS:
        group.need(weight.dtype is _FLOATS[name], f"the weight isn't {name}", _FLOATS[name], weight)
        group.need(scales.elements == 1, "weight_scale isn't one number", "1", scales)
        return scaled_float.solve(group, weight)._replace(axes={})
    if name == "mxfp8":
        return _solve_tiled(group, weight, scales)
    if name == "int8_tensorwise" and not settings.get("convrot") and "smoothing" not in group.specs:
        specs = {"codes": weight, "scales": scales}
        group.need(weight.dtype is BY_NAME["I8"], "the weight isn't int8", "I8", weight)
        return compressed.solve_bytes(group._replace(specs=specs))._replace(units={})
    rotated = " with rotated weights" if settings.get("convrot") else ""
    raise UnsupportedError(
        f"{group.module} is quantized by ComfyUI as {name!r}{rotated}, which isn't read",
        hint="take the file with bf16 or fp8 weights",
    )


def _solve_tiled(group: Group, weight: Spec, scales: Spec) -> Solution:
    group.need(weight.dtype is E4M3 and len(weight.shape) == 2 and weight.shape[-1] % _GROUP == 0,
               "the weight isn't mxfp8", f"F8_E4M3 [out, a multiple of {_GROUP}]", weight)  # fmt: skip
    rows, groups = weight.shape[0], weight.shape[1] // _GROUP
    padded = -(-rows // TILE[0]) * TILE[0] * -(-groups // TILE[1]) * TILE[1]
    group.need(scales.dtype in (U8, E8M0) and scales.elements == padded > 0, "the tiles don't belong to the weight",
               f"{padded} bytes of scales", scales)  # fmt: skip
    return Solution(weight.shape, 8, _GROUP, TiledScales(rows, groups))


def layout_of(tiled: TiledScales) -> ScaledFloatLayout:
    """The layout of the scales once they are in rows."""
    return ScaledFloatLayout(E4M3, (1, _GROUP), tiled)


COMFY: Final = PackingSchema(
    "comfy-quant", "comfy", "comfy",
    {
        "weight": Member(".weight", selects=True),
        "scales": Member(".weight_scale", selects=True),
        "config": Member(".comfy_quant", (U8,), required=False, probe=4096),
        "global": Member(".weight_scale_2", (F32,), required=False),
        "smoothing": Member(".pre_quant_scale", required=False),
    },
    key="scales", solve=_solve, reader="weighbridge.packings.read.comfy", applies=_applies,
    ignored=(".input_scale",), bits=8,
    evidence=Evidence("comfy-quant", "layers quantized by ComfyUI (comfy_quant)", "config"),
)  # fmt: skip
