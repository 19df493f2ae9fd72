"""The parts of a pipeline that ComfyUI's files are.

diffusion_models/      transformer or unet; two for high and low noise
vae/                   vae
text_encoders/         by the names of the files (single_files.toml), otherwise as ComfyUI recognises them
clip_vision/           the same; also the tower of a text encoder that sees
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.words import plural
from weighbridge.containers import opening
from weighbridge.io.source import Source
from weighbridge.models.diffusion.comfy_set import CLIP_VISION, DENOISERS, ENCODERS, KINDS, VAES
from weighbridge.models.diffusion.model import DiffusionModel
from weighbridge.models.diffusion.places import FilePlaces, PartPlace, marks, places
from weighbridge.models.locate import Place
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import RenamedTensors

#: How the name of a second denoiser ends.
SECOND: Final = "_2"
_NOISE: Final = ("high", "low")
_ONE_MODEL: Final = "name a folder with the files of one model"


class SetFile(NamedTuple):
    """A file of the set."""

    path: Path
    model: OpenModel

    @property
    def kind(self) -> str:
        return KINDS[self.path.parent.name]

    @property
    def title(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"


class SetParts(NamedTuple):
    """The files of the parts. `sidecars`: second files. `unused`: files without a part."""

    denoiser: DiffusionModel
    layout: FilePlaces
    files: Mapping[str, SetFile]
    sidecars: Mapping[str, SetFile]
    unused: tuple[SetFile, ...]


def parts_of_set(model: OpenModel) -> SetParts:
    """The parts of ComfyUI's files. Raises UsageError if they are of several models, and UnsupportedError if no set of
    files of their model is known."""
    weights = zip(model.place.weights, model.index.files, strict=False)  # those of merged LoRAs follow
    opened = ((path, _model_of_file(model, path, source)) for path, source in weights)
    files = [SetFile(path, each) for path, each in opened if each is not None]
    denoisers = _denoisers(model.place.path, [file for file in files if file.kind == DENOISERS])
    denoiser = denoisers[0].model.diffusion
    if denoiser is None or not denoiser.denoises:
        raise UnsupportedError(f"{denoisers[0].path} has no image or video model that is known")
    layout = places(denoiser.row.id)
    if layout is None or not any(place.file for place in layout.parts.values()):
        raise UnsupportedError(f"no set of files of {denoiser.title} is known", hint="convert its files by themselves")
    first = next(iter(layout.parts))
    chosen = dict(zip((first, first + SECOND), denoisers, strict=False))
    sidecar = dict[str, SetFile]()
    vaes = [file for file in files if file.kind == VAES]
    if len(vaes) > 1:
        raise UsageError(f"{model.place.path} has several VAEs: {_names(vaes)}", hint=_ONE_MODEL)
    chosen |= dict.fromkeys((VAES,), *vaes) if vaes else {}
    second = {part: place.any_sidecar for part, place in layout.parts.items() if place.any_sidecar}
    for kind in (ENCODERS, CLIP_VISION):
        encoders = {file.path.stem: file for file in files if file.kind == kind}
        names = {stem: file.model.index.by_name for stem, file in encoders.items()}
        for target, all_places in ((chosen, layout.parts), (sidecar, second)):
            parts = {part: place for part, place in all_places.items() if place.folder == kind}
            target |= {part: encoders[stem] for part, stem in assign(parts, names, model.place.path).items()}
    used = {file.path for file in (*chosen.values(), *sidecar.values())}
    return SetParts(denoiser, layout, chosen, sidecar, tuple(file for file in files if file.path not in used))


def _model_of_file(model: OpenModel, path: Path, source: Source) -> OpenModel | None:
    """A file of the set, with the tensors that the set has: those that a LoRA changed, and without those that a slice
    dropped. None if all are dropped."""
    place, index = Place(path, (path,), path.parent), opening.parse(source)
    stored = {entry.name: f"{path.parent.name}/{path.stem}.{entry.name}" for entry in index}
    names = {new: old for new, old in stored.items() if old in model.index.by_name}
    if not names:
        return None
    entries = (msgspec.structs.replace(model.index.by_name[old], name=new, file=0) for new, old in names.items())
    return OpenModel(place, replace(index, entries=tuple(entries)), nodes=RenamedTensors(model.stored, names))


def _names(files: Sequence[SetFile]) -> str:
    return ", ".join(file.path.name for file in files)


def _denoisers(folder: Path, files: list[SetFile]) -> list[SetFile]:
    """The denoiser, or those of high and of low noise in this order."""
    if len(files) == 1:
        return files
    if not files:
        raise UsageError(f"{folder} has no tensors of a diffusion model", hint="name the file of another part itself")
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
        assigned |= dict.fromkeys((part,), named[0]) if named else {}
    unnamed = {stem: names for stem, names in files.items() if stem not in assigned.values()}
    for _ in encoders:  # one that is recognised may leave only one for the next
        for part, place in encoders.items():
            marked = [stem for stem, names in unnamed.items() if marks().get(place.file) in names]
            if part not in assigned and len(marked) == 1:
                assigned[part] = marked[0]
                del unnamed[marked[0]]
    return assigned
