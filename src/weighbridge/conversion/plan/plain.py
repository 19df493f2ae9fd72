"""Plans of containers of plain dtypes (safetensors, NumPy, PyTorch): names are kept, dtypes kept or cast."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from weighbridge.base.dtypes import Kind, dtype, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.containers import by_target, reader
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.options import CastOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.plan.losses.shared_storage import place_of
from weighbridge.conversion.result import Loss
from weighbridge.models.diffusion.model import SHAPE_KEY, original_shapes
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import LogicalTensor, Node


def to_container(model: OpenModel, options: CastOptions, kind: str) -> PlanBuilder:
    """Plans the stored tensors of `model`; with a dtype the logical ones, so that packed tensors are decoded.

    Raises UsageError for a dtype that the container can't store.
    """
    target = by_target(kind)
    storable = target.dtypes if target else frozenset()
    requested = requested_dtype(options.dtype)
    if requested is not None and requested.name not in storable:
        if requested.kind is Kind.BLOCK:
            raise UsageError(f"{requested} is a type of GGUF files", hint="give the target the extension .gguf")
        floats = ", ".join(sorted(name.lower() for name in storable if dtype(name).is_float))
        raise UsageError(f"{kind} files can't store {requested}", hint=f"--dtype {floats}; or write .safetensors")
    draft = PlanBuilder({}, {} if model.format == "gguf" else model.metadata)
    if reader(model.format).own_target == "torch":
        draft.metadata = {"format": "pt", **model.metadata}
        draft.losses += [Loss(f.message) for f in model.index.findings if f.rule.startswith("pickle.")]
    decoded = []
    nodes: dict[Hashable, Node] = {}  # by place: tensors that share their bytes are cast once
    for name, node in _tensors(model, options).items():
        chosen = dtype_policy.plain_dtype(options.dtype, node.spec)
        stored = target.stored_as(chosen) if target else chosen
        if stored is not chosen:
            decoded.append(name)
        place = place_of(node) if isinstance(node, Node) else None
        draft.tensors[name] = nodes.get(place) or cast_to(name, node, stored, draft)
        if place is not None:
            nodes[place] = draft.tensors[name]
    if decoded:
        count = plural(len(decoded), "tensor", "are")
        draft.notes.append(f"{count} decoded, since {kind} has no such type: first {decoded[0]}")
    keys = [key for key in model.metadata if not key.startswith(SHAPE_KEY)] if model.format == "gguf" else []
    if keys and model.diffusion is not None:
        draft.losses.append(Loss(f"left out: the GGUF's keys, which describe the file: {', '.join(keys)}"))
    elif keys:
        hint = "--to hf makes a folder with config and tokenizer"
        draft.losses.append(Loss(f"left out: the GGUF's keys, {len(keys):,} in all ({hint})"))
    return draft


def _tensors(model: OpenModel, options: CastOptions) -> Mapping[str, LogicalTensor]:
    """The stored tensors, or with a dtype the logical ones; those of an image model's GGUF in their original shapes."""
    if model.format == "gguf" and model.diffusion is not None:
        return original_shapes(model)
    return model.stored if options.dtype is None else model.logical
