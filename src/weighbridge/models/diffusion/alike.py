"""Image models under the names of the single file, to compare the forms of one model: a pipeline of diffusers,
ComfyUI's set of files, a whole checkpoint, and the file or GGUF of one part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from weighbridge.base.dtypes import U8
from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.formats import COMFY_SET, PIPELINE
from weighbridge.containers.sniff import diffusion
from weighbridge.models.diffusion.comfy_set import VAES
from weighbridge.models.diffusion.model import DIFFUSERS, DiffusionModel
from weighbridge.models.diffusion.parts import PipelinePart
from weighbridge.models.diffusion.pipeline import Pipeline, pipeline_of, under_folder_names
from weighbridge.models.diffusion.places import TEXT_ENCODERS, FilePlaces, PartPlace, part_in_file, places
from weighbridge.models.diffusion.set_parts import SECOND, SetFile, SetParts, parts_of_set
from weighbridge.models.diffusion.tensors import SHAPE_KEY, named_tensors
from weighbridge.models.diffusion.tokenizers import tokenizer_in_file
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel
    from weighbridge.tensors.nodes import LogicalTensor

_DENOISER: Final = "model.diffusion_model."
_FORMAT: Final = "format"
_TOKENIZER: Final = "tokenizer"
_ENCODER: Final = "text_encoder"


def under_file_names(models: Sequence[OpenModel]) -> list[OpenModel]:
    """Image models under the names of the single file: pipelines, ComfyUI's sets, parts with diffusers' names, and
    GGUFs in the original shapes. Next to pipelines and sets, parts have the prefix of their place. Tensors without such
    a name keep theirs. Raises UsageError and UnsupportedError for a set that isn't one model's."""
    forms = [_form(model) for model in models]
    whole = next((layout for form in forms if (layout := _layout(form)) is not None), None)
    return [_under_file_names(model, form, whole) for model, form in zip(models, forms, strict=True)]


def _form(model: OpenModel) -> Pipeline | SetParts | DiffusionModel | None:
    """The parts of a pipeline or of a set, or the model of a file; None for names that no table has."""
    if model.place.trainer == COMFY_SET:
        return parts_of_set(model)
    with suppress(WeighbridgeError):  # a model of two kinds, or without a table
        return pipeline_of(model) if model.place.trainer == PIPELINE else model.diffusion
    return None


def _layout(form: Pipeline | SetParts | DiffusionModel | None) -> FilePlaces | None:
    """The places of a whole pipeline's parts; None if they are unknown, or if it is one part."""
    if isinstance(form, SetParts):
        return form.layout
    models = [model.diffusion for _, model in form.models] if isinstance(form, Pipeline) else []
    denoiser = next((model for model in models if model is not None and model.denoises), None)
    return places(denoiser.row.id) if denoiser is not None else None


def _under_file_names(
    model: OpenModel, form: Pipeline | SetParts | DiffusionModel | None, whole: FilePlaces | None
) -> OpenModel:  # fmt: skip
    if isinstance(form, SetParts):
        return _with_tensors(model, _of_set(form))
    with suppress(WeighbridgeError):  # a GGUF of a damaged shape, or a tensor without its parts
        if isinstance(form, Pipeline):
            return _with_tensors(model, _of_pipeline(form, _layout(form)))
        if form is not None:
            return _of_file(model, form, whole)
    return model


def _of_file(model: OpenModel, network: DiffusionModel, whole: FilePlaces | None) -> OpenModel:
    """A part, or a whole checkpoint; next to a pipeline with the prefixes of its places."""
    reshaped = model.format == "gguf" and any(key.startswith(SHAPE_KEY) for key in model.metadata)
    if network.dialect != DIFFUSERS and not reshaped and whole is None:
        return model
    named = named_tensors(model, network)
    if whole is None:
        return _with_tensors(model, {**named.tensors, **{name: model.logical[name] for name in named.others}})
    part = next(iter(whole.parts)) if network.denoises else network.row.part
    tensors = _prefixed(_prefix(whole, part) if part in whole.parts else "", named.tensors)
    matches = diffusion.matches({entry.name: entry.shape for entry in model.index})
    vae = next((match.prefix for match in matches if match.row.part == VAES and match.prefix), None)
    for name in named.others:
        new = name if vae is None or not name.startswith(vae) else _prefix(whole, VAES) + name.removeprefix(vae)
        tensors[new] = model.logical[name]
    return _with_tensors(model, tensors)


def _prefix(layout: FilePlaces, part: str) -> str:
    """The prefix of a part's names: in a single file, or that of its name if it has no place there."""
    place = layout.parts.get(part)
    if place is not None and place.prefix:
        return place.prefix
    return _DENOISER if part == next(iter(layout.parts)) else f"{part}."


