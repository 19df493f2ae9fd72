"""The checks of `verify` on a language model's GGUF and the mmproj file of its towers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.containers.base import Severity
from weighbridge.models.archives import resolve
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.pair import base_fault, width_fault
from weighbridge.models.open import open_headers
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

_HINT: Final = "take both files of the same model"


def projectors_for(paths: Sequence[str]) -> dict[str, str]:
    """Maps each language model's GGUF to the only projector among `paths`."""
    kinds = {path: kind for path in paths if (kind := _kind_of(path))}
    projectors = [path for path, kind in kinds.items() if kind == "mmproj"]
    models = [path for path, kind in kinds.items() if kind == "model"]
    return dict.fromkeys(models, projectors[0]) if len(projectors) == 1 else {}


def _kind_of(path: str) -> str:
    """The kind of a GGUF; empty for other files and folders."""
    try:
        if resolve(path).is_dir():
            return ""
        with open_headers(path).model as model:
            return str(model.metadata.get("general.type", "model")) if model.format == "gguf" else ""
    except (OSError, WeighbridgeError):  # `verify` reports it
        return ""


def check_given(repo: Repo) -> None:
    """Raises UsageError if the given projector isn't one, or has no language model to be compared with."""
    if (given := repo.mmproj) is None:
        return
    if given.index is None or _kind(given) != "mmproj":
        hint = "wb convert DIR mmproj.gguf --mmproj makes one"
        raise UsageError(f"{given.path} isn't an mmproj file{f': {given.trouble}' if given.trouble else ''}", hint=hint)
    if not any(given is projector for projector, _ in _pairs(repo)):
        raise UsageError(f"{repo.path} has no language model's GGUF that {given.base} could belong to")


def width(repo: Repo) -> Iterator[Flaw]:
    """A projector whose embeddings no language model next to it reads."""
    return _flaws(repo, width_fault)


def base(repo: Repo) -> Iterator[Flaw]:
    """A projector of the right width that seems to be another model's."""
    return _flaws(repo, _other_base)


def _other_base(keys: Mapping[str, Any], towers: Candidate) -> str | None:
    return None if width_fault(keys, towers) else base_fault(keys, towers)


def _flaws(repo: Repo, fault: Callable[[Mapping[str, Any], Candidate], str | None]) -> Iterator[Flaw]:
    """Yields a projector's fault with the only language model, or with the first of several if it has one with each."""
    for projector, models in _pairs(repo):
        towers = Candidate(projector.parsed[1].metadata, {e.name: e.shape for e in projector.parsed[1]})
        faults = [fault(model.parsed[1].metadata, towers) for model in models]
        if faults and all(faults):
            pair = f"{models[0].base} and {projector.base}"
            yield Flaw(f"{pair}: {faults[0]}", projector.path, hint=_HINT)


def _pairs(repo: Repo) -> Iterator[tuple[RepoFile, list[RepoFile]]]:
    """Yields each projector with the language models of its folder, or with the model that it was given for."""
    for members in repo.folders.values():
        files = [f for f in members if f.format == "gguf" and f.index is not None]
        models = [f for f in files if _kind(f) == "model" and _is_first(f)]
        if models:
            given = [repo.mmproj] if repo.mmproj is not None and repo.mmproj.index is not None else []
            yield from ((f, models) for f in (*files, *given) if _kind(f) == "mmproj")


def _kind(file: RepoFile) -> object:
    return file.parsed[1].metadata.get("general.type", "model")


def _is_first(file: RepoFile) -> bool:
    """Whether a file has the keys of a language model: the parts of a split after its first don't."""
    metadata = file.parsed[1].metadata
    return f"{metadata.get('general.architecture')}.embedding_length" in metadata


RULES: Final = (
    Check("llamacpp/mmproj-width", Severity.ERROR,
          "a projector computes embeddings of the language model's width", width),
    Check("llamacpp/mmproj-base", Severity.WARNING,
          "a projector and the language model next to it are of the same model", base),
)  # fmt: skip
