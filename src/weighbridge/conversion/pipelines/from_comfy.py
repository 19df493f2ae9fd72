"""The parts of ComfyUI's files as a pipeline of diffusers: the names of their tensors by the tables, everything else
from the pipeline that `--config` names. A file that no part needs is listed, and so is a part of the pipeline that has
no file."""

from __future__ import annotations

from weighbridge.containers.formats import COMFY_FILE, COMFY_SET
from weighbridge.conversion.pipelines.assembled import KnownPipeline, PartSource, assembled, listed_in
from weighbridge.conversion.pipelines.from_file import pipeline_of_file
from weighbridge.models.diffusion import pipeline as whole_pipelines
from weighbridge.models.diffusion.pipeline import Pipeline
from weighbridge.models.diffusion.set_parts import parts_of_set
from weighbridge.models.model import OpenModel


def pipeline_of(model: OpenModel) -> Pipeline:
    """The parts of a pipeline: of diffusers' folder, ComfyUI's files or a whole checkpoint. Raises UsageError if files
    don't determine it, or without `--config`; UnsupportedError if no table has the names of a part."""
    if model.place.trainer == COMFY_FILE:
        return pipeline_of_file(model)
    return _pipeline_of_set(model) if model.place.trainer == COMFY_SET else whole_pipelines.pipeline_of(model)


def _pipeline_of_set(model: OpenModel) -> Pipeline:
    denoiser, layout, files, sidecars, unused = parts_of_set(model)
    listed = listed_in(model, denoiser, layout, tuple(sidecars))
    sources, left = {}, list(unused)
    for part, file in files.items():
        place, second = layout.parts.get(part), sidecars.get(part)
        if second is not None and (place is None or place.of(listed.classes.get(part, "")).sidecar is None):
            left.append(second)
            second = None
        if part not in listed.classes:
            left += [file]
        title = file.title if second is None else f"{file.title} and {second.title}"
        sources[part] = PartSource(title, file.model, second.model if second is not None else None)
    left += [second for part, second in sidecars.items() if part not in files]
    losses = [f"left out: {file.title}: {denoiser.title} doesn't use it" for file in left]
    return assembled(model, KnownPipeline(denoiser, layout, listed), sources, losses)
