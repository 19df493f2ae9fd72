"""Builds the plan of a conversion: from a checkpoint and a target to files, header bytes, offsets and losses. Reads
headers, and what `probe` declares; writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.gc_pause import paused
from weighbridge.conversion import lora
from weighbridge.conversion.checkpoint import training
from weighbridge.conversion.gguf.loadable import check_loadable
from weighbridge.conversion.gguf.plan import to_gguf
from weighbridge.conversion.mlx.plan import SHARD, to_mlx
from weighbridge.conversion.options import (
    AdapterOptions,
    CastOptions,
    GgufOptions,
    HfOptions,
    MlxOptions,
    SchemeOptions,
    ShardOptions,
    TargetOptions,
    TorchFolderOptions,
    WriteOptions,
)
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.folder import to_folder
from weighbridge.conversion.plan.losses.requantized import check_lossless, losses_of
from weighbridge.conversion.plan.losses.settings import check_settings
from weighbridge.conversion.plan.losses.ties import copied, drop_tied
from weighbridge.conversion.plan.model import Plan, PlannedFile
from weighbridge.conversion.plan.plain import to_container
from weighbridge.conversion.plan.target import WEIGHTS, Target, check_target, stem_of
from weighbridge.conversion.schemes.plan import to_scheme
from weighbridge.io.filesystem import largest_file
from weighbridge.models.checkpoint import Checkpoint


def build(model: Checkpoint, target: Target, write: WriteOptions = WriteOptions()) -> Plan:
    """The plan of converting `model` to `target`. Errors: RefusedError, UnsupportedError, UsageError, FormatError."""
    with paused():
        return replace(_build(model, target, write), sources=tuple(map(state_of, model.place.files)), model=model)


def _build(model: Checkpoint, target: Target, write: WriteOptions) -> Plan:
    path, kind, options, folder = target
    if kind == training.NAME:
        return training.plan_checkpoint(model, path, write)
    if training.wanted(model.place.path, kind):
        return training.plan_torch(model.place.path, path, write)
    draft = _draft(model, kind, options)
    draft.losses += check_settings(model, draft, kind)
    if kind == "hf":
        drop_tied(model, draft)
    container = WEIGHTS.get(kind, kind)
    folder = folder or kind in WEIGHTS or (isinstance(options, ShardOptions) and options.sharded)
    check_target(path, model, folder)
    draft.stem = stem_of(path, model, kind)
    if isinstance(options, MlxOptions) and not options.sharded:
        options = replace(options, max_shard_size=SHARD)
    policy = options if isinstance(options, CastOptions) else CastOptions()
    if policy.inexact == "refuse":
        check_lossless(draft.tensors, draft.moves)
    write_to = writers.writer(container) if draft.tensors or not draft.texts else writers.write_nothing
    written = write_to(draft.stem, draft.tensors, draft.metadata, options)
    refused = check_loadable(((f.name, f.layout) for f in written.files), model) if container == "gguf" else []
    lost = [*losses_of(draft.tensors, policy.allow_requantize), *copied(model, draft.tensors, written.storages)]
    if draft.index is not None:
        where = {slot.name: file.name for file in written.files for slot, _ in file.slots}
        draft.texts["model.safetensors.index.json"] = draft.index(where)
    return Plan(
        source=str(model.place.path),
        target=path,
        format=kind,
        folder=folder,
        files=(*(written.files if folder else _renamed(path.name, written.files)), *draft.extra_files),
        texts={**written.texts, **draft.texts},
        losses=(*draft.losses, *lost),
        moves=tuple(draft.moves),
        notes=(*model.oddities, *draft.notes, *written.notes, *refused, *_too_large(path, written)),
        write=write,
        reports=draft.reports,
    )


def _draft(model: Checkpoint, kind: str, options: TargetOptions) -> PlanBuilder:
    """The content of the target's files, by the class of its options."""
    return _BUILDERS.get(type(options), to_container)(model, options, kind)


Builder = Callable[[Checkpoint, Any, str], PlanBuilder]
#: Options of a target -> what builds its content; others are containers of plain dtypes.
_BUILDERS: Final[Mapping[type[TargetOptions], Builder]] = MappingProxyType(
    {
        AdapterOptions: lambda model, options, kind: lora.plan_adapter(model, kind, options),
        SchemeOptions: lambda model, options, _: to_scheme(model, options),
        MlxOptions: lambda model, options, _: to_mlx(model, options),
        GgufOptions: lambda model, options, _: to_gguf(model, options),
        HfOptions: lambda model, options, kind: to_folder(model, options, WEIGHTS[kind]),
        TorchFolderOptions: lambda model, options, kind: to_folder(model, options, WEIGHTS[kind]),
    }
)


def _renamed(name: str, files: tuple[PlannedFile, ...]) -> list[PlannedFile]:
    """The file of a single-file target under the target's name."""
    return [replace(f, name=name) for f in files]


def _too_large(path: Path, written: writers.Written) -> list[str]:
    """A warning for each file that is too large for the target's file system."""
    bound = largest_file(path)
    return [
        f"{f.name} has {f.layout.size:,} bytes, but files on this file system can have at most {bound:,}; use "
        "--max-shard-size 4GB"
        for f in written.files
        if bound is not None and f.layout.size > bound
    ]
