"""The places of a pipeline's parts in a single file and in ComfyUI's set of files (single_files.toml)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.imports.tables import read_table
from weighbridge.models.diffusion.comfy_set import ENCODERS

#: The tensor with Mistral's tokenizer.
TEKKEN: Final = "tekken_model"
#: The tensors with the bytes of a tokenizer's file, and the names of that file.
TOKENIZER_FILES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"spiece_model": ("spiece.model", "tokenizer.model"), TEKKEN: ("tekken.json",)}
)
#: The file of every tokenizer of transformers, from which Mistral's is rebuilt.
FAST: Final = "tokenizer.json"

_VERSIONS: Final = "versions"


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


class FilePlaces(NamedTuple):
    """The places of a model's parts, whether one file holds all, and pipelines of the model on the Hub: the usual one,
    and those of its versions."""

    parts: Mapping[str, PartPlace]
    alone: bool
    configs: str
    versions: Mapping[str, str]

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
    parts = {
        part: PartPlace(
            row.get("prefix", ""), _several(row.get("names", ())), row.get("below", ""), row.get("whole", False),
            row.get("renamed", {}), row.get("tokenizer", ""), row.get("file", ""), tuple(row.get("spare", ())),
            row.get("optional", False), row.get("folder", ENCODERS),
        )
        for part, row in raw.items()
        if isinstance(row, dict) and part != _VERSIONS
    }  # fmt: skip
    return FilePlaces(
        parts,
        all(place.prefix or place.folder != ENCODERS for place in parts.values()),
        raw["configs"],
        raw.get(_VERSIONS, {}),
    )


def _several(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
