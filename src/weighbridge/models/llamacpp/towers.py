"""The towers of a model that sees or hears, through the table of its projector.

A Hugging Face folder holds them next to the language model. llama.cpp has them in a second GGUF, of architecture
`clip`, which it calls mmproj.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.io.filesystem import check_link
from weighbridge.models.arch.naming import MappingError, MappingReport
from weighbridge.models.arch.registry import lacks_encoder, projector_of_gguf, projector_of_hf, projectors
from weighbridge.models.arch.tables.expression import OF_TENSORS, ArchView
from weighbridge.models.config.keys import rules
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.token_rows import copied_rows
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.resolved import ResolvedModel

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Sizes
    from weighbridge.models.arch.family import Family
    from weighbridge.tensors.nodes import LogicalTensor

#: Files of a folder that describe how images and sounds are prepared: later ones win.
PREPROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")
#: The object of a config that has their keys.
PREPROCESSOR: Final = "preprocessor"
_INNER: Final = ("media_proc_cfg", "vision_config", "image_processor", "feature_extractor")


@dataclass(frozen=True)
class Towers:
    """`resolved`: the towers' tensors through the projector's table. `dropped`: tensors that llama.cpp doesn't compute
    with. `folded`: tensors of batch norms that are folded into others. `language`: tensors of the language model.
    `further`: tensors of the table's `companions`, and their files. `config`: the folder's, with `preprocessor`,
    `folder_name` and those of its companions."""

    resolved: ResolvedModel
    config: Mapping[str, Any]
    dropped: tuple[str, ...]
    folded: tuple[str, ...]
    language: tuple[str, ...]
    further: tuple[str, ...]
    files: tuple[Path, ...]


def towers_of(model: OpenModel) -> Towers:
    """The towers of a model folder. Raises UnsupportedError if no table has its class, UsageError if the folder has
    only the language model, MappingError for a tensor that neither has."""
    from weighbridge.models.llamacpp import batch_norms

    listed = model.config.get("architectures")
    class_ = listed[0] if isinstance(listed, list) and listed else model.config.get("model_type")
    if (family := projector_of_hf(model.config)) is None:
        raise _without_table(class_)
    if lacks_encoder(family, model.index.by_name):
        encoder = family.document.encoder.rstrip(".")
        raise UnsupportedError(
            f"this {class_} has no {encoder}, and llama.cpp loads no mmproj file that neither sees nor hears",
            hint="wb convert SRC DST.gguf converts the language model; only models with this encoder have both files",
        )
    companions = {folder: companion_of(model, folder) for folder in family.document.companions}
    further = {f"{folder}.{name}": node for folder, part in companions.items() for name, node in part.logical.items()}
    tensors = {**further, **model.logical}
    config = {**model.config, PREPROCESSOR: preprocessor(model), **dimensions_of(family, tensors)}
    config |= {"folder_name": model.place.title, **{folder: part.config for folder, part in companions.items()}}
    config |= {"decision": decision} if (decision := model.json("decision_config.json")) else {}
    sizes = family.sizes_from_hf(config)
    try:
        dialect, prefix = family.dialect_and_prefix(tensors, sizes)
    except UnsupportedError:
        hint = "it has only the language model: wb convert SRC DST.gguf"
        raise UsageError(f"{model.place.path} has no tensor of the {family.name} projector", hint=hint) from None
    expansion = family.expansion(dialect, sizes, prefix)
    mine = {name: node for name, node in tensors.items() if name in expansion.places}
    mine |= copied_rows(model, family)
    mine |= (norms := batch_norms.folded(family, expansion, tensors))
    ignored = family.ignored_prefixes(sizes)
    dropped = tuple(name for name in tensors if name in expansion.dropped or name.startswith(ignored))
    extra = tuple(name for name in batch_norms.extras(norms) if name in tensors)
    known = {*mine, *dropped, *extra}
    others = [name for name in tensors if name not in known]
    unknown = {name for name in others if name in further}
    if model.described:
        unknown |= {*others} & {*model.resolved.report.apart, *model.resolved.report.unmapped}
    if unknown:
        report = MappingReport(unmapped=tuple(name for name in others if name in unknown))
        raise MappingError(family.name, dialect, report, path=str(model.place.path))
    resolved = ResolvedModel(family, sizes, dialect, prefix, mine, model.format, str(model.place.path))
    files = tuple(path for part in companions.values() for path in part.place.weights)
    return Towers(resolved, config, dropped, extra, tuple(others), tuple(further), files)


def companion_of(model: OpenModel, folder: str) -> OpenModel:
    """The model in a folder next to the weights, whose files stay open with it. Raises UnsupportedError if it is
    missing, and RefusedError for a link that leaves the model's folder."""
    path = model.place.folder / folder
    if not path.is_dir() or not model.json(f"{folder}/config.json"):
        hint = "get it from the model's publisher; wb convert SRC DST.gguf converts the language model"
        raise UnsupportedError(
            f"{model.place.path} has no folder {folder} with a config.json, which is a part of its mmproj file",
            hint=hint,
        )
    found = open_weights(path)
    for file in found.place.weights:
        check_link(file, model.place.folder)
    return found


