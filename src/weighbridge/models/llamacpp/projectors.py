"""The reasons why llama.cpp (b11549, tools/mtmd/clip.cpp) refuses a GGUF of architecture `clip` as a projector: one
function per rule. The verdicts are those of `mtmd_init_from_file`; tests compare them file by file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, convert

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.spec import without_leading_ones
from weighbridge.containers.base import Severity
from weighbridge.models.arch.naming import some
from weighbridge.models.arch.registry import projector_of_gguf
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.loader_rules import LoaderRule, LoadRefusal


class ProjectorTable(Struct, frozen=True, forbid_unknown_fields=True):
    """projectors.toml documents the fields."""

    types: list[str]
    modality: Mapping[str, str]
    receives: list[str]
    required: list[str]
    required_of: Mapping[str, list[str]]
    required_by: Mapping[str, list[str]]
    channels: list[str]
    activations: list[str]
    deaf: list[str]


@cache
def table() -> ProjectorTable:
    """Returns the parsed projectors.toml."""
    return convert(read_table(__file__, "projectors.toml"), ProjectorTable, strict=False)


def modalities(model: Candidate) -> list[str]:
    """The modalities that llama.cpp loads of a projector's file: vision, audio, gen.audio."""
    named = [name for name, flag in table().modality.items() if model.get(flag) is True]
    deaf = "vision" in named and type_of(model, "vision") in table().deaf
    return [name for name in named if not (deaf and name == "audio")]


def type_of(model: Candidate, modality: str) -> Any:
    """The projector type of a modality. Its own key counts only without the file's."""
    return model.get("projector_type") or model.get(f"{modality}.projector_type") or ""


def _modality(model: Candidate) -> Iterator[LoadRefusal]:
    if not {*table().receives} & {*modalities(model)}:
        flags = [model.key(table().modality[name]) for name in table().receives]
        yield LoadRefusal(f"neither {' nor '.join(flags)} is true")


def _types(model: Candidate) -> Iterator[LoadRefusal]:
    for modality in modalities(model):
        if (named := type_of(model, modality)) not in table().types:
            yield LoadRefusal(f"{model.key('projector_type')} is {named!r}" if named else "no key has it")


def _keys(model: Candidate) -> Iterator[LoadRefusal]:
    for modality in modalities(model):
        names = [*table().required, *table().required_of.get(modality, ())]
        keys = [f"{modality}.{name}" for name in names] + [*table().required_by.get(type_of(model, modality), ())]
        yield from (LoadRefusal(f"{model.key(key)} is missing") for key in keys if model.get(key) is None)


def _channels(model: Candidate) -> Iterator[LoadRefusal]:
    for key in table().channels if "vision" in modalities(model) else ():
        value = model.get(key)
        count = len(value) if isinstance(value, Sequence) and not isinstance(value, str) else 0
        if count < 3:
            yield LoadRefusal(f"{model.key(key)} has {count} of 3")


def _activation(model: Candidate) -> Iterator[LoadRefusal]:
    if all(model.get(key) is True for key in table().activations):
        yield LoadRefusal(f"{' and '.join(map(model.key, table().activations))} are both true")


def _tensors(model: Candidate) -> Iterator[LoadRefusal]:
    try:
        family = projector_of_gguf(model.metadata, model.shapes)
        sizes = family.sizes_from_gguf(model.metadata, model.shapes)
        places = family.expansion("gguf", sizes).places.values()
        computed = [p.name for p in places if p.name not in model.shapes and family.rows[p.roles[0]].derived]
        report = family.check("gguf", sizes, model.shapes)
        missing = [*report.missing, *computed]
        misshapen = [n for n, *shapes in report.misshapen if len({*map(without_leading_ones, shapes)}) > 1]
    except WeighbridgeError:  # no table, or a key is missing, which another rule reports
        return
    for text, names in (("", missing), ("another shape: ", misshapen)):
        if names:
            yield LoadRefusal(f"{text}{some(names)}", names[0])


_E: Final = Severity.ERROR
#: Rules about a projector's file.
PROJECTORS: Final[Mapping[str, LoaderRule[Candidate]]] = MappingProxyType(
    {
        "llamacpp/mmproj-modality": LoaderRule(_E, "projector that neither sees nor hears", _modality),
        "llamacpp/mmproj-type": LoaderRule(_E, "projector type that llama.cpp doesn't know", _types),
        "llamacpp/mmproj-key": LoaderRule(_E, "key that the projector needs is missing", _keys),
        "llamacpp/mmproj-channels": LoaderRule(_E, "mean or deviation without all three colors", _channels),
        "llamacpp/mmproj-activation": LoaderRule(_E, "two activations", _activation),
        "llamacpp/mmproj-tensor": LoaderRule(
            Severity.WARNING, "tensor of the projector is missing or has another shape", _tensors
        ),
    }
)
