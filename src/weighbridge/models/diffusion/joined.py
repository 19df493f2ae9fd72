"""Opens a diffusers pipeline as one model: the tensors of all parts under their names after the part's, such as
`unet.conv_in.weight`. ComfyUI's files too, such as `vae/ae.decoder.conv_in.weight`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from weighbridge.containers import opening, sharded
from weighbridge.containers.base import Index
from weighbridge.io.source import Source
from weighbridge.models.diffusion.parts import read_index
from weighbridge.models.locate import Place, locate
from weighbridge.models.stored_tensors import JoinedModel, StoredTensors, joined_index

_PLAIN = "safetensors"


def open_pipeline(place: Place, sources: Sequence[Source]) -> JoinedModel:
    """The tensors of all parts. `sources`: those of `place.weights`. FormatError if the files of a part aren't one
    model."""
    pipeline = read_index(place.path)
    assert pipeline is not None  # else the place is another model's
    remaining = iter(sources)
    indexes = {}
    for part in pipeline.models:
        files = locate(place.path / part.name)
        indexes[part.name] = part_index(files, [next(remaining) for _ in files.weights])
    return joined_parts(indexes, pipeline.words)


def open_set(place: Place, sources: Sequence[Source]) -> JoinedModel:
    """The tensors of ComfyUI's files, under their names after those of their files."""
    files = zip(place.weights, sources, strict=True)
    indexes = {f"{file.parent.name}/{file.stem}": opening.parse(source) for file, source in files}
    return joined_parts(indexes, f"ComfyUI's files: {', '.join(indexes)}")


def joined_parts(parts: Mapping[str, Index], note: str) -> JoinedModel:
    """The tensors of several models, under their names after those of `parts`."""
    indexes = [under_part(name, index) for name, index in parts.items()]
    index = joined_index(indexes, ((number, entry) for number, each in enumerate(indexes) for entry in each))
    formats = {each.format for each in indexes}
    metadata = {key: value for each in indexes for key, value in each.metadata.items()}
    index = replace(index, format=formats.pop() if len(formats) == 1 else _PLAIN, metadata=metadata)
    return JoinedModel(index, StoredTensors(index), notes=(note,))


def part_index(files: Place, sources: Sequence[Source]) -> Index:
    """The index of a part, which may be in several files."""
    parsed = [opening.parse(source) for source in sources]
    return parsed[0] if len(parsed) == 1 and files.shards is None else sharded.merge(parsed, files.shards)


def under_part(part: str, index: Index) -> Index:
    """The index of a part with names, of metadata too, after the part's."""
    entries = (msgspec.structs.replace(entry, name=f"{part}.{entry.name}") for entry in index)
    metadata = {} if index.format == "gguf" else {f"{part}.{key}": value for key, value in index.metadata.items()}
    return replace(index, entries=tuple(entries), metadata=metadata)
