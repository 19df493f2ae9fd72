"""Models of parts under the names of single files, and a pipeline's configs, as a pipeline of diffusers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import CONFIG_JSON, MIB
from weighbridge.base.words import plural
from weighbridge.containers.formats import COMFY_SET, PIPELINE_INDEX
from weighbridge.conversion.pipelines.sizes import check_sizes
from weighbridge.io.location import open_source
from weighbridge.models.diffusion.comfy_set import DENOISERS, ENCODERS, VAES
from weighbridge.models.diffusion.model import DiffusionModel
from weighbridge.models.diffusion.parts import ListedParts, PipelineIndex, PipelinePart, has_files_only, listed_parts
from weighbridge.models.diffusion.pipeline import Pipeline, under_folder_names, with_decoded
from weighbridge.models.diffusion.places import FAST, TEKKEN, TOKENIZER_FILES, FilePlaces, PartPlace, names_in_folder
from weighbridge.models.diffusion.set_parts import SECOND
from weighbridge.models.jsonfile import decode
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

_CONFIG: Final = "config.json"
_ENCODER: Final = "text_encoder"
_TOKENIZER: Final = 64 * MIB  # of a tensor with its file; those of published models have up to 20 MB


class PartSource(NamedTuple):
    """The tensors of a part under the names of its single file, without prefix. `title`: for messages. `sidecar`: those
    of its second file."""

    title: str
    model: OpenModel
    sidecar: OpenModel | None = None


class KnownPipeline(NamedTuple):
    """The denoiser of a model, the places of its parts, and the list of a pipeline's parts."""

    denoiser: DiffusionModel
    layout: FilePlaces
    listed: ListedParts

    @property
    def other(self) -> str:
        """The hint on a pipeline of another model."""
        return f"--config of a pipeline of this model, such as hf://{self.layout.pipeline(self.denoiser.title)}"


def listed_in(
    model: OpenModel, denoiser: DiffusionModel, layout: FilePlaces, sidecar: Collection[str] = ()
) -> ListedParts:  # fmt: skip
    """The parts of the pipeline that `--config` names. `sidecar`: parts with a second file. Raises UsageError if there
    is none."""
    if (listed := listed_parts(model.place.folder)) is not None:
        return listed
    configs = layout.pipeline(denoiser.title)
    if configs == layout.configs:  # not a version's
        seeing = (second.configs for part in sidecar if (second := layout.parts[part].any_sidecar))
        configs = next(seeing, configs)
    raise UsageError(
        f"{model.place.path} has no {PIPELINE_INDEX}, configs and tokenizers, which a pipeline needs",
        hint=f"--config PATH, a pipeline of {denoiser.title}, such as hf://{configs}: its small files are read",
    )


def assembled(
    model: OpenModel, target: KnownPipeline, chosen: Mapping[str, PartSource], left: Sequence[str]
) -> Pipeline:
    """The pipeline of the parts in `chosen`. `left`: losses. Raises UsageError if a part is missing or isn't the one of
    its config."""
    layout, listed, classes = target.layout, target.listed, target.listed.classes
    path, folder, denoiser = model.place.path, model.place.folder, next(iter(layout.parts))
    for part in (*layout.parts, denoiser + SECOND):
        place = layout.parts.get(part)
        if part in classes and part not in chosen and not (place is not None and place.optional):
            folder_of = place.folder if place and place.file else VAES if place else DENOISERS
            add = f"add {folder_of}/{place.file}.safetensors" if place and place.file else f"add a file to {folder_of}/"
            whole = f"a whole checkpoint; or a folder with the parts' files in {DENOISERS}/, {VAES}/ and {ENCODERS}/"
            is_set = model.place.trainer == COMFY_SET
            lacks = f"{path} has no {'file' if is_set else 'tensors'} of {part} ({classes[part]})"
            raise UsageError(lacks, hint=add if is_set else f"name {whole}")
        if part in chosen and part in classes and place is not None:
            _check_sidecar(path, f"{part} ({classes[part]})", place.of(classes[part]), chosen[part])
        if part in chosen and part in classes and not (folder / part / _CONFIG).is_file():
            raise UsageError(f"{folder} has no {part}/{_CONFIG}", hint="name the whole pipeline")
    for part in (denoiser, denoiser + SECOND):
        if part in chosen and part not in classes:
            reason = f"{path} has {chosen[part].title}, but the pipeline {folder} has no {part}"
            raise UsageError(reason, hint=target.other)
    parts = [
        (PipelinePart(part, listed.classes[part], True), source)
        for part, source in chosen.items() if part in listed.classes
    ]  # fmt: skip
    names = {part.name for part, _ in parts}
    absent = [name for name, kind in listed.classes.items() if not has_files_only(kind) and name not in names]
    losses = [f"left out: {name} ({listed.classes[name]}): no file of the model has it" for name in absent]
    losses += left
    without = [PipelinePart(name, kind, False) for name, kind in listed.classes.items() if has_files_only(kind)]
    losses += [
        f"left out: {part.name}: {folder} has no such folder" for part in without if not (folder / part.name).is_dir()
    ]
    texts = _tokenizers(folder, layout, parts)
    if absent:
        document = {**listed.document, **{name: [None, None] for name in absent}}
        texts[PIPELINE_INDEX] = json.dumps(document, indent=2).encode()
    index = PipelineIndex(str(listed.document.get("_class_name", "")), (*(part for part, _ in parts), *without))
    models = tuple((part, _part(part, source, folder, target, losses)) for part, source in parts)
    return Pipeline(replace(model, texts=texts), index, models, tuple(losses))


