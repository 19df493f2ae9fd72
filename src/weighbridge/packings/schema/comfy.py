"""ComfyUI's quantized layers: JSON with a `format`, in a U8 tensor P.comfy_quant, or for all layers in the metadata of
the file (`_quantization_metadata`).

    float8_e4m3fn, float8_e5m2   P.weight, P.weight_scale: one F32; with _rowwise or _blockwise: one per row or block
    mxfp8                        P.weight F8_E4M3, P.weight_scale U8 or F8_E8M0, a power of two per 32 columns, in tiles
    nvfp4                        P.weight U8 [out, in / 2], P.weight_scale U8 or F8_E4M3 per 16 columns, in tiles,
                                 P.weight_scale_2 F32; P.pre_quant_scale [in]: scales of inputs, so of columns
    int8_tensorwise              P.weight I8, P.weight_scale F32: one, or one per row; may be rotated (convrot).
                                 Of convolutions and stacks, one per number of the first axes: [out, 1, 1, 1],
                                 [experts, out, 1]; their rotation isn't read
    int8_blockwise               P.weight I8, P.weight_scale F32 [out / 128, in / 128]
    convrot_w4a4                 P.weight I8 [out, in / 2], P.weight_scale F32 [out]; rotated
    awq_w4a16                    P.weight I8 [out, in / 2], P.weight_scale, P.weight_zeros [in / 64, out]:
                                 (code - 8) * scale + zero
    asym_w4a8_int8               P.weight I8 [out, in / 2], P.weight_s_rel [out, in / 16], P.weight_s_channel [out],
                                 P.weight_codebook [16]: round(codebook[code] * s_rel) * s_channel; rotated
    svdquant_w4a4                P.weight I8 [out, in / 2], P.weight_scale [in / 64, out], P.weight_smooth_factor [in],
                                 P.weight_proj_down [in, rank], P.weight_proj_up [out, rank]; the last three also as
                                 P.smooth_factor, ...: code * scale / smooth_factor + proj_up @ proj_down^T.
                                 Tile-packed: [out / 128, in / 64, 32, 128], scales [out / 128, in / 64, 128], proj_up
                                 [out / 128, rank, 128]: each tile has the 32 bytes of 64 columns of 128 rows

The first code of a byte is in its high nibble in nvfp4, in its low nibble elsewhere. A tile has the scales of 128 rows
and 4 groups, in cuBLAS's order: that of row 32a + b and group c is byte 16b + 4a + c. Rotated rows are multiplied by
Hadamard matrices (`packings/hadamard.py`), in groups of `convrot_groupsize` columns.
Sources: comfy-kitchen of 2026-08-21 (float_utils.py `to_blocked`, tensor/*.py, backends/eager), ComfyUI (comfy/ops.py
`_load_quantized_module`, QUANTIZATION.md); int8_blockwise, _rowwise and _blockwise: silveroxides/convert_to_quant;
svdquant_w4a4: comfy-kitchen 0.2.40 (backends/eager/svdquant.py), whose tiles and other names comfy-quants writes
(formats/kitchen_tilepack.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, E4M3, E8M0, F32, MXFP8, NVFP4, U8, DType, MicroscaledType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.base.spec import Shape
from weighbridge.packings.schema import compressed, scaled_float
from weighbridge.packings.schema.base import FLOATS, METADATA, Evidence, Group, Member, PackingSchema, Solution

#: Rows and columns of a tile of scales.
TILE: Final = (128, 4)
_SETTINGS: Final = ".comfy_quant"
_KEY: Final = "_quantization_metadata"
_PREFIXES: Final = ("model.diffusion_model.", "diffusion_model.", "model.")
_FLOATS: Final = {"float8_e4m3fn": E4M3, "float8_e5m2": BY_NAME["F8_E5M2"]}
_I8: Final = BY_NAME["I8"]
_INT8: Final = "int8_tensorwise"
_SIZES: Final = tuple(4**n for n in range(1, 9))  # of rotations
_ROTATED: Final = 256  # columns of a group, and of the blocks below, unless the settings have others
_BLOCK: Final = 128
_AWQ_GROUP: Final = 64
_W4A8_GROUP: Final = 16
_SVD: Final = "svdquant_w4a4"
_SVD_GROUP: Final = 64
_SVD_ROWS: Final = 128  # of a tile
_SVD_TILES: Final = "kitchen_tile_packed_w4a4"


class ComfyLayout(NamedTuple):
    """How a layer is stored: its format, the columns that are rotated together (0: none), and whether its columns have
    scales of inputs. `inner`: the layout of a form that other packings share."""

    format: str
    rotated: int = 0
    smoothed: bool = False
    inner: Any = None


def has_settings(names: Iterable[str], metadata: Mapping[str, Any]) -> bool:
    """Whether a file with these tensors and metadata names the formats of its layers."""
    return _KEY in metadata or any(name.endswith(_SETTINGS) for name in names)


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
    except KeyError:  # a count without data
        if not group.guess:
            raise
        return {"format": _likely(group)}
    if not isinstance(settings, dict):
        raise FormatError("comfy_quant isn't a JSON object", field=group.module)
    return settings


def _likely(group: Group) -> str:
    """The format that the types and shapes of a group suggest, for counts without its settings."""
    weight, scales = group.specs["weight"], group.specs["scales"]
    if "proj_down" in group.specs:
        return _SVD
    if "channel" in group.specs:
        return "asym_w4a8_int8"
    if weight.dtype is _I8:
        by_row = "convrot_w4a4" if scales.shape == weight.shape[:1] else "int8_tensorwise"
        return "awq_w4a16" if "zeros" in group.specs else by_row
    floats = next((name for name, dtype in _FLOATS.items() if dtype is weight.dtype), "nvfp4")
    return "mxfp8" if floats != "nvfp4" and scales.dtype in (U8, E8M0) else floats


def _setting(settings: Mapping[str, Any], name: str, default: int) -> int:
    """A number of the settings."""
    value = settings.get(name)
    return default if value is None or isinstance(value, bool) or not isinstance(value, int) else value


def _solve(group: Group) -> Solution:
    settings = _settings(group)
    params = settings.get("params")
    settings = {**(params if isinstance(params, Mapping) else {}), **settings}
    name = str(settings.get("format"))
    solver = _SOLVERS.get(name)
    if solver is None:
        raise _refused(group, f"as {name!r}")
    if "smoothing" in group.specs and name != "nvfp4":
        raise _refused(group, f"as {name!r} with pre_quant_scale")
    if "proj_down" in group.specs and name != _SVD:
        raise _refused(group, f"as {name!r} with a low-rank product")
    if len(group.specs["weight"].shape) != 2 and name not in (*_FLOATS, _INT8, _SVD):
        raise _refused(group, f"as {name!r} in the shape {list(group.specs['weight'].shape)}")
    return solver(group, settings, name)


def _refused(group: Group, how: str) -> UnsupportedError:
    return UnsupportedError(
        f"{group.module} is quantized by ComfyUI {how}, which isn't read",
        hint="take the file with bf16 or fp8 weights",
    )


def _rotation(group: Group, settings: Mapping[str, Any], columns: int) -> int:
    """The columns that are rotated together."""
    size = _setting(settings, "convrot_groupsize", _ROTATED)
    group.need(size in _SIZES and columns % size == 0, "the rotated groups don't fit the columns",
               f"a power of 4 that divides {columns}", size)  # fmt: skip
    return size


def _solve_float(group: Group, settings: Mapping[str, Any], name: str) -> Solution:
    weight, scales = group.specs["weight"], group.specs["scales"]
    kind = name.removesuffix("_rowwise").removesuffix("_blockwise")
    group.need(weight.dtype is _FLOATS[kind], f"the weight isn't {kind}", _FLOATS[kind], weight)
    group.need(kind != name or scales.elements == 1, "weight_scale isn't one number", "1", scales)
    solution = scaled_float.solve(group, weight)
    return solution._replace(axes={}, layout=ComfyLayout(name, inner=solution.layout))


def _solve_tiled(group: Group, settings: Mapping[str, Any], name: str) -> Solution:
    """The formats with a scale per group of columns, in tiles."""
    weight, scales, smoothing = group.specs["weight"], group.specs["scales"], group.specs.get("smoothing")
    stored, kind = _TILED[name]
    columns = weight.row_bytes * 8 // kind.bits
    group.need(weight.dtype is stored and columns % kind.group == 0 < weight.elements,
               f"the weight isn't {name}", f"{stored} with a multiple of {kind.group} columns", weight)  # fmt: skip
    rows, groups = weight.shape[0], columns // kind.group
    padded = -(-rows // TILE[0]) * TILE[0] * -(-groups // TILE[1]) * TILE[1]
    group.need(scales.dtype in (U8, kind.scale) and scales.elements == padded > 0,
               "the tiles don't belong to the weight", f"{padded} bytes of scales", scales)  # fmt: skip
    overall = group.specs.get("global")
    group.need(name != "nvfp4" or (overall is not None and overall.elements == 1), "weight_scale_2 isn't one number",
               "F32 []", overall)  # fmt: skip
    group.need(smoothing is None or smoothing.elements == columns, "pre_quant_scale doesn't belong to the columns",
               f"[{columns}]", smoothing)  # fmt: skip
    return Solution((rows, columns), kind.bits, kind.group, ComfyLayout(name, smoothed=smoothing is not None))


def _solve_int8(group: Group, settings: Mapping[str, Any], name: str) -> Solution:
    weight, scales = group.specs["weight"], group.specs["scales"]
    group.need(weight.dtype is _I8, "the weight isn't int8", "I8", weight)
    rotates = settings.get("convrot")
    if len(weight.shape) != 2:
        if rotates or not weight.shape:
            raise _refused(group, f"as a rotated {name!r} in the shape {list(weight.shape)}")
        axes = len(scales.shape) if scales.elements > 1 else 0
        while axes and scales.shape[axes - 1] == 1:
            axes -= 1
        by_axes = (*weight.shape[:axes], *[1] * (len(weight.shape) - axes))
        group.need(weight.elements > 0 and axes < len(weight.shape) and scales.shape in (by_axes, (), (1,)),
                   "weight_scale doesn't belong to the weight", f"one number, or those of {list(weight.shape[:-1])}",
                   scales)  # fmt: skip
        return Solution(weight.shape, 8, weight.shape[-1], ComfyLayout(name))
    rotated = _rotation(group, settings, weight.shape[1]) if rotates else 0
    solution = compressed.solve_bytes(group._replace(specs={"codes": weight, "scales": scales}))
    return solution._replace(units={}, layout=ComfyLayout(name, rotated))


def _solve_blocks(group: Group, settings: Mapping[str, Any], name: str) -> Solution:
    weight, scales = group.specs["weight"], group.specs["scales"]
    size = _setting(settings, "group_size", _setting(settings, "block_size", _BLOCK))
    (rows, columns), fits = weight.shape, size > 0 and weight.elements > 0
    group.need(weight.dtype is _I8 and fits and not rows % size and not columns % size,
               "the weight isn't in whole blocks", f"I8 in blocks of {size}", weight)  # fmt: skip
    group.need(scales.shape == (rows // size, columns // size), "weight_scale doesn't belong to the weight",
               f"F32 [{rows // size}, {columns // size}]", scales)  # fmt: skip
    return Solution(weight.shape, 8, size, ComfyLayout(name))


def _nibbles(group: Group, name: str) -> tuple[int, int]:
    """Rows and columns of a matrix of 4-bit integers."""
    weight = group.specs["weight"]
    group.need(weight.dtype in (_I8, U8) and weight.elements, f"the weight isn't {name}", "I8 [out, in / 2]", weight)
    return weight.shape[0], weight.shape[1] * 2


def _solve_w4a4(group: Group, settings: Mapping[str, Any], name: str) -> Solution:
    (rows, columns), scales = _nibbles(group, name), group.specs["scales"]
    group.need(scales.elements == rows, "weight_scale doesn't belong to the rows", f"F32 [{rows}]", scales)
    return Solution((rows, columns), 4, columns, ComfyLayout(name, _rotation(group, settings, columns)))


def _solve_grouped(group: Group, settings: Mapping[str, Any], name: str) -> Solution:
    """The formats of 4-bit integers in groups of columns."""
    (rows, columns), specs, awq = _nibbles(group, name), group.specs, name == "awq_w4a16"
    size = _setting(settings, "group_size", _AWQ_GROUP if awq else _W4A8_GROUP)
    group.need(size > 0 and columns % size == 0, "the groups don't fit the columns", f"a divisor of {columns}", size)
    shape = (columns // size, rows) if awq else (rows, columns // size)
    shapes = {"scales": shape, **({"zeros": shape} if awq else {"channel": (rows,), "codebook": (16,)})}
    for member, wanted in shapes.items():
        spec = specs.get(member)
        fits = member == "codebook" if spec is None else wanted in (spec.shape, (spec.elements,))
        group.need(fits, f"{member} doesn't belong to the weight", wanted, spec or "nothing")
    return Solution((rows, columns), 4, size, ComfyLayout(name, 0 if awq else _rotation(group, settings, columns)))


def _solve_svdquant(group: Group, settings: Mapping[str, Any], name: str) -> Solution:
    """4-bit integers plus a low-rank product. A layer whose stored tensors have another meaning is counted, and refused
    when its values are read."""
    specs, layout = group.specs, settings.get("layout")
    weight, axes = specs["weight"], len(specs["weight"].shape)
    for refused, how in (
        (axes not in (2, 4), f"in the shape {list(weight.shape)}"),
        (layout not in (None, _SVD_TILES), f"in the layout {layout!r}"),
        (settings.get("act_unsigned") and not group.guess, "for unsigned inputs (act_unsigned), with a shifted bias"),
        (settings.get("lowrank_branch_input_basis", "raw") != "raw" and not group.guess,
         "with a low-rank product of smoothed inputs (lowrank_branch_input_basis)"),
    ):  # fmt: skip
        if refused:
            raise _refused(group, f"as {name!r} {how}")
    group.need(weight.dtype in (_I8, U8) and weight.elements, f"the weight isn't {name}", "I8 [out, in / 2]", weight)
    group.need(axes == 4 or layout is None, "the weight isn't in tiles", "I8 [out / 128, in / 64, 32, 128]", weight)
    size = _setting(settings, "group_size", _SVD_GROUP)
    group.need(size == _SVD_GROUP, f"the groups aren't those of {name}", _SVD_GROUP, size)
    group.need("proj_down" in specs, "a packed weight without proj_down", f"{group.module}.weight_proj_down")
    rank, tiles = (specs["proj_down"].shape or (0,))[-1], weight.shape[0]
    if axes == 4:
        rows, groups = tiles * _SVD_ROWS, weight.shape[1]
        shapes: dict[str, Shape] = {"weight": (tiles, groups, 32, 128), "scales": (tiles, groups, _SVD_ROWS),
                                    "proj_up": (tiles, rank, _SVD_ROWS)}  # fmt: skip
    else:
        rows, groups = tiles, weight.shape[1] * 2 // _SVD_GROUP
        shapes = {"weight": (rows, groups * _SVD_GROUP // 2), "scales": (groups, rows), "proj_up": (rows, rank)}
    columns = groups * _SVD_GROUP
    for role, shape in {**shapes, "smooth_factor": (columns,), "proj_down": (columns, rank)}.items():
        fits = specs[role].shape == shape and (role == "weight" or specs[role].dtype in FLOATS)
        group.need(fits, f"{role} doesn't belong to {name}", list(shape), specs[role])
    return Solution((rows, columns), 4, _SVD_GROUP, ComfyLayout(name))


_TILED: Final[Mapping[str, tuple[DType, MicroscaledType]]] = {"mxfp8": (E4M3, MXFP8), "nvfp4": (U8, NVFP4)}
_Solver = Callable[[Group, Mapping[str, Any], str], Solution]
_SOLVERS: Final[Mapping[str, _Solver]] = {
    **dict.fromkeys((*_FLOATS, "float8_e4m3fn_rowwise", "float8_e4m3fn_blockwise"), _solve_float),
    **dict.fromkeys(_TILED, _solve_tiled),
    _INT8: _solve_int8,
    "int8_blockwise": _solve_blocks,
    "convrot_w4a4": _solve_w4a4,
    **dict.fromkeys(("awq_w4a16", "asym_w4a8_int8"), _solve_grouped),
    _SVD: _solve_svdquant,
}


def _schema(
    name: str, key: str, members: Mapping[str, Member], evidence: Evidence | None = None, bits: int = 8
) -> PackingSchema:
    return PackingSchema(
        name, "comfy", "comfy",
        {
            "weight": Member(".weight", selects=True),
            "config": Member(_SETTINGS, (U8,), required=False, probe=4096),
            **members,
        },
        key=key, solve=_solve, reader="weighbridge.packings.read.comfy", applies=_applies,
        ignored=(".input_scale",), bits=bits, evidence=evidence,
    )  # fmt: skip


_MEMBERS: Final = {
    "scales": Member(".weight_scale", selects=True),
    "global": Member(".weight_scale_2", (F32,), required=False),
    "zeros": Member(".weight_zeros", FLOATS, required=False),
    "smoothing": Member(".pre_quant_scale", FLOATS, required=False),
}
COMFY: Final = (
    *(
        _schema(f"comfy-svdquant{start}proj_down", "scales", {
            **_MEMBERS,
            "proj_down": Member(f"{start}proj_down", selects=True),
            "proj_up": Member(f"{start}proj_up"),
            "smooth_factor": Member(f"{start}smooth_factor"),
        }, bits=4)
        for start in (".weight_", ".")
    ),
    _schema(
        "comfy-quant", "scales", _MEMBERS,
        Evidence("comfy-quant", "layers quantized by ComfyUI (comfy_quant)", "config"),
    ),
    # ModelOpt's layers have a tensor of this name, too
    _schema("comfy-nvfp4", "global", _MEMBERS),
    _schema("comfy-w4a8", "scales", {
        "scales": Member(".weight_s_rel", (F32, E4M3, U8), selects=True),
        "channel": Member(".weight_s_channel", (F32,)),
        "codebook": Member(".weight_codebook", (F32,), required=False),
    }),
)  # fmt: skip
