"""Image models under the names of the single file, to compare the forms of one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.formats import PIPELINE
from weighbridge.models.diffusion.model import DIFFUSERS
from weighbridge.models.diffusion.pipeline import Pipeline, pipeline_of
from weighbridge.models.diffusion.places import part_in_file, places
from weighbridge.models.diffusion.tensors import SHAPE_KEY, named_tensors
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel
    from weighbridge.tensors.nodes import LogicalTensor


def under_file_names(model: OpenModel) -> OpenModel:
    """Returns a pipeline or a part with diffusers' names under the names of its single file, and a GGUF in the original
    shapes; other models unchanged. Tensors without such a name keep theirs."""
    try:
        if model.place.trainer == PIPELINE:
            return _with_tensors(model, _of_pipeline(pipeline_of(model)))
        found = model.diffusion
        reshaped = model.format == "gguf" and any(key.startswith(SHAPE_KEY) for key in model.metadata)
        if found is None or (found.dialect != DIFFUSERS and not reshaped):
            return model
        named = named_tensors(model, found)
    except WeighbridgeError:  # a model of two kinds, or without a table
        return model
    return _with_tensors(model, {**named.tensors, **{name: model.logical[name] for name in named.others}})


def _of_pipeline(pipeline: Pipeline) -> dict[str, LogicalTensor]:
    denoiser = next((m.diffusion for _, m in pipeline.models if m.diffusion and m.diffusion.denoises), None)
    layout = places(denoiser.row.id) if denoiser else None
    tensors: dict[str, LogicalTensor] = {}
    for part, model in pipeline.models:
        place = layout.parts.get(part.name) if layout else None
        if place is None or not place.prefix:
            tensors |= {f"{part.name}.{name}": node for name, node in model.logical.items()}
            continue
        named = part_in_file(model, place)
        tensors |= {place.prefix + name: node for name, node in named.tensors.items()}
        tensors |= {f"{part.name}.{name}": model.logical[name] for name in named.unknown}
    return tensors


def _with_tensors(model: OpenModel, tensors: Mapping[str, LogicalTensor]) -> OpenModel:
    from weighbridge.tensors.nodes import Node, decode

    return with_nodes(model, {name: node if isinstance(node, Node) else decode(node) for name, node in tensors.items()})
