"""Plans of GGUFs: from a model folder, another GGUF, or a LLaMA file from before GGUF.

source     names              types                                    keys
GGUF       kept               kept, or cast by the rules of a GGUF     kept
folder     of its family      by the rules of a GGUF (dtype_policy)    of config and tokenizer
an image or video model: `conversion/gguf/diffusion.py`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.dtypes import F32, DType, requested_dtype
from weighbridge.base.errors import RefusedError, UsageError, WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.containers import own_target
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf import decision, dense_modules, metadata, reranker
from weighbridge.conversion.options import GenericGgufOptions, GgufFileOptions, GgufOptions
from weighbridge.conversion.plan import probe, writers
from weighbridge.conversion.plan.builder import (
    PlanBuilder,
    cast_for_gguf,
    cast_to,
    list_unnamed,
    one_way_losses,
    without_place,
    zeros_made,
)
from weighbridge.conversion.result import Loss, Move
from weighbridge.conversion.saving import cast_for_saving
from weighbridge.models.arch.naming import as_read
from weighbridge.models.arch.registry import lacks_encoder, projector_of_hf
from weighbridge.models.arch.tables.spec import INTEGERS, Role
from weighbridge.models.arch.tables.values import multiplier
from weighbridge.models.config.keys import rules
from weighbridge.models.decision import decision_of
from weighbridge.models.llamacpp import TEXT, use_of
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.tied_copies import copies
from weighbridge.models.wrapped import unwrapped
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, cast, storage_name, transcode

_FOLDED: Final = (
    "{}: multiplied into the weights, since a {} GGUF has no keys for them; a folder made from it has other weights "
    "and factors of 1, and computes the same"
)
_BF16: Final = 2.0**-8  # the relative error of BF16, in which files may have computed numbers


def to_gguf(model: OpenModel, options: GgufOptions, towers: GgufFileOptions | None = None) -> PlanBuilder:
    """Plans names, types, order and keys of `model` as a GGUF. `towers`: the options of the second GGUF, if they
    differ from `options`. Raises UnsupportedError, MappingError, FormatError."""
    if model.format == "gguf":
        return _from_gguf(model, options)
    if model.diffusion is not None and model.diffusion.denoises:
        from weighbridge.conversion.gguf import diffusion

        return diffusion.to_gguf(model, model.diffusion, options)
    if model.format == "ggml":
        return _from_ggml(model, options)
    if options.text_model is not None:
        return _with_text_model(model, options, towers or options)
    if not options.draft:
        return _from_folder(model, options, towers or options)
    from weighbridge.conversion.gguf import drafts  # late: few models are drafts

    inner, target = drafts.inside(model, options)
    draft = _from_folder(inner, options, options, target)
    count = plural(len(model.index) - len(inner.index), "tensor")
    draft.losses.insert(0, Loss(f"left out, as asked: {count} of its target; wb convert SRC DST.gguf writes it"))
    return draft


def _from_folder(
    model: OpenModel, options: GgufOptions, towers: GgufFileOptions, target: OpenModel | None = None
) -> PlanBuilder:
    """Plans a GGUF of a model folder. `target`: the model that it drafts for, if it is open."""
    dtype = dtype_policy.requested_gguf_dtype(options.dtype, (n.spec for n in model.stored.values()))
    model, renamed = (model, []) if options.vocab_only else unwrapped(model)
    seeing = decision.of_class(model, decides := decision_of(model))
    model = decision.with_head(seeing, decides)
    family = model.family
    if target is None and (options.target_model is not None or family.document.draft is not None):
        from weighbridge.conversion.gguf import drafts  # late: few models are drafts

        model, target = drafts.with_target(model, options.target_model)
    if options.vocab_only:
        return _without_tensors(model, dtype, options, target)
    draft = PlanBuilder({}, described=None if target is None and not (decides and decides.row.head) else model)
    written = _add_projector(seeing, draft, towers) if options.with_mmproj else ()
    list_unnamed(model, draft, written, _hint_for_part)
    draft.losses += [*one_way_losses(model.resolved), *without_place(model)]
    if computed := [row.name for row in family.rows.values() if row.derived and not row.names.get("gguf")]:
        draft.losses += _differently_computed(model, computed)
    order = decision.head_last(as_read(model.files_of_tensors, pickled=own_target(model.format) == "torch"), decides)
    named = model.resolved.save("gguf", source_order=order)
    draft.notes += [*copies(model, named), *zeros_made(model, "gguf", named)]
    named = {**(decision.tensors_of(decides, model) if decides else {}), **named}
    dense = dense_modules.dense_modules(model, options.dense_modules, draft)
    named = {**{module.name: module.weight for module in dense}, **named}
    rank = reranker.rerank_entry(model, options.rerank)
    draft.requested = frozenset() if options.rerank is None else frozenset({f"{family.gguf}.pooling_type"})
    if rank is not None:
        named = reranker.with_matrix(named, rank, metadata.vocabulary(model, options).tokens)
        draft.notes.append(f"a reranker: {reranker.MATRIX} has rows for {', '.join(rank.labels)} (--no-rerank: none)")
    in_keys = family.metadata_names()
    for name in (n for n in named if n not in in_keys):
        draft.tensors |= _stored_tensors(model, name, named[name], dtype, options, draft)
    places = family.expansion("gguf", model.sizes).places if in_keys else {}
    kinds = {name: family.rows[places[name].roles[0]].kind for name in named if name in in_keys}
    numbers = {name: probe.numbers(name, named[name], integers=kind == INTEGERS) for name, kind in kinds.items()}
    has_key = options.tokenizer and ["untrained"] in map(attrgetter("config"), rules(family).keys)
    untrained = metadata.untrained_tokens(model, named[metadata.EMBEDDING], options) if has_key else []
    draft.metadata = metadata.for_gguf(model, draft.tensors, dtype, options, draft.losses, numbers, untrained, target)
    if rank is not None:
        draft.metadata = reranker.with_keys(draft.metadata, rank, family.gguf)
    decision.add_keys(draft, decides, family.gguf)
    if dense:
        draft.metadata = dense_modules.with_keys(draft.metadata, dense_modules.keys_of(model, dense), family.gguf)
    draft.notes += [*renamed, *metadata.products(family)]
    if tasks := family.effective(model.config).get("lora_adaptations"):
        draft.notes.append(f"the adapter of a task is another file: --task-adapter {'|'.join(map(str, tasks))}")
    if multipliers := [key for key in family.folded if multiplier(key, model.sizes.facts) != 1]:
        draft.notes.append(_FOLDED.format(", ".join(multipliers), family.gguf))
    return draft


def _with_text_model(model: OpenModel, options: GgufOptions, towers: GgufFileOptions) -> PlanBuilder:
    """Plans the GGUF of the language model that `model` has in another folder, and the mmproj file of `model`. The
    files of the former stay open with the latter. Raises UsageError if `model` has its language model itself, or if the
    other folder's model writes no text."""
    if model.described or projector_of_hf(model.config) is None:
        raise UsageError(
            f"--text-model doesn't apply to {model.place.path}: it has no language model elsewhere",
            hint="leave it out; it applies to Ultravox",
        )
    if not options.with_mmproj:
        raise UsageError("--text-model needs --with-mmproj", hint="add it; or convert MODEL, without this option")
    text = open_weights(resolve_path(options.text_model or ""))
    draft = to_gguf(text, replace(options, with_mmproj=False, text_model=None))
    keys = {key: kv.value for key, kv in draft.metadata.items()}
    kind = str(keys.get("general.type", "model"))
    if (use := use_of(keys) if kind == "model" else kind) != TEXT:
        raise UsageError(
            f"--text-model: {text.place.path} isn't a language model that reads sounds, but of another use ({use})",
            hint="name the model that the towers were trained for",
        )
    draft.described = draft.described or text
    draft.sources = (*draft.sources, *text.place.files)
    draft.notes += text.oddities
    _add_projector(model, draft, towers, draft.metadata)
    return draft


