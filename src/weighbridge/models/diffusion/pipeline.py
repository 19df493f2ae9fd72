"""The models of a diffusers pipeline, for conversions that treat each part by itself."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.models.diffusion.parts import PipelineIndex, PipelinePart, read_index
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import RenamedTensors


@dataclass(frozen=True)
class Pipeline:
    """An open pipeline: the index of its parts, and a model for each part with weights."""

    whole: OpenModel
    index: PipelineIndex
    models: tuple[tuple[PipelinePart, OpenModel], ...]


def pipeline_of(model: OpenModel) -> Pipeline:
    """Divides a pipeline into the models of its parts, which share the files of `model`. Raises UnsupportedError for a
    part in a GGUF, whose keys describe its tensors."""
    if ggufs := [path for path in model.place.weights if path.suffix == ".gguf"]:
        raise UnsupportedError(f"{ggufs[0]} is a part of the pipeline as a GGUF", hint="convert it by itself")
    index = read_index(model.place.path)
    assert index is not None  # the pipeline was opened
    models = []
    for part in index.models:
        prefix, folder = f"{part.name}.", model.place.path / part.name
        names = {entry.name.removeprefix(prefix): entry for entry in model.index if entry.name.startswith(prefix)}
        entries = tuple(msgspec.structs.replace(entry, name=name) for name, entry in names.items())
        weights = tuple(path for path in model.place.weights if path.is_relative_to(folder))
        place = replace(model.place, path=folder, folder=folder, weights=weights, trainer="", notes=())
        metadata = {key.removeprefix(prefix): text for key, text in model.metadata.items() if key.startswith(prefix)}
        nodes = RenamedTensors(model.stored, {name: entry.name for name, entry in names.items()})
        models.append((part, OpenModel(place, replace(model.index, entries=entries, metadata=metadata), nodes=nodes)))
    return Pipeline(model, index, tuple(models))
