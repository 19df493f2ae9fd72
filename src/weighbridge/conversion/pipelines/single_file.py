"""All parts of a diffusers pipeline in one file, under the names of ComfyUI's checkpoints (single_files.toml)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.dtypes import U8
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.words import plural
from weighbridge.conversion.comfy import to_comfy
from weighbridge.conversion.options import ComfyOptions
from weighbridge.conversion.pipelines.from_comfy import pipeline_of
from weighbridge.conversion.plan.builder import PlanBuilder, left_out
from weighbridge.conversion.plan.folder import to_container
from weighbridge.conversion.result import Loss
from weighbridge.models.diffusion.model import DiffusionModel
from weighbridge.models.diffusion.parts import PipelinePart
from weighbridge.models.diffusion.pipeline import Pipeline
from weighbridge.models.diffusion.places import (
    FAST,
    TEKKEN,
    TEXT_ENCODERS,
    TOKENIZER_FILES,
    PartPlace,
    part_in_file,
    places,
)
from weighbridge.models.diffusion.tokenizers import tokenizer_in_file
from weighbridge.models.model import OpenModel
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import RenamedTensor, with_nodes
from weighbridge.tensors import np
from weighbridge.tensors.nodes import const

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_HINT: Final = "a slash at the end of DST names a folder, which every pipeline can be written to"


def to_single_file(model: OpenModel, options: Any, kind: str) -> PlanBuilder:
    """Plans a file of all parts. Raises UnsupportedError for a pipeline that no single file holds."""
    pipeline = pipeline_of(model)
    denoiser = denoiser_of(pipeline)
    layout = places(denoiser.row.id)
    if layout is None or not layout.alone:
        hint = _HINT if layout is None else f"{_HINT}; --comfy-folders writes a file per part"
        raise UnsupportedError(f"no single file holds all parts of {denoiser.title}", hint=hint)
    tensors: dict[str, Node] = {}
    losses: list[Loss] = []
    for part, each in pipeline.models:
        place = layout.place_of(part.name, part.class_name)
        stored, left = stored_part(pipeline, part, each, place if place is not None and place.prefix else None)
        losses += [*left, *_sidecar_left(part, each, place)]
        for name, node in stored.items():
            assert place is not None  # else nothing is stored
            tensors[(TEXT_ENCODERS if name == place.tokenizer else place.prefix) + name] = node
    whole = with_nodes(model, tensors)
    draft = to_comfy(whole, options) if isinstance(options, ComfyOptions) else to_container(whole, options, kind)
    draft.metadata = {"format": "pt"}
    draft.losses += [*losses, *map(Loss, pipeline.left_out)]
    files = [part.name for part in pipeline.index.parts if not part.has_weights]
    draft.losses += [Loss(f"left out: the files of {', '.join(files)}")] if files else []
    if absent := [
        name
        for name, place in layout.parts.items()
        if place.prefix and name not in {part.name for part in pipeline.index.models}
    ]:
        draft.notes.append(f"the pipeline has no {', '.join(absent)}")
    draft.notes.append(
        f"{denoiser.title}: a checkpoint of {plural(len(pipeline.models), 'part')}, with the names of ComfyUI"
    )
    return draft


def _sidecar_left(part: PipelinePart, each: OpenModel, place: PartPlace | None) -> list[Loss]:
    """The tensors of a part that ComfyUI reads from a second file only, as a loss."""
    if place is None or place.sidecar is None:
        return []
    names = list(part_in_file(each, place, sidecar=True).tensors)
    message = f"{plural(len(names), 'tensor')} of {part.name} ({part.class_name}), first {names[0]}" if names else ""
    return [Loss(f"left out: {message}, which ComfyUI reads from {place.sidecar.folder}/ only")] if names else []


def stored_part(
    pipeline: Pipeline, part: PipelinePart, each: OpenModel, place: PartPlace | None, *, sidecar: bool = False
) -> tuple[dict[str, Node], list[Loss]]:
    """The stored tensors of a part under the names of its single file, without prefix, and the losses. `sidecar`: those
    of its second file."""
    title = f"{part.name} ({part.class_name})"
    losses = left_out(each)
    if place is None:
        return {}, [*losses, Loss(f"left out: {title}, which has no place in a single file")]
    try:
        named = part_in_file(each, place, sidecar=sidecar)
    except FormatError as error:
        raise FormatError(error.reason, path=str(each.place.path)) from None
    if named.unknown and place.whole:
        first = f"{part.name}.{named.unknown[0]}"
        return {}, [*losses, Loss(f"left out: {title}, because a single file has no name for {first}")]
    losses += [Loss("left out: a single file has no such name", f"{part.name}.{name}") for name in named.unknown]
    renamed = [RenamedTensor(named.sources.get(name, (name,)), name) for name in named.tensors]
    stored = packed_rename.parts(each, named.tensors, renamed)
    if place.tokenizer and not sidecar:
        folder, names = part.name.replace("text_encoder", "tokenizer"), TOKENIZER_FILES[place.tokenizer]
        data = tokenizer_in_file(pipeline.whole.read, folder, place.tokenizer)
        if data is None:
            missing = f"{pipeline.whole.place.folder / folder} has no {' or '.join(names)}"
            missing += f", and {FAST} there isn't one of its kind" if place.tokenizer == TEKKEN else ""
            losses.append(Loss(f"{place.tokenizer}: {missing}, without which ComfyUI can't read texts"))
        else:
            stored[place.tokenizer] = const(np.frombuffer(data, np.uint8), U8)
    return stored, losses


def denoiser_of(pipeline: Pipeline) -> DiffusionModel:
    """The model that decides the layout of the file."""
    found = denoisers_of(pipeline)
    if len(found) > 1:
        title = next(iter(found.values())).title
        raise UnsupportedError(f"{title} has {plural(len(found), 'denoiser')}, and a single file holds one", hint=_HINT)
    return next(iter(found.values()))


def denoisers_of(pipeline: Pipeline) -> dict[str, DiffusionModel]:
    """The denoisers by the names of their parts. UnsupportedError without one, and for several models."""
    models = {part.name: each.diffusion for part, each in pipeline.models}
    found = {name: model for name, model in models.items() if model and model.denoises}
    if not found:
        parts = ", ".join(f"{part.name} ({part.class_name})" for part, each in pipeline.models if len(each.index))
        raise UnsupportedError(f"{pipeline.whole.place.path}: no table has the names of {parts}", hint=_HINT)
    return found
