"""The models of a diffusers pipeline, for conversions that treat each part by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.models.diffusion.joined import part_index
from weighbridge.models.diffusion.model import DIFFUSERS
from weighbridge.models.diffusion.parts import PipelineIndex, PipelinePart, read_index
from weighbridge.models.diffusion.tensors import named_tensors
from weighbridge.models.locate import locate
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped, RenamedTensors
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

_CONFIG: Final = "config.json"


@dataclass(frozen=True)
class Pipeline:
    """An open pipeline: the index of its parts, and a model for each part with weights. `left_out`: files and parts of
    ComfyUI's files that no part of it has, as losses."""

    whole: OpenModel
    index: PipelineIndex
    models: tuple[tuple[PipelinePart, OpenModel], ...]
    left_out: tuple[str, ...] = ()


def pipeline_of(model: OpenModel) -> Pipeline:
    """Divides a pipeline into the models of its parts, which share the files of `model`. A part in a GGUF has the names
    of its folder, in the types of the GGUF. Raises UnsupportedError if no table has them."""
    index = read_index(model.place.path)
    assert index is not None  # the pipeline was opened
    files = dict(zip(model.place.weights, model.index.files, strict=False))
    models = []
    for part in index.models:
        prefix, folder = f"{part.name}.", model.place.path / part.name
        weights = tuple(path for path in model.place.weights if path.is_relative_to(folder))
        place = replace(model.place, path=folder, folder=folder, weights=weights, trainer="", notes=())
        if all(path.suffix == ".gguf" for path in weights):
            stored = OpenModel(place, part_index(locate(folder), [files[path] for path in weights]))
            models.append((part, under_folder_names(part, stored)))
            continue
        names = {entry.name.removeprefix(prefix): entry for entry in model.index if entry.name.startswith(prefix)}
        entries = tuple(msgspec.structs.replace(entry, name=name) for name, entry in names.items())
        metadata = {key.removeprefix(prefix): text for key, text in model.metadata.items() if key.startswith(prefix)}
        nodes = RenamedTensors(model.stored, {name: entry.name for name, entry in names.items()})
        models.append((part, OpenModel(place, replace(model.index, entries=entries, metadata=metadata), nodes=nodes)))
    return Pipeline(model, index, tuple(models))


def under_folder_names(part: PipelinePart, model: OpenModel) -> OpenModel:
    """A GGUF or a single file under the names of diffusers or transformers, with the config.json of its folder. A
    language model without one has the config that its keys describe."""
    found, texts = model.diffusion, dict[str, bytes]()
    missing: tuple[str, ...] = ()
    has_config = (model.place.folder / _CONFIG).is_file()
    if found is not None:
        named = named_tensors(model, found, DIFFUSERS)
        tensors, missing = named.tensors, named.others
    else:
        tensors = dict(model.resolved.save_all("hf"))
        texts = {} if has_config else {_CONFIG: json.dumps(dict(model.to_hf_config().config), indent=2).encode()}
    entries = model.index.by_name
    dropped = [Dropped(name, part.name, "no name in diffusers", 1, entries[name].nbytes) for name in missing]
    notes = () if has_config or texts else (f"the folder of the GGUF has no {_CONFIG}, so none is written",)
    plain = replace(model, texts=texts, left_out=tuple(dropped), place=replace(model.place, notes=notes))
    return with_decoded(plain, tensors)


def with_decoded(model: OpenModel, tensors: Mapping[str, LogicalTensor]) -> OpenModel:
    """The model of a folder with these tensors, decoded if they are quantized."""
    from weighbridge.tensors.nodes import Node, decode

    quantized = [name for name, node in tensors.items() if not isinstance(node, Node)]
    notes = [f"decoded: {plural(len(quantized), 'tensor')}; --dtype names another type than F32"] if quantized else []
    place = replace(model.place, notes=(*model.place.notes, *notes))
    plain = replace(model, index=replace(model.index, format="safetensors", metadata={}), place=place)
    return with_nodes(plain, {name: node if isinstance(node, Node) else decode(node) for name, node in tensors.items()})
