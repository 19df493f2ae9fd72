"""The parts of a whole single file, such as Stable Diffusion's checkpoints, as a pipeline of diffusers. The table
single_files.toml has their places; the pipeline that `--config` names has everything else."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace

import msgspec

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.words import plural
from weighbridge.containers.sniff import diffusion
from weighbridge.conversion.pipelines.assembled import KnownPipeline, PartSource, assembled, listed_in
from weighbridge.models.diffusion.comfy_set import VAES
from weighbridge.models.diffusion.pipeline import Pipeline
from weighbridge.models.diffusion.places import TEXT_ENCODERS, places, prefixes_of_others
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import RenamedTensors


def pipeline_of_file(model: OpenModel) -> Pipeline:
    """The parts of a whole checkpoint. Raises UnsupportedError for other files, and UsageError if a part is missing."""
    path, denoiser = model.place.path, model.diffusion
    if denoiser is None or not denoiser.denoises:
        raise UnsupportedError(
            f"{path} has no image or video model that is known",
            hint="wb identify names the contents; a LoRA is merged into a model: wb convert MODEL DST --lora FILE",
        )
    layout = places(denoiser.row.id)
    if layout is None or not layout.alone:
        hint = "--config needs a folder with the parts' files: diffusion_models/, vae/ and text_encoders/"
        raise UnsupportedError(f"no single file holds all parts of {denoiser.title}", hint=hint if layout else None)
    target = KnownPipeline(denoiser, layout, listed_in(model, denoiser, layout))
    shapes = {entry.name: entry.shape for entry in model.index}
    vaes = [match.prefix for match in diffusion.matches(shapes) if match.row.part == VAES]
    prefixes = {part: place.prefix for part, place in layout.parts.items() if place.prefix}
    prefixes |= {next(iter(layout.parts)): denoiser.prefix, **({VAES: vaes[0]} if vaes and VAES in prefixes else {})}
    by_part = dict[str, dict[str, str]]()
    for part, prefix in prefixes.items():  # names below a longer prefix are another part's
        longer = tuple(other for other in prefixes.values() if len(other) > len(prefix) and other.startswith(prefix))
        below = [name for name in model.stored if name.startswith(prefix) and not (longer and name.startswith(longer))]
        by_part[part] = {name.removeprefix(prefix): name for name in below}
    for part, place in layout.parts.items():
        if by_part.get(part) and place.tokenizer and TEXT_ENCODERS + place.tokenizer in model.stored:
            by_part[part][place.tokenizer] = TEXT_ENCODERS + place.tokenizer
    entries, place_of_parts, chosen = model.index.by_name, replace(model.place, trainer="", notes=()), {}
    for part, names in by_part.items():
        own = tuple(msgspec.structs.replace(entries[old], name=name) for name, old in names.items())
        nodes = RenamedTensors(model.stored, names)
        if own:
            whole = OpenModel(place_of_parts, replace(model.index, entries=own), nodes=nodes)
            chosen[part] = PartSource(f"{prefixes[part]}*", whole)
    used = {old for part, names in by_part.items() if part in target.listed.classes for old in names.values()}
    rest = Counter(name.partition(".")[0] for name in model.stored if name not in used)
    left = [
        f"left out: {plural(count, 'tensor')}, {front}{'.*' if front not in model.stored else ''}: {denoiser.title}"
        " doesn't use them"
        for front, count in rest.items()
    ]
    return assembled(model, target, chosen, left)


def check_described(model: OpenModel) -> None:
    """Raises UsageError for a whole checkpoint that would become a folder without the configs of its pipeline."""
    starts = prefixes_of_others()
    if not any(name.startswith(starts) for name in model.index.by_name):
        return
    denoiser, source = model.diffusion, model.place.path
    layout = places(denoiser.row.id) if denoiser is not None and denoiser.denoises else None
    if denoiser is None or layout is None or not layout.alone:
        return
    configs = f"--config hf://{layout.pipeline(denoiser.title)}"
    raise UsageError(
        f"{source} is a whole checkpoint, and the folder of its pipeline needs configs and tokenizers",
        hint=f"wb convert {shlex.quote(str(source))} FOLDER/ {configs} reads only its small files; "
        "--to safetensors keeps one file",
    )
