"""The parts of ComfyUI's files as a pipeline of diffusers: the names of their tensors by the tables, everything else
from the pipeline that `--config` names.

    diffusion_models/      transformer or unet; two for high and low noise
    vae/                   vae
    text_encoders/         by the names of the files (single_files.toml), otherwise as ComfyUI recognises them

A file that no part needs is listed, and so is a part of the pipeline that has no file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.words import plural
from weighbridge.containers import opening
from weighbridge.containers.formats import COMFY_SET, PIPELINE_INDEX
from weighbridge.conversion.pipelines.places import TOKENIZER_FILES, FilePlaces, PartPlace, marks, places
from weighbridge.models.diffusion import pipeline as whole_pipelines
from weighbridge.models.diffusion.comfy_set import DENOISERS, ENCODERS, KINDS, VAES
from weighbridge.models.diffusion.model import DiffusionModel
from weighbridge.models.diffusion.parts import PipelineIndex, PipelinePart, has_files_only, listed_parts
from weighbridge.models.diffusion.pipeline import Pipeline, under_folder_names, with_decoded
from weighbridge.models.locate import Place
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

_CONFIG: Final = "config.json"
_SECOND: Final = "_2"
_NOISE: Final = ("high", "low")
_ONE_MODEL: Final = "name a folder with the files of one model"
_TOKENIZER: Final = 64 * MIB  # of a tensor with its file; those of published models have up to 20 MB


class SetFile(NamedTuple):
    """A file of a part."""

    path: Path
    model: OpenModel

    @property
    def kind(self) -> str:
        return KINDS[self.path.parent.name]

    @property
    def title(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"


def pipeline_of(model: OpenModel) -> Pipeline:
    """The parts of a pipeline, in diffusers' or in ComfyUI's files. Raises UsageError if ComfyUI's don't determine it,
    or without `--config`; UnsupportedError if no table has the names of a part."""
    return _pipeline_of_set(model) if model.place.trainer == COMFY_SET else whole_pipelines.pipeline_of(model)


def _pipeline_of_set(model: OpenModel) -> Pipeline:
    files = [
        SetFile(path, OpenModel(Place(path, (path,), path.parent), opening.parse(source)))
        for path, source in zip(model.place.weights, model.index.files, strict=True)
    ]
    denoisers = _denoisers(model.place.path, [file for file in files if file.kind == DENOISERS])
    found = denoisers[0].model.diffusion
    if found is None or not found.denoises:
        raise UnsupportedError(f"{denoisers[0].path} has no image or video model that is known")
    layout = places(found.row.id)
    if layout is None or not any(place.file for place in layout.parts.values()):
        raise UnsupportedError(f"no set of files of {found.title} is known", hint="convert its files by themselves")
    folder = model.place.folder
    if (listed := listed_parts(folder)) is None:
        raise UsageError(
            f"{model.place.path} has no {PIPELINE_INDEX}, configs and tokenizers, which a pipeline needs",
            hint=f"--config PATH, a pipeline of {found.title}, such as hf://{layout.configs}: its small files are read",
        )
    first = next(iter(layout.parts))
    chosen = dict(zip((first, first + _SECOND), denoisers, strict=False))
    vaes = [file for file in files if file.kind == VAES]
    if len(vaes) > 1:
        raise UsageError(f"{model.place.path} has several VAEs: {_names(vaes)}", hint=_ONE_MODEL)
    chosen |= dict.fromkeys((VAES,), *vaes) if vaes else {}
    encoders = {file.path.stem: file for file in files if file.kind == ENCODERS}
    stems = assign(layout.parts, {stem: file.model.index.by_name for stem, file in encoders.items()}, model.place.path)
    chosen |= {part: encoders[stem] for part, stem in stems.items()}
    _check_parts(model.place.path, folder, layout, chosen, listed.classes)
    parts = [
        (PipelinePart(part, listed.classes[part], True), file)
        for part, file in chosen.items() if part in listed.classes
    ]  # fmt: skip
    used = {file.path for _, file in parts}
    absent = [
        name for name, class_name in listed.classes.items()
        if not has_files_only(class_name) and name not in {part.name for part, _ in parts}
    ]  # fmt: skip
    left = [f"left out: {name} ({listed.classes[name]}): no file of the set has it" for name in absent]
    left += [f"left out: {f.title}: {found.title} doesn't use it" for f in files if f.path not in used]
    without = [PipelinePart(name, each, False) for name, each in listed.classes.items() if has_files_only(each)]
    left += [
        f"left out: {part.name}: {folder} has no such folder" for part in without if not (folder / part.name).is_dir()
    ]
    texts = _tokenizers(folder, layout, parts)
    if absent:
        document = {**listed.document, **{name: [None, None] for name in absent}}
        texts[PIPELINE_INDEX] = json.dumps(document, indent=2).encode()
    index = PipelineIndex(str(listed.document.get("_class_name", "")), (*(part for part, _ in parts), *without))
    models = tuple((part, _part(part, file, folder, layout, found)) for part, file in parts)
    return Pipeline(replace(model, texts=texts), index, models, tuple(left))


def _names(files: Sequence[SetFile]) -> str:
    return ", ".join(file.path.name for file in files)


def _denoisers(folder: Path, files: list[SetFile]) -> list[SetFile]:
    """The denoiser, or those of high and of low noise in this order."""
    if len(files) == 1:
        return files
    by_noise = [file for noise in _NOISE for file in files if f"{noise}_noise" in file.path.stem.lower()]
    if len(files) != len(by_noise) or len(files) != len(_NOISE) or by_noise[0] is by_noise[1]:
        raise UsageError(f"{folder} has {plural(len(files), 'diffusion model')}: {_names(files)}", hint=_ONE_MODEL)
    return by_noise


def assign(parts: Mapping[str, PartPlace], files: Mapping[str, Collection[str]], folder: Path) -> dict[str, str]:
    """Text encoder -> the stem of its file. `files`: the names of the tensors by stem. Raises UsageError if two files
    have the usual name of an encoder."""
    encoders = {part: place for part, place in parts.items() if place.file}
    assigned: dict[str, str] = {}
    for part, place in encoders.items():
        named = [stem for stem in files if stem.lower().startswith(place.file)]
        if len(named) > 1:
            raise UsageError(f"{folder} has several files for {part}: {', '.join(named)}", hint=_ONE_MODEL)
        if named:
            assigned[part] = named[0]
    unnamed = {stem: names for stem, names in files.items() if stem not in assigned.values()}
    progress = True
    while progress:  # one that is recognised may leave only one for the next
        progress = False
        for part, place in encoders.items():
            marked = [stem for stem, names in unnamed.items() if marks().get(place.file) in names]
            if part not in assigned and len(marked) == 1:
                assigned[part], progress = marked[0], True
                del unnamed[marked[0]]
    return assigned


def _check_parts(
    path: Path, folder: Path, layout: FilePlaces, chosen: Mapping[str, SetFile], classes: Mapping[str, str]
) -> None:
    """Raises UsageError if a part that the table has is missing in the set, or its config in the pipeline."""
    denoiser = next(iter(layout.parts))
    for part in (*layout.parts, denoiser + _SECOND):
        if part in classes and part not in chosen:
            place = layout.parts.get(part)
            place_of = f"{ENCODERS}/{place.file}.safetensors" if place and place.file else VAES if place else DENOISERS
            raise UsageError(f"{path} has no file of {part} ({classes[part]})", hint=f"add {place_of}")
        if part in chosen and part in classes and not (folder / part / _CONFIG).is_file():
            raise UsageError(f"{folder} has no {part}/{_CONFIG}", hint="name the whole pipeline")
    for part in (denoiser, denoiser + _SECOND):
        if part in chosen and part not in classes:
            reason = f"{path} has {chosen[part].title}, but the pipeline {folder} has no {part}"
            raise UsageError(reason, hint=f"--config of a pipeline of this model, such as hf://{layout.configs}")


def _part(part: PipelinePart, file: SetFile, folder: Path, layout: FilePlaces, found: DiffusionModel) -> OpenModel:
    """The model of a part under the names of its folder, whose config it has. Raises UnsupportedError if it is another
    model than the pipeline's."""
    subfolder = folder / part.name
    model = replace(file.model, place=replace(file.model.place, folder=subfolder))
    place = layout.parts.get(part.name.removesuffix(_SECOND) if file.kind != ENCODERS else part.name)
    if place is not None and place.file and model.format != "gguf":
        return _encoder(model, place)
    is_of = file.model.diffusion
    ids = place.names if place is not None and place.names else (found.row.id,)
    if is_of is None and model.format == "gguf" and place is not None and place.file:
        return under_folder_names(part, model)
    if is_of is None or is_of.row.id not in ids:
        content = "no model that is known" if is_of is None else is_of.title
        raise UnsupportedError(f"{file.path} has {content}, which isn't the {part.name} of {found.title}")
    if is_of.names is not None and part.class_name not in (is_of.names.class_name, *is_of.names.also):
        raise UsageError(
            f"{folder} has a {part.name} of the class {part.class_name}, but {file.path} is {is_of.title}",
            hint=f"--config of a pipeline of this model, such as hf://{layout.configs}",
        )
    return under_folder_names(part, model)


