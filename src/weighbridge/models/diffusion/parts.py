"""The parts of a diffusers pipeline, as its folder's model_index.json lists them: a folder per part, with a model's
weights or with the files of a scheduler, a tokenizer and the like.

    {"_class_name": "FluxPipeline", "vae": ["diffusers", "AutoencoderKL"], "image_encoder": [null, null], ...}
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.base.words import plural
from weighbridge.containers import folder_suffixes
from weighbridge.containers.formats import PIPELINE_INDEX
from weighbridge.io.location import open_source
from weighbridge.models.jsonfile import decode

#: How the names of classes without weights end.
_WITHOUT_WEIGHTS: Final = (
    "Scheduler", "Tokenizer", "TokenizerFast", "FeatureExtractor", "Processor", "ProcessorFast", "ProcessorPil",
)  # fmt: skip
_MOST: Final = 64  # entries; published pipelines have up to 20


class PipelinePart(NamedTuple):
    """A part, and whether its folder has weights."""

    name: str
    class_name: str
    has_weights: bool


class PipelineIndex(NamedTuple):
    """The class of a pipeline and its parts, in the order of its index."""

    class_name: str
    parts: tuple[PipelinePart, ...]

    @property
    def models(self) -> tuple[PipelinePart, ...]:
        return tuple(part for part in self.parts if part.has_weights)

    @property
    def words(self) -> str:
        """The class and the parts, in a line."""
        models = ", ".join(f"{part.name} ({part.class_name})" for part in self.models)
        others = ", ".join(part.name for part in self.parts if not part.has_weights)
        line = f"{self.class_name}: {plural(len(self.models), 'model')}, {models}"
        return f"{line}; without weights: {others}" if others else line


class ListedParts(NamedTuple):
    """An index as it is written, and the classes of the parts that are used."""

    document: dict[str, Any]
    classes: dict[str, str]


def listed_parts(folder: Path) -> ListedParts | None:
    """Reads the list of a folder; None if the folder has none. Raises FormatError for an invalid one."""
    path = folder / PIPELINE_INDEX
    if not path.is_file():
        return None
    with open_source(path) as source:
        index = decode(source.read(0, min(source.size, CONFIG_JSON + 1)), str(path), dict[str, Any])
    listed = {name: value for name, value in index.items() if isinstance(value, list) and not name.startswith("_")}
    classes = {name: class_of(path, name, value) for name, value in listed.items()}
    present = {name: class_name for name, class_name in classes.items() if class_name is not None}
    if len(present) > _MOST:
        raise FormatError("too many parts", path=str(path), expected=f"<= {_MOST}", found=len(present))
    return ListedParts(index, present)


def has_files_only(class_name: str) -> bool:
    """Whether a part of this class has files and no weights."""
    return class_name.endswith(_WITHOUT_WEIGHTS)


def read_index(folder: Path) -> PipelineIndex | None:
    """Reads the index of a folder; None if the folder has none, or no part with weights. Raises FormatError for an
    invalid index, and if a part is missing."""
    if (listed := listed_parts(folder)) is None:
        return None
    path, present = folder / PIPELINE_INDEX, listed.classes
    weighed = {
        place.name for place in folder.iterdir()
        if place.name in present and place.is_dir() and any(p.name.endswith(folder_suffixes()) for p in place.iterdir())
    }  # fmt: skip
    parts = tuple(PipelinePart(name, class_name, name in weighed) for name, class_name in present.items())
    if not any(part.has_weights for part in parts):
        return None
    for part in parts:
        if not part.has_weights and not has_files_only(part.class_name):
            raise FormatError(
                f"the part {part.name} ({part.class_name}) has no weights, or its folder is missing", path=str(path),
                field=part.name, hint=f"download it again; in {PIPELINE_INDEX}, [null, null] is a part that isn't used",
            )  # fmt: skip
    return PipelineIndex(str(listed.document.get("_class_name", "")), parts)


def class_of(path: Path, name: str, listed: list[Any]) -> str | None:
    """The class of a part; None for [null, null] and for lists that aren't parts."""
    if len(listed) != 2 or not isinstance(listed[1], str):
        return None
    if name != Path(name).name or name in ("", ".", ".."):
        raise FormatError("a part's name isn't the name of a folder", path=str(path), field=name)
    return listed[1]


def weights_of(folder: Path, find: Callable[[Path], tuple[Path, ...]]) -> tuple[Path, ...]:
    """The files with weights of all parts, in the order of the index; empty if the folder isn't a pipeline with
    weights. `find`: returns those of a part."""
    index = read_index(folder)
    return () if index is None else tuple(file for part in index.models for file in find(folder / part.name))
