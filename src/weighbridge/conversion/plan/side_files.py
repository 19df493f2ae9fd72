"""The small files next to a model's weights: config, tokenizer, card, license. They are copied with the weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.contents import PlannedFile
from weighbridge.io.filesystem import check_link
from weighbridge.io.location import open_source
from weighbridge.models.config.pooling import dense_folders
from weighbridge.models.model import OpenModel

# Suffixes and prefixes of the names of copied files.
_SUFFIXES: Final = (
    ".json", ".txt", ".md", ".model", ".jinja", ".py", ".yaml", ".yml", ".tiktoken", ".spm", ".bpe", ".vocab",
)  # fmt: skip
_MODULE_WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
_PREFIXES: Final = ("license", "notice")
_INDEX: Final = ".index.json"
_SHOWN: Final = 8


def side_files(folder: Path) -> list[Path]:
    """The small files of a model folder, including those of sentence-transformers modules (1_Pooling/config.json).

    Raises RefusedError for a link that leads out of the folder.
    """
    near = [
        p for p in folder.iterdir()
        if (p.name.endswith(_SUFFIXES) or p.name.lower().startswith(_PREFIXES)) and not p.name.endswith(_INDEX)
    ]  # fmt: skip
    files = sorted(p for p in (*near, *folder.glob("[0-9]_*/*.json")) if p.is_file())
    for path in files:
        check_link(path, folder)
    return files


def _module_weights(model: OpenModel) -> list[Path]:
    """The weights of a model's dense modules (2_Dense/model.safetensors)."""
    folder = model.place.folder
    files = [folder / module / name for module in dense_folders(model.place.read) for name in _MODULE_WEIGHTS]
    found = [path for path in files if path.is_file()]
    for path in found:
        check_link(path, folder)
    return found


def _further_parts(model: OpenModel) -> list[Path]:
    """The files of further parts of the model, which its class reads from there: the folder of the tokenizer of sounds
    (audio_tokenizer/), the head of a decision model.

    Raises RefusedError for a link that leads out of the folder.
    """
    from weighbridge.models.arch.registry import projector_of_hf  # late, as is the next: they read tables
    from weighbridge.models.decision import decision_of

    projector, decision = projector_of_hf(model.config), decision_of(model)
    names = {*(projector.document.companions if projector is not None else ())}
    if decision is not None and decision.place is model.place:
        names |= decision.parts
    folder = model.place.folder
    found = [path for name in sorted(names) for path in _files_at(folder / name) if path not in model.place.weights]
    for path in found:
        check_link(path, folder)
    return found


def _files_at(path: Path) -> Iterator[Path]:
    """The file at a path, or those in the folder."""
    if path.is_file():
        yield path
    elif path.is_dir() and not path.is_symlink():
        for inner in sorted(path.iterdir()):
            if not inner.name.startswith("."):
                yield from _files_at(inner)


def copied(files: Collection[Path], folder: Path) -> list[PlannedFile]:
    """Plans verbatim copies of files of a folder."""
    return [writers.raw(path.relative_to(folder).as_posix(), open_source(path)) for path in files]


def add_side_files(model: OpenModel, draft: PlanBuilder, without: Collection[str] = ()) -> None:
    """Adds the small files next to the weights, the weights of dense modules, and the folders of further parts, except
    files that the draft has and those in `without`.

    Adds a note on the files of the folder that are neither weights nor copied, unless the model was given by its file.
    """
    folder = model.place.folder
    weights = [*_module_weights(model), *_further_parts(model)]
    files = [*dict.fromkeys((*side_files(folder), *weights))]
    skipped = {*draft.texts, *without}
    draft.sources = (*draft.sources, *weights)
    draft.extra_files += copied([p for p in files if p.relative_to(folder).as_posix() not in skipped], folder)
    if model.place.path != folder:
        return
    used = {*files, *model.place.weights}
    used |= {above for path in used for above in path.parents}
    unused = sorted(
        f"{p.name}/" if p.is_dir() else p.name
        for p in folder.iterdir()
        if p not in used and not p.name.startswith(".") and not p.name.endswith(_INDEX)
    )
    if unused:
        more = f" and {len(unused) - _SHOWN:,} more" if len(unused) > _SHOWN else ""
        draft.notes.append(f"not copied from the source's folder: {', '.join(unused[:_SHOWN])}{more}")
