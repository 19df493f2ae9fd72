"""Merges a LoRA adapter into the model that it is for, tensor by tensor as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.models.checkpoint import Checkpoint, open_checkpoint
from weighbridge.models.lora import pairs
from weighbridge.models.lora.forms import adapter_form, resolved
from weighbridge.models.lora.pairs import LoraPair
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node


def merge_adapter(model: Checkpoint, path: Path) -> Checkpoint:
    """The model with the adapter at `path` merged into its weights: W + alpha/rank * B @ A, computed in F32 and
    rounded once. Tensors that the adapter stores in full replace the model's. The adapter's files stay open with the
    model."""
    found = open_checkpoint(path)
    try:
        place = replace(model.place, merged=(*model.place.merged, *found.place.weights))
        return replace(_with(model, *_changes(model, found)), place=place)
    except BaseException:
        found.close()
        raise


def check_adapter(model: Checkpoint, path: Path) -> None:
    """UsageError, FormatError or UnsupportedError for an adapter that isn't one of the model, whose weights may be
    quantized. Reads headers."""
    with open_checkpoint(path) as found:
        _changes(model, found)


def _changes(model: Checkpoint, found: Checkpoint) -> tuple[LoraAdapter, pairs.Roles, str]:
    """An adapter, what it changes, and the dialect of its names."""
    form = adapter_form(found)
    if form is None:
        raise UsageError(
            f"{found.place.path} isn't a LoRA adapter", hint="a folder of PEFT or MLX, or a GGUF for llama.cpp's --lora"
        )
    family, sizes = model.family, model.sizes
    adapter, changes = resolved(form.read(found), form.dialect, family, sizes)
    for role, _ in (instance for instance in changes if instance not in model.roles):
        raise UsageError(
            f"the adapter changes {role}, which the model doesn't store separately",
            hint="a tied head is the embedding: untie it, or merge with PEFT",
        )
    for role, _ in changes:
        via = family.rows[role].layouts.get("gguf")
        if via is not None and via.from_config and not sizes.facts:
            raise UnsupportedError(
                f"the GGUF stores {role} multiplied by an unknown factor ({via}), unlike the adapter's change",
                hint="merge the adapter into the folder that the GGUF was made of",
            )
    return adapter, changes, form.dialect


def _with(model: Checkpoint, adapter: LoraAdapter, changes: pairs.Roles, dialect: str) -> Checkpoint:
    family, sizes = model.family, model.sizes
    roles = dict(model.roles)
    for instance, pair in changes.items():
        roles[instance] = _changed(instance[0], roles[instance], pair, adapter.scale(pair))
    if adapter.whole:
        roles |= _whole(model, adapter, dialect)
    prefix = family.prefix_of(model.dialect, model.logical, sizes)
    nodes = family.save(model.dialect, sizes, roles, prefix=prefix)
    return with_nodes(model, packed_rename.parts(model, {n: nodes[n] for n in model.logical if n in nodes}, ()))


def _changed(role: str, weight: LogicalTensor, pair: LoraPair, scale: float) -> Node:
    from weighbridge.tensors.nodes import cast, is_plain, low_rank, rescale_rows

    if not is_plain(weight):
        raise RefusedError(
            f"{role} is quantized: what is added to it would have to be quantized again",
            hint="merge into the model in its floats, then quantize",
        )
    changed = low_rank(weight, pair.a, pair.b, scale)
    return cast(changed if pair.lengths is None else rescale_rows(changed, pair.lengths), weight.spec.dtype)


def _whole(model: Checkpoint, adapter: LoraAdapter, dialect: str) -> Mapping[Any, Node]:
    from weighbridge.tensors.nodes import cast

    family, sizes = model.family, model.sizes
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, adapter.whole, sizes)).places
    out = {}
    for name, node in adapter.whole.items():
        if name not in places or places[name].shape != node.spec.shape:
            raise UnsupportedError(f"the adapter contains {name}, but the model has no such tensor of its shape")
        instance = places[name].instances[0]
        layout = family.layout_of(dialect, instance[0], sizes)
        out[instance] = cast(layout.undo(node) if layout else node, model.roles[instance].spec.dtype)
    return out
