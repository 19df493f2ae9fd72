"""The checks of `verify` on models of several files: which step of a training run is read, which ones were cut off,
whether the files of DeepSpeed or TensorRT-LLM fit together, whether an archive around them is readable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.base import Severity
from weighbridge.containers.formats import ZERO_OPTIMIZER
from weighbridge.models.locate import TENSORRT
from weighbridge.models.tensor_parallel.rank_set import WHOLE
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

if TYPE_CHECKING:
    from weighbridge.containers.base import Index
    from weighbridge.containers.torch.megatron import MegatronFault
    from weighbridge.containers.torch.zero.join import ZeroFault
    from weighbridge.models.runs import TrainingRun


def _run(repo: Repo) -> TrainingRun | None:
    from weighbridge.models import runs  # late, as is every import here: few folders are of runs

    if repo.single:
        return None
    if "run" not in repo.memo:
        repo.memo["run"] = runs.run_in(repo.root)
    run: TrainingRun | None = repo.memo["run"]
    return run


def taken(repo: Repo) -> Iterator[Flaw]:
    run = _run(repo)
    if run is not None and run.taken is not None:
        yield Flaw(run.notes[0], repo.root)


def unfinished(repo: Repo) -> Iterator[Flaw]:
    run = _run(repo)
    for step in run.steps if run is not None else ():
        if step.trouble:
            yield Flaw(
                f"step {step.number} is incomplete: {step.trouble}", step.path, hint="delete it, or copy it again"
            )


def _faults(repo: Repo) -> Iterator[ZeroFault]:
    folders: list[tuple[Path, list[RepoFile]]] = []  # with parts of processes; universal checkpoints have none
    for name, members in repo.folders.items() if not repo.single else ():
        if any(f.base.endswith(ZERO_OPTIMIZER) for f in members):
            folders.append((repo.root / name, list(members)))
    if not folders:
        return
    from weighbridge.containers.torch.zero import files as zero
    from weighbridge.containers.torch.zero import join
    from weighbridge.models.zero import read_states

    for folder, parts in folders:
        files = zero.files_of([f.base for f in parts])
        if files is None:
            continue
        indexes = [f.index for name in files for f in parts if f.base == name and f.index is not None]
        path = str(folder)
        if len(indexes) < len(files):  # other rules report files that can't be read
            yield join.ZeroFault("unread", "not every file can be read", path)
            continue
        try:
            states = read_states(indexes)
            faults = list(join.faults(states.parts()))
            yield from (fault if fault.path else fault._replace(path=path) for fault in faults)
            if not faults:
                join.join(states.parts(), states.copies)
        except (FormatError, UnsupportedError) as error:
            reason = str(error).partition("\n")[0]
            yield join.ZeroFault("sizes", reason, getattr(error, "path", None) or path)


def _rank_sets(repo: Repo) -> Iterator[tuple[str, list[Index | None], str]]:
    """The ranks of Megatron-LM in each folder and archive of NeMo: the path, the files' contents, the settings."""
    if not any(file.format in ("torch-zip", "nemo") for file in repo.files):
        return
    from weighbridge.containers.torch import megatron, nemo
    from weighbridge.models.megatron import config_of

    ranks: dict[Path, list[RepoFile]] = {}
    for file in repo.files:
        if file.base in megatron.FILES and megatron.is_rank_folder(file.path.parent.name) and not repo.single:
            ranks.setdefault(file.path.parent.parent, []).append(file)
        if file.format == nemo.NAME and file.index is not None:
            archive = nemo.read(file.parsed[0])
            if any(name != nemo.WEIGHTS for name in archive.weights):
                yield str(file.path), [*archive.indexes().values()], archive.config
    for folder, files in ranks.items():
        yield str(folder), [file.index for file in files], config_of(folder)


