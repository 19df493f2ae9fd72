"""Plans a diffusers pipeline part by part, as one plan of a folder.

target        models                                                       other files
folder        each as `wb convert PART/ DST/PART/` writes it               copied
GGUF          the denoisers, and text encoders that llama.cpp knows;       copied
              other models keep their form
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.conversion.options import GgufOptions, HfOptions, QuantizeOptions
from weighbridge.conversion.plan.builder import left_out
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.side_files import copied, side_files
from weighbridge.conversion.plan.target import Target
from weighbridge.conversion.result import Loss
from weighbridge.models.diffusion.parts import PipelinePart
from weighbridge.models.diffusion.pipeline import Pipeline
from weighbridge.models.locate import Place
from weighbridge.models.model import OpenModel

Options = TypeVar("Options")
#: Plans the model of a part.
PartPlanner = Callable[[OpenModel, Target], Plan]
#: Parts that make the picture: a GGUF of the pipeline without them would be none.
_DENOISERS: Final = ("unet", "transformer", "transformer_2", "prior")
_GGUF: Final = "gguf"


def plan_folder(pipeline: Pipeline, target: Target, plan: PartPlanner) -> Plan:
    """Plans all parts in the folder of `target`. Raises UsageError if it is a file, and the errors of `plan`."""
    path, kind, options, folder, _ = target
    if kind != _GGUF:
        plans = [(part.name, plan(each, target._replace(path=path / part.name))) for part, each in pipeline.models]
        return joined(pipeline, path, kind, plans)
    if not folder:
        raise files_of_parts(pipeline, path)
    plans = []
    for part, each in pipeline.models:
        inner = Target(path / part.name / f"{part.name}.gguf", _GGUF, options_of(part, options))
        made = gguf_or_unchanged(pipeline, part, each, lambda model: plan(model, inner), plan)  # noqa: B023
        plans.append((part.name, made))
    check_some(pipeline, plans)
    return joined(pipeline, path, kind, plans)


def options_of(part: PipelinePart, options: Options) -> Options:
    """The options of a part's GGUF: a denoiser has no tokenizer to leave out."""
    if part.name in _DENOISERS and isinstance(options, GgufOptions | QuantizeOptions):
        return replace(options, tokenizer=True)
    return options


def check_some(pipeline: Pipeline, plans: Sequence[tuple[str, Plan]]) -> None:
    """Raises UnsupportedError if no part becomes a GGUF."""
    if not any(plan.format == _GGUF for _, plan in plans):
        raise UnsupportedError(f"{pipeline.whole.place.path} has no part that can be a GGUF")


def files_of_parts(pipeline: Pipeline, path: Path) -> UsageError:
    """The error about a file as the target of several."""
    source, count = pipeline.whole.place.path, len(pipeline.models)
    parts = [part.name for part, _ in pipeline.models]
    part = next((name for name in _DENOISERS if name in parts), parts[0])
    return UsageError(
        f"{source} is a pipeline of {count} models, and a GGUF holds one",
        hint=f"name a folder, {path.with_suffix('')}/, with --to gguf; or one part as the source, {source / part}",
    )


def gguf_or_unchanged(
    pipeline: Pipeline, part: PipelinePart, each: OpenModel, to_gguf: Callable[[OpenModel], Plan], plan: PartPlanner
) -> Plan:
    """Plans a part as a GGUF, with the small files next to it; one that can't be a GGUF keeps its form, and a loss
    states why. Raises UnsupportedError for a denoiser that can't."""
    folder = each.place.folder
    try:
        if part.name not in _DENOISERS and not each.described:
            raise UnsupportedError(f"no GGUF of {part.class_name} is known")
        made = to_gguf(with_tokenizer(pipeline, part, each))
    except UnsupportedError as error:
        if part.name in _DENOISERS:
            raise UnsupportedError(f"{part.name} ({part.class_name}): {error.message}", hint=error.hint) from None
        kept = plan(each, Target(Path(folder.name), "hf", HfOptions(), True))
        return replace(kept, losses=(*kept.losses, Loss(f"not a GGUF, written unchanged: {error.message}")))
    return replace(made, files=(*made.files, *copied(side_files(folder), folder)))


def with_tokenizer(pipeline: Pipeline, part: PipelinePart, each: OpenModel) -> OpenModel:
    """A text encoder with the files of its tokenizer, which are in a separate folder of the pipeline: those of
    `tokenizer_2` for `text_encoder_2`."""
    folder = pipeline.whole.place.folder / part.name.replace("text_encoder", "tokenizer")
    if not part.name.startswith("text_encoder") or not folder.is_dir():
        return each
    place, own = Place(folder, (), folder), {path.name for path in side_files(each.place.folder)}
    names = [path.name for path in side_files(folder) if path.parent == folder and path.name not in own]
    texts = {name: data for name in names if (data := place.read(name, TOKENIZER_JSON)) is not None}
    return replace(each, texts={**texts, **each.texts})


def joined(
    pipeline: Pipeline, target: Path, kind: str, plans: Sequence[tuple[str, Plan]],
    folders: Mapping[str, str] | None = None,
) -> Plan:  # fmt: skip
    """Joins the plans of all parts, and the copies of the files of other parts, to the plan of a folder. `folders`: the
    folder of each part, if it isn't that of its name; then no other files are copied."""
    whole = pipeline.whole
    base = whole.place.folder
    others = [base / part.name for part in pipeline.index.parts if not part.has_weights]
    copies = [] if folders else [folder for folder in (base, *others) if folder.is_dir()]
    texts = {} if folders else dict(whole.texts)
    small = [file for folder in copies for file in side_files(folder) if file.relative_to(base).as_posix() not in texts]
    used = {file.relative_to(base).parts[0] for file in small} | {part.name for part in pipeline.index.parts}
    rest = sorted(path.name for path in base.iterdir() if path.name not in used and not path.name.startswith("."))
    notes = [f"not copied from the source's folder: {', '.join(rest)}"] if rest and not folders else []
    fields: dict[str, Any] = {"files": copied(small, base), "texts": texts, "reports": {}, "keys": {}}
    for part, plan in plans:
        folder = folders[part] if folders else part
        fields["files"] += [replace(file, name=f"{folder}/{file.name}") for file in plan.files]
        for name in ("texts", "reports"):
            separator = "/" if name == "texts" else "."
            fields[name] |= {f"{part}{separator}{key}": value for key, value in getattr(plan, name).items()}
    return Plan(
        source=str(whole.place.path), target=target, format=kind, folder=True,
        files=tuple(fields["files"]), texts=fields["texts"],
        losses=tuple(
            replace(loss, message=loss.message if loss.tensor else f"{part}: {loss.message}",
                    tensor=loss.tensor and f"{part}.{loss.tensor}")
            for part, plan in plans
            for loss in plan.losses
        ) + tuple(map(Loss, pipeline.left_out)) + tuple(left_out(whole)),
        moves=tuple(replace(move, tensor=f"{part}.{move.tensor}") for part, plan in plans for move in plan.moves),
        notes=(*whole.oddities, *(f"{part}: {note}" for part, plan in plans for note in plan.notes), *notes),
        write=plans[0][1].write, reports=fields["reports"],
        sources=tuple(source for _, plan in plans for source in plan.sources),
    )  # fmt: skip
