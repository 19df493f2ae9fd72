"""Plans of files of plain dtypes (safetensors, NumPy, PyTorch), whose names are kept and dtypes kept or cast, and of
Hugging Face folders of them: weights under the family's names, with config, tokenizer and other small files.

The code for GGUFs and Whisper is imported by the functions that need it: most plans of plain files need neither.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Final

from weighbridge.base.dtypes import BY_NAME, F16, Kind, dtype, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.containers import by_target, own_target
from weighbridge.containers.formats import DISTRIBUTED
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.options import SMALLEST_EXACT, CastOptions, HfOptions, TorchFolderOptions
from weighbridge.conversion.plan import probe
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to, check_two_way, unplaced, zeros_made
from weighbridge.conversion.plan.losses.shared_storage import place_of
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.side_files import add_side_files
from weighbridge.conversion.plan.target import DCP, FOLDER_CONTAINERS
from weighbridge.conversion.result import Loss, Move
from weighbridge.io.sink import listed
from weighbridge.models.diffusion.tensors import SHAPE_KEY, original_shapes
from weighbridge.models.model import OpenModel
from weighbridge.models.whisper.forms import WhisperForm, form_of
from weighbridge.packings.schema.microscaled import BLOCKS, SCALES
from weighbridge.tensors.nodes import Node, QuantizedTensor, storage_name

I64: Final = BY_NAME["I64"]


def to_container(model: OpenModel, options: CastOptions, kind: str) -> PlanBuilder:
    """Plans the stored tensors of `model`; with a dtype the logical ones, so that packed tensors are decoded.

    Raises UsageError for a dtype that the container can't store.
    """
    target = by_target("torch" if kind == DCP else kind)  # its items are files of torch.save
    storable = target.dtypes if target else frozenset()
    smallest = options.dtype == SMALLEST_EXACT
    requested = None if smallest else requested_dtype(options.dtype)
    if requested is not None and requested.name not in storable:
        if requested.kind is Kind.BLOCK:
            raise UsageError(f"{requested} is a type of GGUF files", hint="give the target the extension .gguf")
        floats = ", ".join(sorted(name.lower() for name in storable if dtype(name).is_float))
        raise UsageError(f"{kind} files can't store {requested}", hint=f"--dtype {floats}; or write .safetensors")
    draft = PlanBuilder({}, {} if model.format == "gguf" else model.metadata)
    if model.format == DISTRIBUTED:
        draft.metadata = {"format": "pt"}
    elif own_target(model.format) == "torch":
        draft.metadata = {"format": "pt", **model.metadata}
        draft.losses += [Loss(f.message) for f in model.index.findings if f.rule.startswith("pickle.")]
    decoded = []
    nodes: dict[Hashable, Node] = {}  # by place: tensors that share their bytes are cast once
    pictures = model.format == "gguf" and model.diffusion is not None
    tensors = (
        original_shapes(model) if pictures else model.stored if options.dtype is None or smallest else model.logical
    )
    narrow = probe.smallest_exact(tensors, storable, draft.notes) if smallest else {}
    for name, node in tensors.items():
        chosen = narrow.get(name) or dtype_policy.plain_dtype(options.dtype, node.spec)
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
    if pictures:
        keys = ", ".join(key for key in model.metadata if not key.startswith(SHAPE_KEY))
        draft.losses += [Loss(f"left out: the GGUF's keys, which describe the file: {keys}")] if keys else []
    elif model.format == "gguf" and model.metadata:
        hint = "--to hf makes a folder with config and tokenizer"
        draft.losses.append(Loss(f"left out: the GGUF's keys, {len(model.metadata):,} in all ({hint})"))
    return draft


def to_folder(
    model: OpenModel, options: HfOptions | TorchFolderOptions, container: str, *, from_mlx: bool = False
) -> PlanBuilder:
    """Plans the weights in `container` and the small files. `from_mlx`: decoded, under the names and layouts of Hugging
    Face, not MLX's. Raises UsageError for a source without a config."""
    if model.format == "gguf":
        return _from_gguf(model, options)
    if (form := form_of(model)) in (WhisperForm.GGML, WhisperForm.OPENAI):
        from weighbridge.conversion.whisper.plan import to_hf

        return to_hf(model, options, form)
    if model.format not in FOLDER_CONTAINERS and not model.config:
        hint = "--config PATH, the model's config.json"
        raise UsageError(f"a {model.format} file has no config, which a model folder needs", hint=hint)
    cast = options.dtype not in (None, SMALLEST_EXACT)
    if from_mlx or (cast and any(isinstance(node, QuantizedTensor) for node in model.logical.values())):
        draft = _decoded(model, options)
    else:
        draft = to_container(model, options, container)
    if model.format not in FOLDER_CONTAINERS:
        keys = listed(list(model.metadata))
        draft.losses += [Loss(f"left out: metadata of the {model.format} file: {keys}")] if keys else []
        draft.metadata = {"format": "pt"}
    draft.texts |= model.texts
    floats = {node.spec.dtype.name for node in draft.tensors.values() if node.spec.dtype.is_float}
    chosen = next(iter(floats)) if options.dtype == SMALLEST_EXACT and len(floats) == 1 else options.dtype
    if model.config and (from_mlx or chosen not in (None, "auto", SMALLEST_EXACT)):
        from weighbridge.conversion.gguf import metadata

        kept = chosen in (None, "auto", SMALLEST_EXACT)
        draft.texts["config.json"] = (
            metadata.unquantized(model.config) if kept else metadata.retyped(model.config, chosen)
        )
    add_side_files(model, draft)
    return draft


