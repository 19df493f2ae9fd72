"""Plans ComfyUI's quantized files: the matrices of a denoiser in one of its formats, all other tensors unchanged.

    fp8_scaled                     X.weight, X.scale_weight, and one tensor scaled_fp8, which marks the file
    float8_e4m3fn, float8_e5m2     X.weight, X.weight_scale, X.comfy_quant: JSON with the format
    mxfp8, nvfp4, int8_tensorwise  the same, with a scale per 32 or 16 columns, or per row (packings/write/comfy.py)
    int8_convrot                   int8_tensorwise of rotated rows, in groups of 256 columns

The scale of a whole matrix is the largest magnitude over the largest number of the type; a weight times its reciprocal
is rounded to nearest, ties to even, in F32: comfy-kitchen computes in the type of the weight. Inputs of 8-bit floats
have no scale without a run of the model, so those forms ask for products in full precision; inputs of the other forms
are scaled as they come. The matrices are those that ComfyUI-GGUF quantizes (quantize/diffusion_types.py). A source in
the same form keeps its codes. Sources: comfy-kitchen 0.2.40 (backends/eager/quantization.py), ComfyUI (comfy/utils.py,
convert_old_quants; comfy/ops.py; QUANTIZATION.md).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

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
from weighbridge.packings.write import comfy as write
from weighbridge.tensors import np
from weighbridge.tensors.nodes import (
    LogicalTensor,
    Node,
    abs_max,
    cast,
    const,
    is_plain,
    scaled,
    shift,
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
    multiple: tuple[int, int] = (1, 1)

    def parts(self, node: Node, name: str) -> write.Parts:
        """The matrix, rounded."""
        return write.floats(node, name, self.dtype, _scale(node, self.largest))

    def kept(self, node: LogicalTensor) -> write.Parts | None:
        """A quantized matrix with its codes; None if they have another form."""
        return write.kept_float(node, self.dtype)

    def config(self, name: str) -> dict[str, Any]:
        return {"format": name, "full_precision_matrix_mult": True}


class ComfyBlocks(NamedTuple):
    """A format with several scales per matrix. `parts`: rounds a matrix, given its name; `kept`: keeps a
    quantized one, if it can; `multiple`: what rows and columns must be multiples of."""

    parts: Callable[[Node, str], write.Parts]
    kept: Callable[[LogicalTensor], write.Parts | None]
    settings_of: Mapping[str, Any]
    multiple: tuple[int, int] = (1, 1)
    scale: str = ".weight_scale"
    settings: str = ".comfy_quant"

    def config(self, name: str) -> dict[str, Any]:
        return dict(self.settings_of)


def _scale(node: Node, largest: float) -> Node:
    """The scale of a whole matrix, F32 [1]."""
    return shift(scaled(abs_max([node]), largest, over=True), _TINY)


def _nvfp4(node: Node, name: str) -> write.Parts:
    return write.nvfp4(node, name, _scale(node, write.NVFP4_LARGEST))


_ROTATED: Final = 256
_ROTATION: Final = {"convrot": True, "convrot_groupsize": _ROTATED}
FORMATS: Final[Mapping[str, ComfyFormat | ComfyBlocks]] = MappingProxyType(
    {
        "fp8_scaled": ComfyFormat(E4M3, 448.0, ".scale_weight", ""),
        "float8_e4m3fn": ComfyFormat(E4M3, 448.0, ".weight_scale", ".comfy_quant"),
        "float8_e5m2": ComfyFormat(BY_NAME["F8_E5M2"], 57344.0, ".weight_scale", ".comfy_quant"),
        "mxfp8": ComfyBlocks(write.mxfp8, write.kept_mxfp8, {"format": "mxfp8"}, (32, 32)),
        "nvfp4": ComfyBlocks(_nvfp4, write.kept_nvfp4, {"format": "nvfp4"}, (16, 16)),
        "int8_tensorwise": ComfyBlocks(write.rows, write.kept_rows, {"format": "int8_tensorwise"}),
        "int8_convrot": ComfyBlocks(
            partial(write.rows, rotated=_ROTATED), partial(write.kept_rows, rotated=_ROTATED),
            {"format": "int8_tensorwise", **_ROTATION}, (1, _ROTATED),
        ),
    }
)  # fmt: skip


def to_comfy(model: OpenModel, options: ComfyOptions) -> PlanBuilder:
    """Plans the file. Raises UnsupportedError for a model without rules, and RefusedError for quantized matrices."""
    found, form = model.diffusion, FORMATS[options.comfy_quant]
    if found is None or not found.denoises:
        reason = f"{model.place.path} has no image or video model that ComfyUI quantizes"
        raise UnsupportedError(reason, hint="wb identify names its content")
    architecture = architecture_of(found)
    named = named_tensors(model, found)
    draft = PlanBuilder({}, {"format": "pt"})
    counts = Counter[str]()
    for name, node in named.tensors.items():
        stored = found.prefix + name
        chosen = diffusion_types.quantizable(architecture, name, node.spec.with_dtype(F32))
        misfit = any(size % each for size, each in zip(node.spec.shape, form.multiple, strict=False))
        if not chosen or misfit:
            draft.tensors[stored] = cast_to(stored, node, dtype_policy.plain_dtype(options.dtype, node.spec), draft)
            counts["kept"] += chosen
            continue
        parts = None if is_plain(node) else form.kept(node)
        counts["same"] += parts is not None
        if parts is None and not is_plain(node) and not options.allow_requantize:
            raise RefusedError(f"{stored} is quantized already", option="--allow-requantize")
        parts = parts or form.parts(cast(node, F32), stored)
        draft.tensors |= dict(stored_parts(stored.removesuffix(".weight"), parts, options.comfy_quant))
        counts["all"] += 1
    for name in named.others:
        node = model.logical[name]
        draft.tensors[name] = cast_to(name, node, dtype_policy.plain_dtype(options.dtype, node.spec), draft)
    if not form.settings:
        draft.tensors[found.prefix + _MARKER] = const(np.zeros(2, np.uint8), E4M3)  # two: in full precision
    needed = "rows in multiples of {} and columns in multiples of {}".format(*form.multiple)
    if not counts["all"]:
        raise UnsupportedError(
            f"no matrix of {found.title} can be quantized to {options.comfy_quant}: it needs {needed}"
        )
    draft.notes.append(f"{found.title}: {plural(counts['all'], 'matrix')} as {options.comfy_quant}, for ComfyUI")
    if counts["same"]:
        draft.notes.append(f"{plural(counts['same'], 'matrix')} in this form already, copied")
    if counts["kept"]:
        draft.notes.append(f"not quantized: {plural(counts['kept'], 'matrix')}; {options.comfy_quant} needs {needed}")
    return draft


def stored_parts(module: str, parts: write.Parts, name: str) -> Iterator[tuple[str, Node]]:
    """The stored tensors of a matrix."""
    form = FORMATS[name]
    yield f"{module}.weight", parts["weight"]
    yield module + form.scale, parts["scales"]
    if "global" in parts:
        yield f"{module}.weight_scale_2", parts["global"]
    if form.settings:
        settings = json.dumps(form.config(name)).encode()
        yield module + form.settings, const(np.frombuffer(settings, np.uint8), U8)