def _add_projector(
    model: OpenModel, draft: PlanBuilder, options: GgufFileOptions, language: Mapping[str, KV] | None = None
) -> Collection[str]:
    """Adds the second GGUF to the plan. Returns the names of the tensors that it has."""
    from weighbridge.conversion.gguf import mmproj  # late: few models have towers

    return mmproj.add_file(model, draft, options, language)


def _differently_computed(model: OpenModel, names: Collection[str]) -> list[Loss]:
    """A loss for each tensor whose numbers aren't those that llama.cpp computes in place of it."""
    expected = model.family.derived(model.dialect, model.sizes)
    other = []
    for instance, node in model.roles.items():
        if instance[0] in names:
            floats = (cast(n, F32).read_all().view("<f4").ravel().tolist() for n in (node, expected[instance]))
            if not all(map(partial(math.isclose, rel_tol=_BF16), *floats)):
                other.append(instance)
    reason = "llama.cpp computes other numbers in place of these"
    return [Loss(reason, name) for name in model.family.holding(model.dialect, model.sizes, model.logical, other)]


def _without_tensors(model: OpenModel, dtype: DType, options: GgufOptions, target: OpenModel | None) -> PlanBuilder:
    """Plans keys and tokenizer, as with the reference's --vocab-only."""
    left_out = Loss(f"left out, as asked: {plural(len(model.index), 'tensor')}")
    draft = PlanBuilder({}, losses=[left_out] if len(model.index) else [])
    draft.metadata = metadata.for_gguf(model, {}, dtype, options, draft.losses, target=target)
    return draft