def _rank_faults(repo: Repo) -> Iterator[MegatronFault]:
    for path, indexes, config in _rank_sets(repo):
        from weighbridge.containers.torch import megatron
        from weighbridge.models.megatron import read_ranks

        readable = [index for index in indexes if index is not None]
        if len(readable) < len(indexes):  # other rules report files that can't be read
            yield megatron.MegatronFault("unread", "not every rank's file can be read", path)
            continue
        try:
            yield from megatron.faults_with_tensors(read_ranks(readable, config), path)
        except (FormatError, UnsupportedError) as error:
            reason = str(error).partition("\n")[0]
            yield megatron.MegatronFault("tensors", reason, getattr(error, "path", None) or path)


_FAULTS: Final = {"zero": _faults, "megatron": _rank_faults}


def _of_rule(trainer: str, rule: str, repo: Repo) -> Iterator[Flaw]:
    if trainer not in repo.memo:
        repo.memo[trainer] = list(_FAULTS[trainer](repo))
    for fault in repo.memo[trainer]:
        if fault.rule == rule:
            yield Flaw(fault.message, fault.path, hint="copy the whole folder again, or use another step")


def _check(rule: str, text: str) -> Check:
    """An error about the files of a trainer's processes."""
    trainer, _, name = rule.partition("/")
    return Check(rule, Severity.ERROR, text, partial(_of_rule, trainer, name))


def unreadable_archive(repo: Repo) -> Iterator[Flaw]:
    """The error for which an archive or compressed file can't be opened."""
    if (error := repo.archive_error) is not None:
        message = error.reason if isinstance(error, FormatError) else error.message
        yield Flaw(message, repo.path, hint=error.hint, offset=getattr(error, "offset", None))


def _unjoined(ending: str, repo: Repo) -> Iterator[Flaw]:
    """The error for which the ranks' files of a folder can't be joined. `ending`: of the name of one of them."""
    if repo.single or not any(name.endswith(ending) for name in repo.names):
        return
    from weighbridge.models.model import open_weights

    try:
        open_weights(repo.root).close()
    except (FormatError, UnsupportedError) as error:
        yield Flaw(str(error).partition("\n")[0], getattr(error, "path", None) or repo.root, hint=error.hint)


def arrays_of_orbax(repo: Repo) -> Iterator[Flaw]:
    """The error for which a checkpoint of Orbax can't be opened."""
    for path, error in repo.orbax.errors:
        yield Flaw(str(error).partition("\n")[0], path, hint=error.hint)


RULES: Final = (
    Check("archive/broken", Severity.ERROR, "the archives around a model can be read", unreadable_archive),
    Check(
        "tensorrt/ranks", Severity.ERROR, "the ranks of TensorRT-LLM are complete and fit", partial(_unjoined, TENSORRT)
    ),
    Check(
        "shares/ranks", Severity.ERROR, "the ranks' shares of experts are complete and fit", partial(_unjoined, WHOLE)
    ),
    Check("orbax/arrays", Severity.ERROR, "the arrays of Orbax's checkpoints have all their chunks", arrays_of_orbax),
    Check("run/step", Severity.INFO, "which step of a training run is read by default", taken),
    Check("run/unfinished", Severity.WARNING, "every step of a training run was written to its end", unfinished),
    _check("zero/missing", "the files of every process are in a ZeRO checkpoint"),
    _check("zero/mixed", "all its files are of one stage and number of processes"),
    _check("zero/step", "all its files are of one step"),
    _check("zero/parts", "it states how its tensor-parallel parts are joined"),
    _check("zero/sizes", "the sizes of its weights and of the processes' parts agree"),
    _check("zero/unread", "each of its files can be read"),
    _check("megatron/missing", "the files of every rank are in a Megatron-LM checkpoint"),
    _check("megatron/mixed", "all its files are of one number of ranks"),
    _check("megatron/step", "all its files are of one step"),
    _check("megatron/tensors", "the tensors of its ranks fit together, and its settings"),
    _check("megatron/unread", "each of its files can be read"),
)