def _check_sidecar(path: Path, title: str, place: PartPlace, source: PartSource) -> None:
    """Raises UsageError if the second file of a part is missing."""
    if place.sidecar is not None and source.sidecar is None:
        names = " and ".join(f"{name}*" for name in dict.fromkeys(place.sidecar.renamed.values()))
        raise UsageError(
            f"{path} has no {names} of {title}, which ComfyUI has in a separate file",
            hint=f"name a folder with {DENOISERS}/, {VAES}/, {ENCODERS}/ and "
            f"{place.sidecar.folder}/{place.sidecar.file}.safetensors",
        )


def _part(
    part: PipelinePart, source: PartSource, folder: Path, target: KnownPipeline, losses: list[str]
) -> OpenModel:  # fmt: skip
    """The model of a part under the names of its folder, whose config it has. Raises UnsupportedError if it is another
    model than the pipeline's."""
    subfolder = folder / part.name
    model = replace(source.model, place=replace(source.model.place, folder=subfolder))
    config = read_config(subfolder / _CONFIG)
    parts = target.layout.parts
    place = parts.get(part.name) or parts.get(part.name.removesuffix(SECOND))
    place = place and place.of(part.class_name)
    encodes = part.name.startswith(_ENCODER) or bool(place and place.file)
    if place is not None and place.spare:
        model = _without_spare(part, model, place, config, losses)
    if encodes and place is not None and not place.names:
        if model.format == "gguf":
            _check_model(part, source, model, place, target)
            model = under_folder_names(part, model)
        tensors = _under_names(model, place)
        if source.sidecar is not None and place.sidecar is not None:
            tensors |= _under_names(source.sidecar, place.sidecar)
            files = (*model.place.weights, *source.sidecar.place.weights)
            model = replace(model, place=replace(model.place, weights=files))
        named = with_decoded(model, tensors)
    else:
        _check_model(part, source, model, place, target)
        named = under_folder_names(part, model)
    compared = check_sizes(part.class_name, config, named, subfolder / _CONFIG, source.title, target.other)
    notes = () if compared else ("not compared with the tensors: config.json declares none of the known sizes",)
    return replace(named, place=replace(named.place, notes=(*named.place.notes, *notes)))


def _under_names(model: OpenModel, place: PartPlace) -> dict[str, LogicalTensor]:
    """The tensors of a text encoder under the names of its folder."""
    names = names_in_folder([name for name in model.logical if name not in TOKENIZER_FILES], place)
    return {name: model.logical[old] for name, old in names.items()}


def _check_model(
    part: PipelinePart, source: PartSource, model: OpenModel, place: PartPlace | None, target: KnownPipeline
) -> None:
    denoiser, network = target.denoiser, source.model.diffusion
    ids = place.names if place is not None and place.names else (denoiser.row.id,)
    if network is None and model.format == "gguf" and part.name.startswith(_ENCODER):
        return
    if network is None or network.row.id not in ids:
        content = "no model that is known" if network is None else network.title
        raise UnsupportedError(
            f"{source.model.place.path} has {content}, which isn't the {part.name} of {denoiser.title}"
        )
    if network.names is not None and part.class_name not in (network.names.class_name, *network.names.also):
        raise UsageError(
            f"{model.place.folder.parent} has a {part.name} of the class {part.class_name}, but "
            f"{source.model.place.path} is {network.title}",
            hint=target.other,
        )


def _without_spare(
    part: PipelinePart, model: OpenModel, place: PartPlace, config: Mapping[str, Any], losses: list[str]
) -> OpenModel:
    """A model without the tensors that its class doesn't have."""
    starts = tuple(start.format_map(_Sizes(config)) for start in place.spare)
    spare = [name for name in model.stored if name.startswith(starts)]
    if not spare:
        return model
    losses.append(
        f"left out: {plural(len(spare), 'tensor')} of {part.name}, first {spare[0]}: {part.class_name} doesn't use them"
    )
    from weighbridge.models.transform.base import with_nodes

    return with_nodes(model, {name: model.stored[name] for name in model.stored if name not in set(spare)})


class _Sizes(dict[str, Any]):
    """The numbers of a config; a template without its number matches no name."""

    def __missing__(self, key: str) -> str:
        return "\0"


def read_config(path: Path) -> dict[str, Any]:
    """The config of a part."""
    with open_source(path) as source:
        data = source.read(0, min(source.size, CONFIG_JSON + 1))
    document: dict[str, Any] = decode(data, str(path), dict[str, Any])
    return document


def _tokenizers(
    folder: Path, layout: FilePlaces, parts: Sequence[tuple[PipelinePart, PartSource]]
) -> dict[str, bytes]:  # fmt: skip
    """The files of tokenizers that only the files of text encoders have."""
    texts = {}
    for part, source in parts:
        place = layout.parts.get(part.name)
        name = place.tokenizer if place is not None else ""
        if not name or (node := source.model.stored.get(name)) is None:
            continue
        if node.spec.nbytes > _TOKENIZER:
            raise FormatError("the tokenizer is too large", path=source.title, field=name, found=node.spec.nbytes)
        subfolder = part.name.replace("text_encoder", "tokenizer")
        names = TOKENIZER_FILES[name]
        present = (*names, FAST) if name == TEKKEN else names
        if not any((folder / subfolder / file).is_file() for file in present):
            texts[f"{subfolder}/{names[0]}"] = bytes(node.read(0, node.spec.rows))
    return texts
