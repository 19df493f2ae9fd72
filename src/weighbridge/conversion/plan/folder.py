"""Plans of Hugging Face folders: weights under the family's names, with config, tokenizer and other small files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from weighbridge.base.dtypes import BY_NAME, F16, Kind
from weighbridge.base.errors import UsageError
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf import metadata
from weighbridge.conversion.options import CastOptions, HfOptions, TorchFolderOptions
from weighbridge.conversion.plan import probe, writers
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to, ignored_parts, sidecar_files
from weighbridge.conversion.plan.model import Loss, Move, Plan
from weighbridge.conversion.plan.plain import to_container
from weighbridge.conversion.plan.target import FOLDER_CONTAINERS
from weighbridge.io.location import open_source
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.wrapped import unwrapped_folder
from weighbridge.packings.schema.microfloat import BLOCKS, SCALES
from weighbridge.packings.write import packers
from weighbridge.tensors.nodes import Node, QuantizedTensor

I64: Final = BY_NAME["I64"]


def to_folder(model: Checkpoint, options: HfOptions | TorchFolderOptions, container: str) -> PlanBuilder:
    """Weights in `container`, and the small files. UsageError for a source without a config."""
    if model.format == "gguf":
        return _from_gguf(model, options)
    if model.format not in FOLDER_CONTAINERS:
        raise UsageError(f"a {model.format} file has no config, which a model folder needs")
    model, renamed = unwrapped_folder(model)
    packed = any(isinstance(node, QuantizedTensor) for node in model.logical.values())
    draft = _unpacked(model, options) if packed and options.dtype else to_container(model, options, container)
    draft.notes += renamed
    folder = model.place.folder
    draft.texts |= model.texts
    if options.dtype not in (None, "auto") and model.config:
        draft.texts["config.json"] = metadata.retyped(model.config, options.dtype)
    for path in sidecar_files(folder):
        name = path.relative_to(folder).as_posix()
        if name not in draft.texts:
            draft.extra_files.append(writers.raw(name, open_source(path)))
    return draft


def plan_without_weights(model: Checkpoint, target: Path, *, tokenizer: bool) -> Plan:
    """The config, tokenizer and other small files that a GGUF's keys stand for, as a folder of their own. Errors: as
    those of a conversion."""
    plain = {name: node for name, node in model.tensors.items() if isinstance(node, Node)}
    texts, losses = metadata.for_hf(model, plain, tokenizer)
    return Plan(str(model.place.path), target, "hf", True, (), texts, tuple(losses))


def _unpacked(model: Checkpoint, options: CastOptions) -> PlanBuilder:
    """A quantized folder decoded to the requested dtype, under the names of the original model."""
    named = model.resolved.save("hf")
    draft = PlanBuilder({}, {"format": "pt"}, losses=ignored_parts(model))
    for name, node in named.items():
        draft.tensors[name] = cast_to(name, node, dtype_policy.plain_dtype(options.dtype, node.spec), draft)
    return draft


def _from_gguf(model: Checkpoint, options: HfOptions | TorchFolderOptions) -> PlanBuilder:
    """A GGUF's weights under Hugging Face's names, and the config and tokenizer that its keys stand for."""
    if not model.index.by_name:
        return _tokenizer_alone(model)
    own = model.family.holding_blocks(model.sizes, model.roles) if options.dtype is None else None
    named = model.resolved.save(own or "hf")
    draft = PlanBuilder({}, {"format": "pt"}, losses=_unmapped(model, own or "hf"))
    narrow = probe.narrowest(named) if options.dtype is None else {}
    for name, node in named.items():
        if own and name.endswith(BLOCKS) and isinstance(node, Node):
            draft.moves.append(Move(name, node.spec.dtype.name, own, "exact"))
            scales = name.removesuffix(BLOCKS) + SCALES
            draft.tensors[name], draft.tensors[scales] = packers.gpt_oss_members(node)
            continue
        wanted = dtype_policy.plain_dtype(options.dtype, node.spec)
        if wanted.kind is Kind.INT:
            wanted = I64  # as torch counts
        if node.spec.dtype.kind is Kind.BLOCK:
            wanted = F16 if wanted.kind is Kind.BLOCK else wanted
            draft.losses.append(Loss(f"decoded from {node.spec.dtype} to {wanted}", name))
        draft.tensors[name] = cast_to(name, node, narrow.get(name, wanted), draft)
    draft.texts, lost = metadata.for_hf(model, draft.tensors, options.tokenizer, quantized=own)
    draft.losses += lost
    draft.notes += metadata.products(model.family)
    return draft


def _tokenizer_alone(model: Checkpoint) -> PlanBuilder:
    """The tokenizer of a GGUF that is a vocabulary and no model."""
    if "tokenizer.ggml.tokens" not in model.metadata:
        raise UsageError(f"{model.place.path} has keys but no tensors", hint="pass the GGUF with the weights")
    draft = PlanBuilder({}, notes=["the GGUF is a vocabulary: the folder has its tokenizer and no model"])
    draft.texts, lost = metadata.vocabulary_files(model)
    draft.losses += lost
    return draft


def _unmapped(model: Checkpoint, dialect: str) -> list[Loss]:
    """The tensors that a folder can't hold, except zeros that only llama.cpp's graph needs."""
    family = model.family
    lost = [i for i in family.unmapped_roles(dialect, model.sizes, model.roles) if not probe.nothing(model.roles[i])]
    names = family.holding(model.dialect, model.sizes, model.tensors, lost)
    return [Loss(f"left out: a {family.name} folder has no place for it", name) for name in names]