def _from_ggml(model: OpenModel, options: GgufOptions) -> PlanBuilder:
    """Plans a GGUF of a LLaMA file from before GGUF."""
    from weighbridge.conversion.gguf import ggml_upgrade

    tensors, losses, types = ggml_upgrade.tensors(model, options.dtype)
    draft = PlanBuilder({}, losses=losses)
    for name, node in tensors.items():
        draft.tensors[name] = cast_to(name, node, types[name], draft)
    draft.metadata = ggml_upgrade.keys(model, draft.tensors, options, draft.notes)
    return draft


def _hint_for_part(model: OpenModel, start: str) -> str:
    """The command that writes the part of a model whose names begin with `start`, for a loss: its draft model, or the
    towers; "" if no table has its class, or config.json lacks the draft's keys."""
    from weighbridge.models.inner_draft import inner_draft  # late: few models have other parts

    if (entry := model.family.document.inner_draft) is not None and start == entry.prefix:
        return "; wb convert SRC DST.gguf --draft writes it" if inner_draft(model) is not None else ""
    if (projector := projector_of_hf(model.config)) is None:
        return ""
    if lacks_encoder(projector, model.index.by_name):
        return f"; llama.cpp loads no mmproj file without {projector.document.encoder.rstrip('.')}"
    return "; wb convert SRC DST.gguf --mmproj writes it"


def _stored_tensors(
    model: OpenModel, name: str, node: LogicalTensor, requested: DType, options: GgufOptions, draft: PlanBuilder
) -> dict[str, Node]:
    """The stored tensors of a logical one: the tensor, and a scale if its blocks need one."""
    dialect = model.family.dialects["gguf"]
    kept = dtype_policy.kept_dtype(name, node.spec, storage_name(node), dialect.kept_dtypes)
    dtype = kept or dtype_policy.gguf_dtype(name, node.spec, requested, dialect.f32)
    if isinstance(node, QuantizedTensor):
        if kept is None:
            # the reference keeps the codes of a family's native blocks (gpt-oss: MXFP4) for every requested type
            native = model.family.dialects[model.dialect].block_dtype is not None
            keeps_codes = dtype is requested and (native or options.dtype in (None, "auto"))
            reason = "another type was requested"
        else:
            keeps_codes = kept in node.packing.blocks
            reason = f"{kept} in a {model.family.gguf} GGUF"
        if keeps_codes:
            moved = _with_scale(model.family.gguf, name, node) or _transcoded(name, node, dtype, options)
        else:
            moved = _MovedTensors(Move(name, node.packing.name, dtype.name, "decoded", reason), {})
        draft.moves.append(moved.move)
        if moved.tensors:
            return moved.tensors
    return {name: cast_for_gguf(name, node, dtype, requested, draft)}


class _MovedTensors(NamedTuple):
    """`tensors`: empty if the tensor is decoded."""

    move: Move
    tensors: dict[str, Node]


def _with_scale(graph: str, name: str, node: QuantizedTensor) -> _MovedTensors | None:
    """A tensor as blocks and one scale of the whole tensor; None if that isn't exact."""
    from weighbridge.packings.read import ggml  # late: numpy

    split = ggml.split_global_scale(graph, name, node)
    block, reason = probe.block_for(split.blocks, dtype_policy.EXACT_BLOCKS) if split else (None, "")
    if split is None or block is None or reason:
        return None
    scale = {f"{name.removesuffix('.weight')}.scale": split.scale}
    move = Move(name, node.packing.name, block.name, "exact")
    return _MovedTensors(move, {name: transcode(split.blocks, block), **scale})


