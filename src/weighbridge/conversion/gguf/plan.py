"""Plans of GGUFs: from a model folder, another GGUF, or a LLaMA file from before GGUF.

source     names              types                                    keys
GGUF       kept               kept, or cast by the rules of a GGUF     kept
folder     of its family      by the rules of a GGUF (dtype_policy)    of config and tokenizer
"""

from __future__ import annotations

from typing import NamedTuple

from weighbridge.base.dtypes import F16, DType
from weighbridge.base.errors import RefusedError
from weighbridge.containers import reader
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf import ggml_upgrade, metadata
from weighbridge.conversion.options import GgufOptions
from weighbridge.conversion.plan import probe
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to, ignored_parts
from weighbridge.conversion.plan.model import Loss, Move
from weighbridge.models.arch import kv_tensors
from weighbridge.models.arch.tables.values import multiplier
from weighbridge.models.arch.write_order import as_read
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.wrapped import unwrapped
from weighbridge.packings import mlx_affine_bridge
from weighbridge.packings.read import ggml
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, storage_name, transcode


def to_gguf(model: Checkpoint, options: GgufOptions) -> PlanBuilder:
    """Names, types, order and keys of `model` as a GGUF. Errors: UnsupportedError, MappingError, FormatError."""
    if model.format == "gguf":
        return _from_gguf(model, options)
    if model.format == "ggml":
        return _from_ggml(model, options)
    if options.vocab_only:
        return _vocabulary_only(model, options)
    model, renamed = unwrapped(model)
    family = model.family
    draft = PlanBuilder({}, losses=[*ignored_parts(model), *_unmapped(model)])
    order = as_read(model.files_of_tensors, pickled=reader(model.format).own_target == "torch")
    named = model.resolved.save("gguf", source_order=order)
    wanted = dtype_policy.gguf_wanted(options.dtype, (n.spec for n in model.stored.values()))
    in_keys = kv_tensors.names(family)
    for name in (n for n in named if n not in in_keys):
        draft.tensors |= _for_gguf(model, name, named[name], wanted, options, draft)
    lists = {name: probe.numbers(name, node) for name, node in named.items() if name in in_keys}
    draft.metadata = metadata.for_gguf(model, draft.tensors, wanted, options, draft.losses, lists)
    draft.notes += renamed
    if dropped := model.resolved.report.dropped:
        draft.notes.append(f"{len(dropped):,} tensors that carry nothing are left out, first {dropped[0]}")
    if multipliers := [key for key in family.folded if multiplier(key, model.sizes.facts) != 1]:
        draft.notes.append(
            f"{', '.join(multipliers)}: multiplied into the weights, since a {family.gguf} GGUF has no keys for them; "
            "a folder made from it has other weights and factors of 1, and computes the same"
        )
    draft.notes += metadata.products(family)
    return draft


def _vocabulary_only(model: Checkpoint, options: GgufOptions) -> PlanBuilder:
    """Keys and tokenizer, as the reference's --vocab-only writes them."""
    draft = PlanBuilder({}, losses=[Loss(f"left out, as asked: {n:,} tensors")] if (n := len(model.index)) else [])
    wanted = dtype_policy.gguf_wanted(options.dtype, (n.spec for n in model.stored.values()))
    draft.metadata = metadata.for_gguf(model, {}, wanted, options, draft.losses, {})
    return draft


def _unmapped(model: Checkpoint) -> list[Loss]:
    """The tensors that a GGUF of the family can't hold."""
    family = model.family
    lost = family.unmapped_roles("gguf", model.sizes, model.roles)
    unused = [i for i in lost if family.rows[i[0]].zeros]
    parts = ("it", [i for i in lost if i not in unused]), ("the rows that no token uses", unused)
    return [
        Loss(f"left out: a {family.gguf} GGUF has no place for {part}", name)
        for part, which in parts
        for name in family.holding(model.dialect, model.sizes, model.logical, which)
    ]


def _from_ggml(model: Checkpoint, options: GgufOptions) -> PlanBuilder:
    """A LLaMA file from before GGUF."""
    tensors, losses, types = ggml_upgrade.tensors(model, options.dtype)
    draft = PlanBuilder({}, losses=losses)
    for name, node in tensors.items():
        draft.tensors[name] = cast_to(name, node, types[name], draft)
    draft.metadata = ggml_upgrade.keys(model, draft.tensors, options, draft.notes)
    return draft


