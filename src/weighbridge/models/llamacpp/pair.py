"""Whether an mmproj file belongs to a language model's GGUF, by the headers of both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final, NamedTuple

from msgspec import Struct, convert

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.spec import Shape
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families_of_class, families_of_graph, family_of_gguf, projector_of_gguf
from weighbridge.models.config.keys import is_list
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.projectors import modalities, type_of
from weighbridge.models.llamacpp.projectors import table as projector_table


class Deepstack(Struct, frozen=True, forbid_unknown_fields=True):
    """Projectors that compute an embedding for several layers of the language model."""

    tensors: Mapping[str, str]
    keys: list[str]


class WidthTable(Struct, frozen=True, forbid_unknown_fields=True):
    """widths.toml documents the fields."""

    first: Mapping[str, list[str]]
    last: Mapping[str, list[str]]
    mixed: Mapping[str, Mapping[str, str]]
    deepstack: Deepstack


@cache
def table() -> WidthTable:
    """Returns the parsed widths.toml."""
    return convert(read_table(__file__, "widths.toml"), WidthTable, strict=False)


class Width(NamedTuple):
    """The size of an embedding, and the key or tensor that determines it."""

    size: int
    source: str


_BASENAME: Final = "general.basename"
_BASE_MODEL: Final = re.compile(r"general\.base_model\..*\.repo_url", re.DOTALL)


def text_width(keys: Mapping[str, Any]) -> Width | None:
    """The width of the embeddings that a language model reads; None if its keys don't determine it."""
    name = keys.get("general.architecture")
    size = keys.get(f"{name}.embedding_length")
    stated = (keys[key] for key in (f"{name}.{key}" for key in table().deepstack.keys) if key in keys)
    layers = next(stated, 0)
    if is_list(layers):  # the projector of each layer, -1 for none
        layers = len({n for n in layers if isinstance(n, int) and n >= 0})
    if not isinstance(size, int) or not isinstance(layers, int):
        return None
    return Width(size * (1 + layers), f"{name}.embedding_length{f' x (1 + {layers})' if layers else ''}")


def projected_widths(towers: Candidate) -> Iterator[Width]:
    """The width of the embeddings that each tower's projector computes, from its last tensor, else from the key
    `projection_dim`."""
    present = modalities(towers)
    for modality in projector_table().modality:
        named, key = str(type_of(towers, modality)), f"{modality}.projection_dim"
        of_tower = table().mixed.get(named, {}).get(modality, named)  # some types stand for one of each tower
        if modality in present and (width := _last_tensor(towers.shapes, of_tower)):
            yield width
        elif isinstance(size := towers.get(key), int):
            yield Width(size, towers.key(key))


def _last_tensor(shapes: Mapping[str, Shape], named: str) -> Width | None:
    for names, axis in ((table().first, 0), (table().last, -1)):
        for tensor, types in names.items():
            if named in types and (shape := shapes.get(tensor)):
                pattern = table().deepstack.tensors.get(named, "")
                layers = sum(fnmatchcase(name, pattern) for name in shapes)
                return Width(shape[axis] * (1 + layers), f"{tensor}{f' x (1 + {layers})' if layers else ''}")
    return None


def width_fault(language: Mapping[str, Any], towers: Candidate) -> str | None:
    """Why llama.cpp refuses the pair (tools/mtmd/mtmd.cpp: "mismatch between text model ... and mmproj"); None if the
    widths are equal or unknown."""
    if (expected := text_width(language)) is None:
        return None
    for width in projected_widths(towers):
        if width.size != expected.size:
            return (
                f"the mmproj file computes embeddings of width {width.size:,} ({width.source}), the language model's "
                f"have width {expected.size:,} ({expected.source})"
            )
    return None


def base_fault(language: Mapping[str, Any], towers: Candidate) -> str | None:
    """Why two files of the same width seem to be of different models, by their base models, their names or their
    classes; None if nothing contradicts, as for a projector whose language model is any other model (Ultravox)."""
    try:
        projector = projector_of_gguf(towers.metadata, towers.shapes)
    except UnsupportedError:
        projector = None
    if projector is not None and not any(map(any, map(families_of_class, projector.architectures))):
        return None
    bases = [
        {str(value).lower() for key, value in keys.items() if _BASE_MODEL.fullmatch(key) and isinstance(value, str)}
        for keys in (language, towers.metadata)
    ]
    if all(bases) and not bases[0] & bases[1]:
        first, second = (", ".join(sorted(names)) for names in bases)
        return f"they name different base models: {first} and {second}"
    names = [keys.get(_BASENAME) for keys in (language, towers.metadata)]
    if all(isinstance(name, str) and name for name in names) and str(names[0]).lower() != str(names[1]).lower():
        return f"they are of different models by {_BASENAME}: {names[0]} and {names[1]}"
    if projector is None:
        return None
    try:
        family = family_of_gguf(language)
    except UnsupportedError:
        return None
    graph = (family, *families_of_graph(family.gguf))
    if any(projector.architectures.keys() & same.architectures.keys() for same in graph):
        return None
    return without_class(family, projector)


def without_class(language: Family, projector: Family) -> str:
    """The message for a language model and a projector that no class has together."""
    return f"no class has the language model {language.name} and the projector {projector.name}"


def check_pair(language: Mapping[str, Any], towers: Candidate) -> None:
    """Raises UsageError if the embeddings of a projector differ in width from those of a language model; llama.cpp
    refuses such a pair when it loads it."""
    if (fault := width_fault(language, towers)) is not None:
        raise UsageError(f"{fault}: they are of different models", hint="take both files of the same model")