def dimensions_of(family: Family, tensors: Mapping[str, LogicalTensor]) -> dict[str, int]:
    """The dimensions and numbers of a folder's tensors that the table's sizes name, under the keys of `ArchView`."""
    sources = " ".join(text for size in family.sizes.values() for text in size.hf)
    view = ArchView({}, "", {name: node.spec.shape for name, node in tensors.items()})
    calls = [(call, mark, re.findall(rf'{call}\("(.+?)"\)', sources)) for call, mark in OF_TENSORS.items()]
    keys = [f"{mark}{name}" for _, mark, names in calls for name in names]
    return {key: number for key in keys if (number := view.get(key)) is not None}


def _without_table(class_: str | None) -> UnsupportedError:
    tables = [table for table in projectors().values() if class_ in table.architectures]
    conditions = [(table.document.layers, table.architectures[class_].requires) for table in tables if class_]
    if needs := [sets[name].hf[0] for sets, name in conditions if name]:
        return UnsupportedError(
            f"no projector's table has this {class_}", hint=f"it converts with {' or '.join(needs)}"
        )
    classes = sorted({name for table in projectors().values() for name in table.architectures})
    what = f"no projector's table has the class {class_}" if class_ else "no config.json names the model's class"
    return UnsupportedError(what, hint=f"known: {', '.join(classes)}")


def preprocessor(model: OpenModel) -> dict[str, Any]:
    """The keys that describe how images and sounds are prepared, as the reference converter merges them
    (conversion/base.py `MmprojModel`, llama.cpp b11549)."""
    out: dict[str, Any] = {}
    for file in PREPROCESSORS:
        content = model.json(file) or {}
        inner = [content[key] for key in _INNER if isinstance(content.get(key), Mapping)]
        for layer in (content, *inner):
            out |= layer
    return out


def has_towers(model: OpenModel) -> bool:
    """Whether a folder's class has towers that see or hear, of which an mmproj file can be made."""
    if model.format == "gguf" or (family := projector_of_hf(model.config)) is None:
        return False
    return not lacks_encoder(family, model.index.by_name)


def senses_of(model: OpenModel) -> frozenset[str]:
    """The senses of a folder's towers: vision, audio, and gen (it speaks); empty without towers."""
    if not has_towers(model) or (family := projector_of_hf(model.config)) is None:
        return frozenset()
    return frozenset(row.key(family.gguf).split(".")[1] for row in rules(family).keys) & {"vision", "audio", "gen"}


def is_mmproj(model: OpenModel) -> bool:
    """Whether a model is a GGUF of towers."""
    return model.format == "gguf" and model.metadata.get("general.architecture") == "clip"


def towers_of_gguf(model: OpenModel) -> ResolvedModel:
    """The towers in a GGUF of architecture `clip`. Raises UsageError for another GGUF."""
    if not is_mmproj(model):
        raise UsageError(
            f"{model.place.path} isn't an mmproj file", hint="wb convert DIR mmproj.gguf --mmproj makes one"
        )
    family = projector_of_gguf(model.metadata, model.index.by_name)
    sizes = family.sizes_from_gguf(model.metadata, model.index.by_name)
    return ResolvedModel(family, sizes, "gguf", "", model.logical, "gguf", str(model.place.path))


def candidate_of(model: OpenModel) -> Candidate:
    """An open GGUF as llama.cpp's loader sees it."""
    return Candidate(model.metadata, {entry.name: entry.shape for entry in model.index})


class TowersModel(OpenModel):
    """A model folder seen as its mmproj file: only the towers' tensors, through the projector's table."""

    @cached_property
    def _towers(self) -> Towers:
        return towers_of(OpenModel(**_fields(self)))

    @cached_property
    def family(self) -> Family:
        return self._towers.resolved.family

    @cached_property
    def resolved(self) -> ResolvedModel:
        return self._towers.resolved

    @cached_property
    def sizes(self) -> Sizes:
        return self.resolved.sizes

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return self._towers.config

    @cached_property
    def logical(self) -> Mapping[str, LogicalTensor]:
        return self.resolved.tensors


def alike(a: OpenModel, b: OpenModel) -> tuple[OpenModel, OpenModel]:
    """Two models to compare: if one is an mmproj file and the other a folder, the folder's towers; if one is the draft
    model in the other's folder, this."""
    clips = [is_mmproj(model) for model in (a, b)]
    if clips[0] == clips[1]:
        from weighbridge.models.inner_draft import drafts_alike  # late: few models have one

        return drafts_alike(a, b) if (a.format == "gguf") != (b.format == "gguf") else (a, b)
    pair = [model if model.format == "gguf" else TowersModel(**_fields(model)) for model in (a, b)]
    return pair[0], pair[1]


def _fields(model: OpenModel) -> dict[str, Any]:
    """Everything that a model is made of, so that one that was renamed keeps its tensors and config."""
    return {field.name: getattr(model, field.name) for field in fields(OpenModel)}