def _decoded(model: OpenModel, options: HfOptions | TorchFolderOptions) -> PlanBuilder:
    """Plans plain weights under the names of the original model, from the family's table if the folder has others
    (MLX)."""
    named = model.resolved.save_all("hf") if model.described and model.dialect != "hf" else model.logical
    draft = PlanBuilder({}, {"format": "pt"})
    if model.described and model.dialect != "hf":
        draft.notes += zeros_made(model, "hf", named)
    storable = frozenset({"F32", "F16", "BF16"})
    narrow = probe.smallest_exact(named, storable, draft.notes) if options.dtype == SMALLEST_EXACT else {}
    for name, node in named.items():
        dtype = narrow.get(name) or dtype_policy.plain_dtype(options.dtype, node.spec)
        if options.dtype is None and isinstance(node, QuantizedTensor):
            draft.losses.append(Loss(f"decoded from {storage_name(node)} to {dtype}", name))
        draft.tensors[name] = cast_to(name, node, dtype, draft)
    return draft


def plan_without_weights(model: OpenModel, target: Path, *, tokenizer: bool) -> Plan:
    """Plans a folder of the config, tokenizer and other small files derived from a GGUF's keys, without weights.

    Raises the same errors as a conversion.
    """
    from weighbridge.conversion.gguf import metadata

    plain = {name: node for name, node in model.tensors.items() if isinstance(node, Node)}
    texts, losses = metadata.for_hf(model, plain, tokenizer)
    return Plan(str(model.place.path), target, "hf", True, (), texts, tuple(losses))


def _from_gguf(model: OpenModel, options: HfOptions | TorchFolderOptions) -> PlanBuilder:
    """Plans a GGUF's weights under Hugging Face's names, and the config and tokenizer derived from its keys."""
    from weighbridge.conversion.gguf import dense_modules, metadata
    from weighbridge.conversion.gguf.mmproj import add_towers, projector_of
    from weighbridge.models.llamacpp.companions import find_towers
    from weighbridge.models.llamacpp.towers import is_mmproj

    if is_mmproj(model):
        raise UsageError(
            f"{model.place.path} has a model's towers; its language model is another file",
            hint="make a folder of both: wb convert TEXT.gguf DST --to hf --projector MMPROJ.gguf",
        )
    if not model.index.by_name:
        if "tokenizer.ggml.tokens" not in model.metadata:
            raise UsageError(f"{model.place.path} has keys but no tensors", hint="pass the GGUF with the weights")
        texts, losses = metadata.vocabulary_files(model)
        notes = ["the GGUF is a vocabulary: the folder has its tokenizer and no model"]
        return PlanBuilder({}, texts=texts, losses=losses, notes=notes)
    towers = projector_of(model, options.projector) if isinstance(options, HfOptions) and options.projector else None
    model = model if towers is None else replace(model, whole=towers.class_)
    check_two_way(model)
    blocks = model.family.holding_blocks(model.sizes, model.roles) if options.dtype is None else None
    prefix = None if towers is None else model.family.architectures[towers.class_].prefix
    dialect = blocks or _names_of(model, None if towers is None else towers.class_)
    named = {**model.resolved.save(dialect, prefix=prefix), **(towers.named if towers else {})}
    draft = PlanBuilder({}, {"format": "pt"}, losses=unplaced(model, dialect, "folder"))
    draft.notes += zeros_made(model, dialect, named)
    narrow = probe.narrowest(named) if options.dtype in (None, SMALLEST_EXACT) else {}
    if options.dtype == SMALLEST_EXACT:
        narrow |= probe.smallest_exact(named, frozenset({"F32", "F16", "BF16"}), draft.notes)
    for name, node in named.items():
        if blocks and name.endswith(BLOCKS) and isinstance(node, Node):
            from weighbridge.packings.write.packers import gpt_oss_members  # late: numpy

            draft.moves.append(Move(name, node.spec.dtype.name, blocks, "exact"))
            scales = name.removesuffix(BLOCKS) + SCALES
            draft.tensors[name], draft.tensors[scales] = gpt_oss_members(node)
            continue
        dtype = dtype_policy.plain_dtype(options.dtype, node.spec)
        if dtype.kind is Kind.INT:
            dtype = I64  # the integer type of torch
        if node.spec.dtype.kind is Kind.BLOCK:
            dtype = F16 if dtype.kind is Kind.BLOCK else dtype
            draft.losses.append(Loss(f"decoded from {node.spec.dtype} to {dtype}", name))
        draft.tensors[name] = cast_to(name, node, narrow.get(name, dtype), draft)
    class_ = None if towers is None else towers.class_
    draft.texts, losses = metadata.for_hf(model, draft.tensors, options.tokenizer, quantized=blocks, class_=class_)
    draft.losses += losses
    dense_modules.move_to_folders(model, draft)
    if towers is not None:
        add_towers(draft, towers)
    elif (projector := find_towers(model.place.path, model).path) is not None:
        draft.notes.append(f"the folder has no towers: --projector {projector} adds them")
    draft.notes += metadata.products(model.family)
    return draft


def _names_of(model: OpenModel, class_: str | None) -> str:
    """The dialect of a class of the family, by default the one that the GGUF shows."""
    shown = model.family.architecture_of_gguf(model.metadata, model.index.by_name)
    return (shown if class_ is None else model.family.architectures[class_]).dialect