def _transcoded(name: str, node: QuantizedTensor, dtype: DType, options: GgufOptions) -> _MovedTensors:
    """A packed tensor in a block type that holds its codes; decoded to `dtype` if there is none."""
    from weighbridge.packings import mlx_affine_bridge  # late: numpy

    source = node.packing.name
    symmetric = mlx_affine_bridge.as_int_quant(node)
    for form in (node,) if symmetric is None else (symmetric, node):
        block, reason = probe.block_for(form, dtype_policy.EXACT_BLOCKS)
        if block is not None and not reason:
            return _MovedTensors(Move(name, source, block.name, "exact"), {name: transcode(form, block)})
    if options.inexact == "refuse":
        raise RefusedError(f"{name} can't be converted without loss: {reason}", option="--inexact float (or near)")
    if options.inexact == "near" and block is not None and node.packing.parameters:
        rounded = probe.rounding(node)
        return _MovedTensors(Move(name, source, block.name, "near", reason, rounded), {name: transcode(node, block)})
    return _MovedTensors(Move(name, source, dtype.name, "decoded", reason), {})


def _from_gguf(model: OpenModel, options: GgufOptions) -> PlanBuilder:
    """Plans a GGUF to be split, merged, realigned or cast; its keys are kept."""
    draft = PlanBuilder(dict(model.stored))
    keys = metadata.kept_keys(model.metadata)
    if options.dtype is not None:
        requested = dtype_policy.requested_gguf_dtype(options.dtype, (n.spec for n in model.stored.values()))
        dtype_of = _dtypes_of(model)
        for name, node in model.stored.items():
            dtype = dtype_of(name, node, requested)
            draft.tensors[name] = cast_for_gguf(name, node, dtype, requested, draft)
        keys = metadata.with_file_type(keys, requested)
    draft.metadata = metadata.with_alignment(metadata.named(keys, options.name), options.align)
    if options.with_mmproj:
        add_stored_projector(model, draft, options)
    return draft


def add_stored_projector(model: OpenModel, draft: PlanBuilder, options: GgufOptions) -> None:
    """Adds the mmproj file next to a GGUF to the plan. Raises UsageError if there is none."""
    from weighbridge.conversion.gguf import mmproj  # late: few models have towers

    source = mmproj.stored_file(model, draft)
    whole = replace(options, with_mmproj=False, max_shard_size=None, max_shard_tensors=None)
    second = _from_gguf(source, whole)
    named = mmproj.stored_stem(source, second.metadata, model)
    name = mmproj.file_stem(second.metadata) if options.dtype else named
    draft.extra_files += writers.write_gguf(name, second.tensors, second.metadata, whole).files
    draft.losses += second.losses
    draft.reports |= second.reports


def _dtypes_of(model: OpenModel) -> Callable[[str, Node, DType], DType]:
    """The rule for the types of a GGUF's tensors, by name and requested type: that of its family or projector, so that
    a cast has the types of a conversion from the original folder; the usual rule for an unknown architecture."""
    from weighbridge.conversion.gguf.mmproj import tower_dtype  # late, as is the next: most files have no towers
    from weighbridge.models.llamacpp.towers import is_mmproj

    rows: Mapping[str, Role] = {}
    f32: Sequence[str] = ()
    with suppress(WeighbridgeError):
        f32 = model.family.dialects["gguf"].f32
        rows = model.family.rows_of("gguf", model.sizes, model.stored) if is_mmproj(model) else {}

    def dtype(name: str, node: Node, requested: DType) -> DType:
        if name in rows:
            return tower_dtype(rows[name], name, node.spec, requested)
        return dtype_policy.gguf_dtype(name, node.spec, requested, f32)

    return dtype


def to_generic_gguf(model: OpenModel, options: GenericGgufOptions) -> PlanBuilder:
    """Plans the tensors under their own names for programs with a custom graph: no family table, no tokenizer.

    Raises UnsupportedError for a packed tensor without a requested type.
    """
    draft = PlanBuilder({})
    dtype = None if options.dtype == "auto" else requested_dtype(options.dtype)
    for name, tensor in model.logical.items():
        draft.tensors[name] = cast_for_saving(name, tensor, dtype, draft)
    keys = {"general.architecture": KV("str", options.arch), "general.type": KV("str", "model")}
    draft.metadata = metadata.with_alignment(metadata.named(keys, options.name), options.align)
    if model.json("config.json"):
        draft.losses.append(Loss("left out, as asked: config.json and the tokenizer; a generic GGUF has neither"))
    return draft
