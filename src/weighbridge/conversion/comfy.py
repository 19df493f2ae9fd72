"""Plans ComfyUI's files of 8-bit floats: the matrices of a denoiser with one scale each, all other tensors unchanged.

    fp8_scaled                     X.weight, X.scale_weight, and one tensor scaled_fp8, which marks the file
    float8_e4m3fn, float8_e5m2     X.weight, X.weight_scale, X.comfy_quant: JSON with the format

The scale is the largest magnitude over the largest number of the type; a weight times its reciprocal is rounded to
nearest, ties to even, in F32: comfy-kitchen computes in the type of the weight. Inputs have no scale without a run of
the model, so both forms ask for products in full precision. The matrices are those that ComfyUI-GGUF quantizes
(quantize/diffusion_types.py). Sources: comfy-kitchen 0.2.40 (backends/eager/quantization.py), ComfyUI (comfy/utils.py,
convert_old_quants; QUANTIZATION.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, E4M3, F32, U8, DType
from weighbridge.base.errors import RefusedError, UnsupportedError
from weighbridge.base.words import plural
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf.diffusion import architecture_of
from weighbridge.conversion.options import ComfyOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.quantize import diffusion_types
from weighbridge.models.diffusion.tensors import named_tensors
from weighbridge.models.model import OpenModel
from weighbridge.tensors import np
from weighbridge.tensors.nodes import (
    LogicalTensor,
    Node,
    abs_max,
    cast,
    const,
    is_plain,
    pairwise,
    reshape,
    scaled,
    shift,
    strided,
)

_MARKER: Final = "scaled_fp8"
#: Added to scales, so that a matrix of zeros has one; smaller than half a unit of any other scale's last place.
_TINY: Final = float(2.0**-126)


class ComfyFormat(NamedTuple):
    """The type of the weights, its largest number, and the names: of the scale and of the settings, if any."""

    dtype: DType
    largest: float
    scale: str
    settings: str


FORMATS: Final[Mapping[str, ComfyFormat]] = MappingProxyType(
    {
        "fp8_scaled": ComfyFormat(E4M3, 448.0, ".scale_weight", ""),
        "float8_e4m3fn": ComfyFormat(E4M3, 448.0, ".weight_scale", ".comfy_quant"),
        "float8_e5m2": ComfyFormat(BY_NAME["F8_E5M2"], 57344.0, ".weight_scale", ".comfy_quant"),
    }
)


def to_comfy(model: OpenModel, options: ComfyOptions) -> PlanBuilder:
    """Plans the file. Raises UnsupportedError for a model without rules, and RefusedError for quantized matrices."""
    found, form = model.diffusion, FORMATS[options.comfy_quant]
    if found is None or not found.denoises:
        reason = f"{model.place.path} has no image or video model that ComfyUI quantizes"
        raise UnsupportedError(reason, hint="wb identify names its content")
    architecture = architecture_of(found)
    named = named_tensors(model, found)
    draft = PlanBuilder({}, {"format": "pt"})
    count = 0
    for name, node in named.tensors.items():
        stored = found.prefix + name
        if not diffusion_types.quantizable(architecture, name, node.spec.with_dtype(F32)):
            draft.tensors[stored] = cast_to(stored, node, dtype_policy.plain_dtype(options.dtype, node.spec), draft)
            continue
        if not is_plain(node) and not options.allow_requantize:
            raise RefusedError(f"{stored} is quantized already", option="--allow-requantize")
        draft.tensors |= dict(quantized(stored.removesuffix(".weight"), node, options.comfy_quant))
        count += 1
    for name in named.others:
        node = model.logical[name]
        draft.tensors[name] = cast_to(name, node, dtype_policy.plain_dtype(options.dtype, node.spec), draft)
    if not form.settings:
        draft.tensors[found.prefix + _MARKER] = const(np.zeros(2, np.uint8), E4M3)  # two: in full precision
    draft.notes.append(f"{found.title}: {plural(count, 'matrix')} as {options.comfy_quant}, for ComfyUI")
    return draft


def quantized(module: str, node: LogicalTensor, name: str) -> Iterator[tuple[str, Node]]:
    """The stored tensors of a matrix."""
    form, values = FORMATS[name], cast(node, F32)
    scale = shift(scaled(abs_max([values]), form.largest, over=True), _TINY)
    shape = values.spec.shape
    factor = pairwise(const(np.ones(1, np.float32), F32), scale, "over")
    codes = cast(pairwise(values, strided(factor, 0, shape, [0] * len(shape)), "times"), form.dtype)
    yield f"{module}.weight", codes
    yield module + form.scale, reshape(scale, ())
    if form.settings:
        settings = json.dumps({"format": name, "full_precision_matrix_mult": True}).encode()
        yield module + form.settings, const(np.frombuffer(settings, np.uint8), U8)
