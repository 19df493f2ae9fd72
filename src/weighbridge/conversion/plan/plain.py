"""Plans of containers of plain dtypes (safetensors, NumPy, PyTorch): names are kept, dtypes kept or cast."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import BF16, F32, DType, Kind
from weighbridge.base.errors import UsageError
from weighbridge.containers import reader
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.options import CastOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.plan.losses.shared_storage import place_of
from weighbridge.conversion.plan.model import Loss
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.tensors.nodes import Node


def to_container(model: Checkpoint, options: CastOptions, kind: str) -> PlanBuilder:
    """The stored tensors of `model`; with a dtype the logical ones, packed tensors decoded."""
    nodes = model.stored if options.dtype is None else model.logical
    draft = PlanBuilder({}, {} if model.format == "gguf" else model.metadata)
    if reader(model.format).own_target == "torch":
        draft.metadata = {"format": "pt", **model.metadata}
        draft.losses += [Loss(f.message) for f in model.index.findings if f.rule.startswith("pickle.")]
    decoded = []
    made: dict[Hashable, Node] = {}  # tensors that are one in the source are cast once
    for name, node in nodes.items():
        requested = dtype_policy.plain_dtype(options.dtype, node.spec)
        wanted = _holdable(requested, kind)
        if options.dtype not in (None, "auto") and requested is not node.spec.dtype and wanted is not requested:
            raise UsageError(
                f"a {kind} file has no type {requested}", hint=f"--dtype {str(wanted).lower()} holds its values"
            )
        if wanted is not node.spec.dtype and options.dtype is None:
            decoded.append(name)
        place = place_of(node) if isinstance(node, Node) else None
        draft.tensors[name] = made.get(place) or cast_to(name, node, wanted, draft)
        if place is not None:
            made[place] = draft.tensors[name]
    if decoded:
        many = f"{len(decoded):,} tensors are" if len(decoded) > 1 else "1 tensor is"
        draft.notes.append(f"{many} decoded, since {kind} has no such type: first {decoded[0]}")
    if model.format == "gguf" and (count := len(model.metadata)):
        hint = "--to hf makes a folder with config and tokenizer"
        draft.losses.append(Loss(f"left out: the GGUF's keys, {count:,} in all ({hint})"))
    return draft


# Containers that store the dtypes they have a name for.
_NAMES: Final[Mapping[str, Callable[[DType], str | None]]] = MappingProxyType(
    {"safetensors": lambda t: t.safetensors, "torch": lambda t: t.torch}
)


def _holdable(wanted: DType, kind: str) -> DType:
    """The dtype itself if the container can store it, else F32, which has every value of the small floats."""
    if kind in _NAMES:
        return wanted if _NAMES[kind](wanted) else F32
    small = wanted.kind is Kind.FLOAT and (wanted.numpy is None or wanted is BF16 or wanted.size == 1)
    return F32 if small or wanted.kind is Kind.BLOCK else wanted