def _encoder(model: OpenModel, place: PartPlace) -> OpenModel:
    tensors: dict[str, LogicalTensor] = {}
    for name, node in model.logical.items():
        if name in TOKENIZER_FILES:
            continue
        new = next((old + name.removeprefix(n) for old, n in place.renamed.items() if name.startswith(n)), name)
        tensors[new] = node
    return with_decoded(model, tensors)


def _tokenizers(folder: Path, layout: FilePlaces, parts: list[tuple[PipelinePart, SetFile]]) -> dict[str, bytes]:
    """The files of tokenizers that only the files of text encoders have."""
    texts = {}
    for part, file in parts:
        place = layout.parts.get(part.name)
        name = place.tokenizer if place is not None else ""
        entry = file.model.index.by_name.get(name) if name else None
        if entry is None:
            continue
        if entry.nbytes > _TOKENIZER:
            raise FormatError("the tokenizer is too large", path=str(file.path), field=name, found=entry.nbytes)
        subfolder = part.name.replace("text_encoder", "tokenizer")
        names = TOKENIZER_FILES[name]
        if not any((folder / subfolder / each).is_file() for each in names):
            texts[f"{subfolder}/{names[0]}"] = file.model.index.files[entry.file].read(entry.offset, entry.nbytes)
    return texts
