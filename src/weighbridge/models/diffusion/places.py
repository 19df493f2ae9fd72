"""The places of a pipeline's parts in a single file and in ComfyUI's set of files (single_files.toml)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.imports.tables import read_table
from weighbridge.models.diffusion.comfy_set import ENCODERS
from weighbridge.models.diffusion.names import Renaming, table, to_original

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel
    from weighbridge.tensors.nodes import LogicalTensor

#: The prefix of a text encoder's tokenizer in a single file.
TEXT_ENCODERS: Final = "text_encoders."
#: The tensor with Mistral's tokenizer.
TEKKEN: Final = "tekken_model"
#: The tensors with the bytes of a tokenizer's file, and the names of that file.
TOKENIZER_FILES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"spiece_model": ("spiece.model", "tokenizer.model"), TEKKEN: ("tekken.json",)}
)
#: The file of every tokenizer of transformers, from which Mistral's is rebuilt.
FAST: Final = "tokenizer.json"

#: Names of text encoders that aren't those of the encoder itself.
_OUTSIDE: Final = ("text_projection.", "visual_projection.", "logit_scale")
_VERSIONS: Final = "versions"
_CLASSES: Final = "classes"


class PartPlace(NamedTuple):
    """The place of a part in a single file; the columns are described in the table."""

    prefix: str
    names: tuple[str, ...]
    below: str
    whole: bool
    renamed: Mapping[str, str]
    tokenizer: str
    file: str
    spare: tuple[str, ...] = ()
    optional: bool = False
    folder: str = ENCODERS
    sidecar: PartPlace | None = None
    configs: str = ""
    classes: Mapping[str, PartPlace] = MappingProxyType({})

    def of(self, class_name: str) -> PartPlace:
        """The place of a part of this class."""
        return self.classes.get(class_name, self)

    @property
    def any_sidecar(self) -> PartPlace | None:
        """The place of the tensors that parts of some classes have in a second file."""
        return next((place.sidecar for place in (self, *self.classes.values()) if place.sidecar), None)


class FilePlaces(NamedTuple):
    """The places of a model's parts, whether one file holds all, and pipelines of the model on the Hub: the usual one,
    and those of its versions."""

    parts: Mapping[str, PartPlace]
    alone: bool
    configs: str
    versions: Mapping[str, str]

    def place_of(self, part: str, class_name: str) -> PartPlace | None:
        """The place of a part of this class; None if it has none."""
        place = self.parts.get(part)
        return place and place.of(class_name)

    def pipeline(self, title: str) -> str:
        """The pipeline of a version of the model, by its title."""
        return self.versions.get(title, self.configs)


@cache
def places(model: str) -> FilePlaces | None:
    """The places of parts in the single file of a model, a row of diffusion.toml; None if it has none."""
    return next((build_places(raw) for raw in tables() if model in raw["models"]), None)


def tables() -> list[dict[str, Any]]:
    """The rows of the table."""
    rows: list[dict[str, Any]] = read_table(__file__, "single_files.toml")["file"]
    return rows


def marks() -> Mapping[str, str]:
    """The usual name of a text encoder's file -> the tensor by which it is known under another name."""
    found: dict[str, str] = read_table(__file__, "single_files.toml")["marks"]
    return found


@cache
def prefixes_of_others() -> tuple[str, ...]:
    """The prefixes of parts in a single file, except those of denoisers, the first parts."""
    known = [build_places(raw).parts.values() for raw in tables()]
    return tuple({place.prefix for parts in known for place in list(parts)[1:] if place.prefix})


def build_places(raw: Mapping[str, Any]) -> FilePlaces:
    """The places of a row."""
    parts = {part: _place(row) for part, row in raw.items() if isinstance(row, dict) and part != _VERSIONS}
    return FilePlaces(
        parts,
        all(place.prefix or place.folder != ENCODERS for place in parts.values()),
        raw["configs"],
        raw.get(_VERSIONS, {}),
    )


def _place(row: Mapping[str, Any]) -> PartPlace:
    classes = {name: _place({**row, **columns, _CLASSES: {}}) for name, columns in row.get(_CLASSES, {}).items()}
    names = row.get("names", ())
    tables = (names,) if isinstance(names, str) else tuple(names)
    return PartPlace(
        row.get("prefix", ""), tables, row.get("below", ""), row.get("whole", False),
        row.get("renamed", {}), row.get("tokenizer", ""), row.get("file", ""), tuple(row.get("spare", ())),
        row.get("optional", False), row.get("folder", ENCODERS), _place(row["sidecar"]) if "sidecar" in row else None,
        row.get("configs", ""), classes,
    )  # fmt: skip


def part_in_file(each: OpenModel, place: PartPlace, *, sidecar: bool = False) -> Renaming:
    """The tensors of a part under the names of the single file, without prefix. `sidecar`: those of its second file."""
    second = place.sidecar
    begins = tuple(second.renamed) if second is not None else ()
    tensors: Mapping[str, LogicalTensor] = each.logical
    names_of_file = [name for name in tensors if name.startswith(begins) == sidecar]
    origin = _names_in_file(names_of_file, second if sidecar and second is not None else place)
    tensors = {name: tensors[old] for name, old in origin.items()}
    network = each.diffusion
    tables = [names for name in place.names if (names := table(name))]
    names = max(tables, key=lambda names: names.count(tensors), default=None)
    if names is None and network is not None and network.denoises:
        names = network.names
    if names is None:
        return Renaming(dict(tensors), {name: (old,) for name, old in origin.items()}, ())
    named = to_original(names, tensors)
    sources = {name: tuple(origin[old] for old in olds) for name, olds in named.sources.items()}
    return Renaming(named.tensors, sources, tuple(origin[name] for name in named.unknown))


def _names_in_file(names: Sequence[str], place: PartPlace) -> dict[str, str]:
    """Names with the beginnings of a single file -> those of the folder."""
    begins = sorted(place.renamed, key=len, reverse=True)
    if (start := place.below) and not any(name.startswith((start, *begins)) for name in names):
        return {name if name.startswith(_OUTSIDE) else f"{start}{name}": name for name in names}
    renamed = {name: next((begin for begin in begins if name.startswith(begin)), "") for name in names}
    return {place.renamed[begin] + name.removeprefix(begin) if begin else name: name for name, begin in renamed.items()}


def names_in_folder(names: Iterable[str], place: PartPlace) -> dict[str, str]:
    """Names with the beginnings of a folder -> those of the single file."""
    begins = {new: old for old, new in place.renamed.items()}
    return {
        next((old + name.removeprefix(new) for new, old in begins.items() if name.startswith(new)), name): name
        for name in names
    }