def _of_pipeline(pipeline: Pipeline, layout: FilePlaces | None) -> dict[str, LogicalTensor]:
    from weighbridge.tensors import np
    from weighbridge.tensors.nodes import const

    tensors: dict[str, LogicalTensor] = {}
    for part, model in pipeline.models:
        place = _place(layout, part.name, part.class_name)
        if layout is None or place is None:
            tensors |= _prefixed(f"{part.name}.", model.logical)
            continue
        named = part_in_file(model, place)
        tensors |= _prefixed(_prefix(layout, part.name), named.tensors)
        unnamed = {name: model.logical[name] for name in named.unknown}
        tensors |= _prefixed(f"{part.name}.", {**unnamed, **part_in_file(model, place, sidecar=True).tensors})
        folder = part.name.replace(_ENCODER, _TOKENIZER)
        if place.tokenizer and (data := tokenizer_in_file(pipeline.whole.read, folder, place.tokenizer)):
            tensors[TEXT_ENCODERS + place.tokenizer] = const(np.frombuffer(data, np.uint8), U8)
    return tensors


def _of_set(parts: SetParts) -> dict[str, LogicalTensor]:
    tensors: dict[str, LogicalTensor] = {}
    for part, file in parts.files.items():
        place = _place(parts.layout, part)
        assert place is not None  # parts are assigned by the layout
        named = _in_file(part, file, place)
        tokenizer = named.pop(place.tokenizer, None)
        tensors |= _prefixed(_prefix(parts.layout, part), named)
        tensors |= {TEXT_ENCODERS + place.tokenizer: tokenizer} if tokenizer is not None else {}
    for part, file in parts.sidecars.items():
        tensors |= _prefixed(f"{part}.", file.model.logical)
    for file in parts.unused:
        tensors |= _prefixed(f"{file.path.parent.name}/{file.path.stem}.", file.model.logical)
    return tensors


def _in_file(part: str, file: SetFile, place: PartPlace) -> dict[str, LogicalTensor]:
    """The tensors of a file without prefix."""
    model, network = file.model, file.model.diffusion
    if part.startswith(_ENCODER):
        model = under_folder_names(PipelinePart(part, "", True), model) if model.format == "gguf" else model
        return dict(part_in_file(model, place).tensors)
    if network is None or network.names is None:
        return dict(model.logical)
    named = named_tensors(model, network)
    return {**named.tensors, **{name: model.logical[name] for name in named.others}}


def _place(layout: FilePlaces | None, part: str, class_name: str = "") -> PartPlace | None:
    """The place of a part; of a second denoiser, that of the first."""
    if layout is None:
        return None
    first = next(iter(layout.parts))
    return layout.place_of(first if part == first + SECOND else part, class_name)


def parts_lacking(a: OpenModel, b: OpenModel) -> list[str]:
    """Notes on the parts that only one of two models has, as `under_file_names` names them."""
    present = [set(_prefixes(model, _layout_of((a, b)))) for model in (a, b)]
    pairs = zip((a, b), present, present[::-1], strict=True)
    missing = [(model, sorted(needed - has)) for model, has, needed in pairs if has]
    return [f"{model.place.path.name} has no {', '.join(absent)}" for model, absent in missing if absent]


def common_parts(models: Sequence[OpenModel]) -> tuple[list[OpenModel], list[str]]:
    """Models as `under_file_names` names them, with the parts that all of them have, and a note on the others. Models
    without a common part are unchanged."""
    present = [_prefixes(model, _layout_of(models)) for model in models]
    common = set.intersection(*map(set, present)) if present else set()
    uncommon = sorted({part for parts in present for part in parts} - common)
    if not common or not uncommon:
        return list(models), []
    kept = tuple({prefix for parts in present for part, prefix in parts.items() if part in common})
    cut = [
        with_nodes(model, {name: node for name, node in model.stored.items() if name.startswith(kept)})
        for model in models
    ]
    return cut, [f"not compared, since not all have them: {', '.join(uncommon)}"]


def _layout_of(models: Sequence[OpenModel]) -> FilePlaces | None:
    """The places of the first denoiser's model."""
    return next((places(m.diffusion.row.id) for m in models if m.diffusion and m.diffusion.denoises), None)


def _prefixes(model: OpenModel, layout: FilePlaces | None) -> dict[str, str]:
    """The prefixes of the parts that a model has."""
    if layout is None:
        return {}
    parts = {part: _prefix(layout, part) for part in (*layout.parts, next(iter(layout.parts)) + SECOND)}
    return {part: prefix for part, prefix in parts.items() if any(n.startswith(prefix) for n in model.index.by_name)}


def _prefixed(prefix: str, tensors: Mapping[str, LogicalTensor]) -> dict[str, LogicalTensor]:
    return {prefix + name: node for name, node in tensors.items()}


def _with_tensors(model: OpenModel, tensors: Mapping[str, LogicalTensor]) -> OpenModel:
    """The model with these tensors, and without the framework that the metadata of each file names."""
    from weighbridge.tensors.nodes import Node, decode

    metadata = {key: value for key, value in model.metadata.items() if key.rpartition(".")[2] != _FORMAT}
    place = replace(model.place, trainer="")  # its tensors have their new names already
    model = replace(model, place=place, index=replace(model.index, metadata=metadata))
    return with_nodes(model, {name: node if isinstance(node, Node) else decode(node) for name, node in tensors.items()})