def _for_gguf(
    model: Checkpoint, name: str, node: LogicalTensor, wanted: DType, options: GgufOptions, draft: PlanBuilder
) -> dict[str, Node]:
    """The stored tensors of a logical one: itself, and a scale where its blocks need one."""
    own = dtype_policy.kept_dtype(name, node.spec, storage_name(node), model.family.dialects["gguf"].kept_dtypes)
    chosen = own or dtype_policy.gguf_dtype(name, node.spec, wanted)
    if isinstance(node, QuantizedTensor):
        # The reference keeps the codes of a family's own blocks (gpt-oss: MXFP4) for every requested type.
        native = model.family.dialects[model.dialect].block_dtype is not None
        keep = chosen is wanted and (native or options.dtype in (None, "auto"))
        if own is not None:
            keep = own in node.packing.blocks
        found = _with_scale(model.family.gguf, name, node) if keep else None
        why = "another type was requested" if own is None else f"{own} in a {model.family.gguf} GGUF"
        found = found or (_transcoded(name, node, chosen, options) if keep else _decoded(name, node, chosen, why))
        draft.moves.append(found.move)
        if found.tensors:
            return found.tensors
    if chosen is F16 and wanted.block > 1:
        columns = node.spec.shape[-1]
        draft.losses.append(Loss(f"row length {columns} isn't a multiple of {wanted.block}; using F16", name))
    return {name: cast_to(name, node, chosen, draft)}


class _MovedTensors(NamedTuple):
    """`tensors`: empty where the tensor is decoded."""

    move: Move
    tensors: dict[str, Node]


def _with_scale(graph: str, name: str, node: QuantizedTensor) -> _MovedTensors | None:
    """A tensor as blocks and one scale of the whole tensor; None where that isn't exact."""
    split = ggml.split_global_scale(graph, name, node)
    block, why = probe.block_for(split.blocks, dtype_policy.EXACT_BLOCKS) if split else (None, "")
    if split is None or block is None or why:
        return None
    scale = {f"{name.removesuffix('.weight')}.scale": split.scale}
    move = Move(name, node.packing.name, block.name, "exact")
    return _MovedTensors(move, {name: transcode(split.blocks, block), **scale})


def _decoded(name: str, node: QuantizedTensor, chosen: DType, why: str) -> _MovedTensors:
    return _MovedTensors(Move(name, node.packing.name, chosen.name, "decoded", why), {})


def _transcoded(name: str, node: QuantizedTensor, chosen: DType, options: GgufOptions) -> _MovedTensors:
    """A packed tensor in a block type that holds its codes, if that is possible."""
    source = node.packing.name
    symmetric = mlx_affine_bridge.as_grid(node)
    for form in (node,) if symmetric is None else (symmetric, node):
        block, why = probe.block_for(form, dtype_policy.EXACT_BLOCKS)
        if block is not None and not why:
            return _MovedTensors(Move(name, source, block.name, "exact"), {name: transcode(form, block)})
    if options.inexact == "refuse":
        raise RefusedError(f"{name} can't be converted without loss: {why}", option="--inexact float (or near)")
    if options.inexact == "near" and block is not None and node.packing.parameters:
        rounded = probe.rounding(node)
        return _MovedTensors(Move(name, source, block.name, "near", why, rounded), {name: transcode(node, block)})
    return _decoded(name, node, chosen, why)


def _from_gguf(model: Checkpoint, options: GgufOptions) -> PlanBuilder:
    """A GGUF split, merged, realigned or cast; its keys are kept."""
    draft = PlanBuilder(dict(model.stored))
    kept = metadata.kept_keys(model.metadata)
    if options.dtype is not None:
        wanted = dtype_policy.gguf_wanted(options.dtype, (n.spec for n in model.stored.values()))
        for name, node in model.stored.items():
            draft.tensors[name] = cast_to(name, node, dtype_policy.gguf_dtype(name, node.spec, wanted), draft)
        kept = metadata.with_file_type(kept, wanted)
    draft.metadata = metadata.with_alignment(metadata.named(kept, options.name), options.align)
    return draft
