"""Plans GGUFs of image and video models as ComfyUI-GGUF reads them: the original names, three keys, and types by its
rules (`conversion/quantize/diffusion_types.py`).

source                names                     types
single file           kept, without a prefix    F32, and BF16 or F16; quantized in the same pass
diffusers folder      of the single file        the same
"""

from __future__ import annotations

from collections import Counter

from weighbridge.base import limits
from weighbridge.base.dtypes import BF16, F16, F32, DType, Kind, requested_dtype
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.base.words import plural
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf import metadata
from weighbridge.conversion.options import GgufOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_for_gguf, cast_to
from weighbridge.conversion.quantize import diffusion_types
from weighbridge.conversion.quantize.ftypes import TypeOptions
from weighbridge.conversion.result import Loss
from weighbridge.models.diffusion.model import DiffusionModel
from weighbridge.models.diffusion.tensors import SHAPE_KEY, named_tensors
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import reshape


def architecture_of(found: DiffusionModel) -> str:
    """The general.architecture of the model's GGUFs. UnsupportedError if ComfyUI-GGUF has none."""
    if found.row.gguf is None:
        raise UnsupportedError(
            f"ComfyUI-GGUF reads no GGUF of {found.title}",
            hint="--dtype fp8_e4m3 or bf16 to .safetensors; or --arch NAME for a program of your own",
        )
    return found.row.gguf


def to_gguf(model: OpenModel, found: DiffusionModel, options: GgufOptions) -> PlanBuilder:
    """Plans the tensors in the types of an unquantized file, or with matrices in a requested type."""
    chosen = requested_dtype(options.dtype)
    dtype = None if chosen is None else dtype_policy.requested_gguf_dtype(chosen.name, ())
    block = dtype is not None and dtype.kind is Kind.BLOCK
    draft = plan(model, found, options, None if block else dtype, unrounded=block)
    if dtype is None or not block:
        return draft
    specs = [(name, node.spec) for name, node in draft.tensors.items()]
    choice = diffusion_types.choose_types(specs, architecture_of(found), FILE_TYPES[dtype.name], TypeOptions())
    for name, chosen in choice.types.items():
        quantized = choice.fallbacks.get(name, (chosen, chosen))[0]
        draft.tensors[name] = cast_for_gguf(name, draft.tensors[name], chosen, quantized, draft)
    draft.metadata = metadata.with_file_type(dict(draft.metadata), dtype)
    return draft


def plan(
    model: OpenModel, found: DiffusionModel, options: GgufOptions, dtype: DType | None, *, unrounded: bool
) -> PlanBuilder:
    """Plans names, shapes, keys and base types. `dtype`: of matrices. `unrounded`: those that may be quantized keep the
    source's precision, so that no value is rounded twice."""
    architecture = architecture_of(found)
    if options.vocab_only or not options.tokenizer or options.pre is not None:
        raise UsageError(f"{found.title} has no tokenizer", hint="leave out --vocab-only, --no-tokenizer and --pre")
    if options.with_mmproj:
        raise UsageError(f"{found.title} has no towers for an mmproj file", hint="leave out --with-mmproj")
    rules = diffusion_types.table().architectures[architecture]
    named = named_tensors(model, found)
    draft = PlanBuilder({}, losses=[*_left_out(named.others)])
    keys: dict[str, KV] = {}
    for name, tensor in named.tensors.items():
        if diffusion_types.is_ignored(rules, name):
            draft.losses.append(Loss("left out: a loader computes it", name))
            continue
        base = diffusion_types.base_dtype(rules, name, tensor.spec, dtype)
        shape = diffusion_types.stored_shape(rules, tensor.spec.shape)
        if shape != tensor.spec.shape:
            keys[SHAPE_KEY + name] = KV("arr[i32]", list(tensor.spec.shape))
        changes = diffusion_types.quantizable(architecture, name, tensor.spec.with_shape(*shape).with_dtype(base))
        if unrounded and changes:
            base = tensor.spec.dtype if tensor.spec.dtype in (F32, F16, BF16) else F32  # holds the values exactly
        draft.tensors[name] = reshape(cast_to(name, tensor, base, draft), shape)
    ftype = dtype or next((n.spec.dtype for n in draft.tensors.values() if n.spec.dtype in (BF16, F16)), F16)
    general = {
        "general.architecture": KV("str", architecture),
        "general.quantization_version": KV("u32", 2),
        "general.file_type": KV("u32", dtype_policy.FTYPES[ftype.name]),
    }
    draft.metadata = metadata.with_alignment(metadata.named({**general, **keys}, options.name), options.align)
    draft.notes += _notes(found, draft)
    return draft


def _left_out(others: tuple[str, ...]) -> list[Loss]:
    """Losses of the tensors of other parts, one per part."""
    counts = Counter(name.partition(".")[0] for name in others)
    return [
        Loss(f"left out: {plural(count, 'tensor')} of another part, {part}.*; convert it alone")
        for part, count in counts.items()
    ]


def _notes(found: DiffusionModel, draft: PlanBuilder) -> list[str]:
    """Notes on the model, and on tensors that llama.cpp's own reader refuses but ComfyUI-GGUF's takes."""
    long = [name for name in draft.tensors if len(name.encode()) > limits.GGUF_NAME]
    deep = [name for name, node in draft.tensors.items() if len(node.spec.shape) > limits.GGUF_DIMS]
    notes = [f"{found.title}: a GGUF for ComfyUI-GGUF, with the names of its single file"]
    if long:
        notes.append(
            f"{plural(len(long), 'name')} longer than {limits.GGUF_NAME} bytes, first {long[0]}: llama.cpp's own "
            "reader refuses the file, ComfyUI-GGUF takes names of up to 127"
        )
    if deep:
        notes.append(
            f"{plural(len(deep), 'tensor')} of 5 dimensions, first {deep[0]}: llama.cpp's own reader refuses the file, "
            "ComfyUI-GGUF reads it"
        )
    return notes
