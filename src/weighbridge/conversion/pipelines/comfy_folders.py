"""Plans the parts of a diffusers pipeline as files for the folders of ComfyUI, under the names of single files
(single_files.toml):

    diffusion_models/NAME.safetensors     the denoiser, quantized by --comfy-quant; two for high and low noise
    vae/NAME_vae.safetensors
    text_encoders/t5xxl.safetensors ...   the usual names of text encoders
    clip_vision/clip_vision_h.safetensors

NAME is the name of the pipeline's folder, or of the checkpoint's file.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.formats import COMFY_FILE
from weighbridge.conversion.options import ComfyFolderOptions, ComfyOptions, SafetensorsOptions
from weighbridge.conversion.pipelines.folder import PartPlanner, joined
from weighbridge.conversion.pipelines.single_file import denoisers_of, stored_part
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import Target
from weighbridge.conversion.result import Loss
from weighbridge.models.diffusion.pipeline import Pipeline
from weighbridge.models.diffusion.places import PartPlace, places
from weighbridge.models.transform.base import with_nodes

_DENOISERS: Final = "diffusion_models"
#: The second denoiser of Wan 2.2 begins at less noise.
_NOISE: Final = ("_high_noise", "_low_noise")


def plan_comfy_folders(pipeline: Pipeline, target: Target, plan: PartPlanner) -> Plan:
    """Plans all parts that have a place. Raises UnsupportedError for a pipeline whose table has no set of files."""
    path, _, options, *_ = target
    assert isinstance(options, ComfyFolderOptions)
    denoisers = denoisers_of(pipeline)
    network = next(iter(denoisers.values()))
    layout = places(network.row.id)
    if layout is None or not any(place.file for place in layout.parts.values()):
        raise UnsupportedError(
            f"no set of files of {network.title} is known",
            hint="one file holds all its parts: name a .safetensors" if layout else "convert its parts by themselves",
        )
    plans: list[tuple[str, Plan]] = []
    folders: dict[str, str] = {}
    losses: list[Loss] = []
    for part, each in pipeline.models:
        denoises = part.name in denoisers
        place = layout.place_of("transformer" if denoises else part.name, part.class_name)
        stored, left = stored_part(pipeline, part, each, place)
        losses += left
        if not stored or place is None:
            continue
        noise = _NOISE[list(denoisers).index(part.name)] if denoises and len(denoisers) > 1 else ""
        source = pipeline.whole.place.path
        name = source.name if pipeline.whole.place.trainer != COMFY_FILE else source.name.removesuffix(source.suffix)
        folder, stem = _file(name, place, denoises, noise)
        kind = ComfyOptions if denoises and options.comfy_quant else SafetensorsOptions
        inner = kind(**{one.name: getattr(options, one.name) for one in fields(kind)})
        file = Target(path / folder / f"{stem}.safetensors", "safetensors", inner)
        plans.append((part.name, plan(with_nodes(each, stored), file)))
        folders[part.name] = folder
        if place.sidecar is not None:
            stored, left = stored_part(pipeline, part, each, place, sidecar=True)
            losses += left
            file = Target(path / place.sidecar.folder / f"{place.sidecar.file}.safetensors", "safetensors", inner)
            plans += [(place.sidecar.file, plan(with_nodes(each, stored), file))] if stored else []
            folders[place.sidecar.file] = place.sidecar.folder
    whole = joined(pipeline, path, "safetensors", plans, folders)
    without = [part.name for part in pipeline.index.parts if not part.has_weights]
    files = [Loss(f"left out: the files of {', '.join(without)}")] if without else []
    return replace(whole, losses=(*whole.losses, *losses, *files))


def _file(name: str, place: PartPlace, denoises: bool, noise: str) -> tuple[str, str]:
    """The folder and the stem of a part's file."""
    if denoises:
        return _DENOISERS, name + noise
    return (place.folder, place.file) if place.file else ("vae", f"{name}_vae")
