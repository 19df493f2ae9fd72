"""Plans `wb extract-lora`: a PEFT folder or a GGUF adapter of two models' differences, and its report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers import target_of
from weighbridge.conversion import dtype_policy, lora
from weighbridge.conversion.extraction.changes import Changes, ExtractedMatrix, TunedPair, find_changes
from weighbridge.conversion.extraction.options import ExtractOptions
from weighbridge.conversion.merging.folder_view import HF, FolderView
from weighbridge.conversion.options import DTypeOptions, WriteOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.result import Progress
from weighbridge.io.sink import link_notes
from weighbridge.models.borrowed_config import with_borrowed_configs
from weighbridge.models.lora import peft
from weighbridge.models.lora.forms import resolved
from weighbridge.models.lora.pairs import with_whole_stacks
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.model import OpenModel
from weighbridge.tensors.factorize import PASSES


@dataclass(frozen=True)
class ExtractReport:
    """An adapter and what it contains. `matrices`: the changed ones, in the models' order. `whole`: tensors that are
    stored as they are. `unchanged`: tensors without a difference. `rank`: the most common one."""

    base: str
    tuned: str
    target: str
    format: str
    rank: int
    bytes: int
    matrices: tuple[ExtractedMatrix, ...]
    whole: tuple[str, ...]
    unchanged: int
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = "weighbridge/extract-lora/1"


@dataclass(frozen=True, repr=False)
class ExtractPlan(Plan):
    """The plan of an extraction, with the adapter's matrices in memory, and its report."""

    report: ExtractReport = field(kw_only=True)


def plan_extract(
    base: OpenModel, tuned: OpenModel, dst: str | os.PathLike[str], to: str | None, options: ExtractOptions,
    dtype: DTypeOptions, write: WriteOptions, progress: Progress | None = None,
) -> ExtractPlan:  # fmt: skip
    """Plans the adapter that makes `tuned` of `base`. Reads all values of both. `to`: gguf or hf; None: the path
    determines it. Raises UsageError for models that don't fit each other or don't differ, and UnsupportedError for a
    difference that a GGUF adapter can't store."""
    path = resolve_target(dst)
    kind = _kind(os.fspath(dst), to)
    sources = {weight.resolve() for model in (base, tuned) for weight in model.place.files}
    if kind == "hf" and any(weight.parent == path.resolve() for weight in sources):
        raise RefusedError(f"{path} contains a model", hint="choose another target")
    (base, tuned), borrowed = with_borrowed_configs([base, tuned])
    view = FolderView(base)
    changes = find_changes(TunedPair(view, FolderView(tuned), options, write.workers, write.memory), progress)
    changes.notes[:0] = borrowed
    if not changes.pairs and not changes.whole:
        raise UsageError(
            f"{tuned.place.path} differs from {base.place.path} in no matrix, so there is no adapter to write",
            hint="wb diff shows what differs",
        )
    if kind == "hf":
        changes = changes.renamed(view.stored_names)
    ranks = Counter(pair.rank for pair in changes.pairs.values())
    rank = ranks.most_common(1)[0][0] if ranks else 1
    alphas = {n.removesuffix(".weight"): float(p.rank) for n, p in changes.pairs.items() if p.rank != rank}
    adapter = LoraAdapter(changes.pairs, changes.whole, alpha=float(rank), base=str(base.place.path), alphas=alphas)
    draft = _gguf(view, adapter, changes, dtype, path.stem) if kind == "gguf" else lora.to_folder(
        adapter, frozenset(changes.tables), dtype, conv=changes.transposed
    )  # fmt: skip
    written = writers.writer("gguf" if kind == "gguf" else "safetensors")(
        peft.STEM if kind == "hf" else path.stem, draft.tensors, draft.metadata, dtype
    )
    losses = (*changes.losses, *draft.losses)
    notes = (*changes.notes, *_notes(view, changes, write), *draft.notes, *written.notes, *link_notes(path))
    files = written.files
    report = ExtractReport(
        str(base.place.path), str(tuned.place.path), str(path), kind, rank, sum(f.layout.size for f in files),
        tuple(changes.matrices), tuple(changes.whole), changes.unchanged,
        tuple(f"{loss.tensor}: {loss.message}" if loss.tensor else loss.message for loss in losses), notes,
    )  # fmt: skip
    return ExtractPlan(
        str(tuned.place.path), path, kind, kind == "hf", tuple(files), {**written.texts, **draft.texts}, losses, (),
        notes, write, draft.reports, tuple(map(state_of, (*base.place.files, *tuned.place.files))), report=report,
    )  # fmt: skip


def _kind(name: str, to: str | None) -> str:
    suffix = target_of(os.path.splitext(name)[1])
    if to not in (None, "hf", "gguf", "safetensors"):
        raise UsageError(f"--to {to}: an adapter is a PEFT folder (hf) or a gguf", hint="--to hf or --to gguf")
    if to != "gguf" and suffix not in (None, "gguf"):
        raise UsageError(f"{name}: a PEFT adapter is a folder", hint="name a folder, or a file that ends in .gguf")
    kind = "gguf" if to == "gguf" or (to is None and suffix == "gguf") else "hf"
    if kind == "gguf" and name.endswith(("/", os.sep)):
        raise UsageError(f"{name} names a folder, but a file is written", hint="leave the slash out")
    if kind == "hf" and suffix is not None:
        raise UsageError(f"--to {to} writes a folder, but {name} is named as a {suffix} file", hint="leave --to out")
    return kind


def _gguf(view: FolderView, adapter: LoraAdapter, changes: Changes, dtype: DTypeOptions, title: str) -> PlanBuilder:
    if not view.by_table:
        raise UnsupportedError(
            "no family's table describes the models, and a GGUF adapter has llama.cpp's names", hint="--to hf"
        )
    if changes.whole:
        raise UnsupportedError(
            f"{next(iter(changes.whole))} would be stored whole, and a GGUF adapter only has pairs",
            hint="write a PEFT folder, or leave --modules-to-save out",
        )
    family, sizes = view.model.family, view.model.sizes
    adapter, roles = resolved(adapter, HF, family, sizes)
    roles = with_whole_stacks(family, "gguf", sizes, roles)
    tied = not any(name in view.embeddings and "head" in name for name in view.tensors)
    chosen = dtype_policy.requested_gguf_dtype(dtype.dtype or "f32", (pair.a.spec for pair in adapter.pairs.values()))
    return lora.to_gguf(adapter, roles, lora.AdapterBase(family, sizes, tied), chosen, title, {})


def _notes(view: FolderView, changes: Changes, write: WriteOptions) -> Iterator[str]:
    large = [m for m in changes.matrices if m.shape[0] * m.shape[1] * 4 > write.memory]
    if large:
        yield f"{plural(len(large), 'matrix')} larger than --max-memory, read {PASSES} times"
    tied = not any("head" in name for name in view.embeddings)
    if changes.tables and tied:
        table = min(changes.tables)
        yield f"{table} is the head, too: PEFT changes both only once the adapter is merged"
    if rounding := [m.name for m in changes.matrices if not m.rank]:
        yield f"{plural(len(rounding), 'difference')} no larger than rounding, left out: {', '.join(rounding[:3])}"
