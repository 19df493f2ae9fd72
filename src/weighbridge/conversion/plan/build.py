"""Builds the plan of a conversion: from a checkpoint and a target to files, header bytes, offsets and losses.

Reads headers, and the data that `probe` declares. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.gc_pause import paused
from weighbridge.containers.formats import PIPELINES
from weighbridge.conversion.options import (
    CHECKPOINT,
    AdapterOptions,
    CastOptions,
    ComfyFolderOptions,
    ComfyOptions,
    GenericGgufOptions,
    GgufFileOptions,
    GgufOptions,
    GraphOptions,
    HfOptions,
    MlxFolderOptions,
    MlxOptions,
    MlxTowersOptions,
    MmprojOptions,
    SchemeOptions,
    ShardOptions,
    TargetOptions,
    TaskAdapterOptions,
    TorchFolderOptions,
    WhisperOptions,
    WriteOptions,
)
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder, left_out
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.losses.requantized import check_lossless, losses_of
from weighbridge.conversion.plan.losses.ties import copied, drop_tied
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import WEIGHTS, Target, check_target, keeps_state, several_files, stem_of
from weighbridge.io.filesystem import largest_file
from weighbridge.io.sink import link_notes
from weighbridge.models.model import OpenModel
from weighbridge.models.wrapped import unwrapped, unwrapped_folder, without_mlx_names

if TYPE_CHECKING:
    from pathlib import Path

    from weighbridge.containers.gguf.values import KV
    from weighbridge.conversion.calibrated import Calibrate


def build(
    model: OpenModel, target: Target, write: WriteOptions = WriteOptions(), *, keep_names: bool = False,
    calibrate: Calibrate | None = None,
) -> Plan:  # fmt: skip
    """Plans the conversion of `model` to `target`. `keep_names`: keep a framework's prefix of names. `calibrate`: how
    the layers of a quantized folder are rounded, instead of to nearest.

    Raises RefusedError, UnsupportedError, UsageError, FormatError.
    """
    with paused():
        if target.format == CHECKPOINT:
            from weighbridge.conversion.checkpoint.training import plan_checkpoint

            plan = plan_checkpoint(model, target.path, write)
        elif keeps_state(model.place.path, target.format):
            from weighbridge.conversion.checkpoint.training import plan_torch

            plan = plan_torch(model.place.path, target.path, write)
        elif model.place.trainer in PIPELINES and (target.format in WEIGHTS or target.format == "gguf"):
            plan = _build_parts(model, target, write, keep_names)
        else:
            plan = _build(model, target, write, keep_names, calibrate)
        return replace(plan, sources=(*map(state_of, model.place.files), *plan.sources), model=model)


def _build_parts(model: OpenModel, target: Target, write: WriteOptions, keep_names: bool) -> Plan:
    """Plans a pipeline of diffusers or ComfyUI, each part by itself."""
    from weighbridge.conversion.pipelines.folder import plan_folder
    from weighbridge.conversion.pipelines.from_comfy import pipeline_of

    if isinstance(target.options, ComfyFolderOptions):
        from weighbridge.conversion.pipelines.comfy_folders import plan_comfy_folders as plan_folder

    if not isinstance(target.options, HfOptions | TorchFolderOptions | GgufOptions | ComfyFolderOptions):
        title = target.options.title
        raise UsageError(
            f"{model.place.path} is a pipeline of several models, which isn't written as {title}",
            hint="name one of its parts",
        )
    check_target(target.path, model.place.files, True)
    return plan_folder(
        pipeline_of(model), target, lambda part, inner: _build(part, inner, write, keep_names, calibrate=None)
    )


def _build(
    model: OpenModel, target: Target, write: WriteOptions, keep_names: bool, calibrate: Calibrate | None
) -> Plan:
    path, kind, options, folder, asked = target
    unwrap, to_draft = _BUILDERS.get(type(options), (None, _to_container))
    if isinstance(options, GgufOptions) and options.text_model is not None:  # the model has only towers
        unwrap = None
    if model.format == "gguf" and kind != "gguf" and unwrap is not None:
        from weighbridge.models.tied_copies import without_copies  # late: it loads the rules of llama.cpp

        model, renamed = without_copies(model)
    else:
        model, renamed = (model, []) if keep_names or unwrap is None else unwrap(model)
    if calibrate is not None:
        to_draft = partial(_to_scheme if isinstance(options, SchemeOptions) else _to_mlx, calibrate=calibrate)
    elif asked and isinstance(options, HfOptions | TorchFolderOptions) and (found := _from_mlx(model, renamed)):
        model, to_draft, renamed = found[0], partial(_to_folder, from_mlx=True), [*renamed, *found[1]]
    draft = to_draft(model, options, kind)
    if kind in _WITH_CONFIG and not isinstance(options, _UNCHECKED):
        _check_settings(model, draft, kind)
    keys = _set_keys(draft, options) if isinstance(options, GgufFileOptions) and options.kv else {}
    if kind == "hf":
        drop_tied(model, draft)
    container = WEIGHTS.get(kind, kind)
    folder = folder or kind in WEIGHTS or (isinstance(options, ShardOptions) and options.sharded)
    check_target(path, (*model.place.files, *draft.sources), folder)
    draft.stem = stem_of(path, model, kind)
    options = _mlx_sharded(options) if isinstance(options, MlxFolderOptions) and not options.sharded else options
    policy = options if isinstance(options, CastOptions) else CastOptions()
    if policy.inexact == "refuse":
        check_lossless(draft.tensors, draft.moves, draft.losses)
    written = writers.Written((), {})  # a folder of small files
    if draft.tensors or not draft.texts:
        written = writers.writer(container)(draft.stem, draft.tensors, draft.metadata, options)
    notes = [*model.oddities, *renamed, *draft.notes, *written.notes]
    notes += _warnings(
        model, written, path, isinstance(options, GgufFileOptions) and options.endian == "big", container
    )
    losses = [*losses_of(draft.tensors, policy.allow_requantize), *copied(model, draft.tensors, written.storages)]
    if draft.index is not None:
        file_of = {slot.name: file.name for file in written.files for slot, _ in file.slots}
        draft.texts["model.safetensors.index.json"] = draft.index(file_of)
    if not folder and (count := len(written.files) + len(draft.extra_files)) > 1:
        raise several_files(path, count)
    return Plan(
        source=str(model.place.path),
        target=path,
        format=kind,
        folder=folder,
        files=(*(written.files if folder else [replace(f, name=path.name) for f in written.files]), *draft.extra_files),
        texts={**written.texts, **draft.texts},
        losses=(*left_out(model, draft.used_values), *draft.losses, *losses),
        moves=tuple(draft.moves),
        notes=tuple(notes),
        write=write,
        reports=draft.reports,
        sources=tuple(map(state_of, draft.sources)),
        preparation=draft.preparation,
        keys=keys,
    )


def _warnings(model: OpenModel, written: writers.Written, path: Path, big_endian: bool, container: str) -> list[str]:
    """Warnings: files that llama.cpp won't load, links at the target, files that are too large for its file system."""
    found: list[str] = []
    if container == "gguf":
        from weighbridge.conversion.gguf.loadable import check_loadable  # late: it loads the rules of llama.cpp

        found += check_loadable(((f.name, f.layout) for f in written.files), model, big_endian=big_endian)
    bound = largest_file(path) or inf
    too_large = [
        f"{f.name} has {f.layout.size:,} bytes, this file system's maximum is {bound:,}; use --max-shard-size 4GB"
        for f in written.files
        if f.layout.size > bound
    ]
    return [*found, *link_notes(path), *too_large]


#: The targets with a config, and those among them whose settings aren't those of a language model.
_WITH_CONFIG: Final = ("gguf", "mlx", "hf")
_UNCHECKED: Final = (GenericGgufOptions, MmprojOptions, MlxTowersOptions, TaskAdapterOptions)
Unwrap = Callable[[OpenModel], tuple[OpenModel, list[str]]]
Builder = Callable[[OpenModel, Any, str], PlanBuilder]

# ---- builders: each imports its target's code, so that a plan loads the code of one target ----


def _to_adapter(model: OpenModel, options: AdapterOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.lora import plan_adapter

    return plan_adapter(model, options, kind)


def _to_scheme(model: OpenModel, options: SchemeOptions, kind: str, calibrate: Calibrate | None = None) -> PlanBuilder:
    from weighbridge.conversion.schemes.plan import to_scheme

    return to_scheme(model, options, calibrate)


def _language_model(model: OpenModel) -> tuple[OpenModel, list[str]]:
    from weighbridge.conversion.mlx.plan import refuse_without_family

    refuse_without_family(model)
    return unwrapped(model)


def _to_mlx(model: OpenModel, options: MlxOptions, kind: str, calibrate: Calibrate | None = None) -> PlanBuilder:
    from weighbridge.conversion.mlx.plan import to_mlx

    return to_mlx(model, options, calibrate)


def _to_mlx_vlm(model: OpenModel, options: MlxTowersOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.mlx.towers import to_mlx_vlm

    return to_mlx_vlm(model, options)


def _check_settings(model: OpenModel, draft: PlanBuilder, kind: str) -> None:
    from weighbridge.conversion.plan.losses.settings import check_settings  # late: it loads the families' tables

    draft.losses += check_settings(model, draft, kind)
    if kind == "mlx":
        from weighbridge.conversion.mlx.plan import load_losses

        draft.losses += load_losses(draft)  # after settings that are refused


def _set_keys(draft: PlanBuilder, options: GgufFileOptions) -> dict[str, KV]:
    from weighbridge.conversion.gguf.set_keys import set_keys

    return set_keys(draft, options)


def _mlx_sharded(options: MlxFolderOptions) -> MlxFolderOptions:
    from weighbridge.conversion.mlx.plan import SHARD

    return replace(options, max_shard_size=SHARD)


def _to_gguf(model: OpenModel, options: GgufOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.gguf.plan import to_gguf

    return to_gguf(model, options)


def _to_mmproj(model: OpenModel, options: MmprojOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.gguf.mmproj import to_mmproj

    return to_mmproj(model, options)


def _to_task_adapter(model: OpenModel, options: TaskAdapterOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.gguf import task_adapters

    return task_adapters.to_gguf(model, options)


def _to_generic_gguf(model: OpenModel, options: GenericGgufOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.gguf.plan import to_generic_gguf

    return to_generic_gguf(model, options)


def _to_ggml(model: OpenModel, options: WhisperOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.whisper.plan import to_ggml

    return to_ggml(model, options)


def _to_graph(model: OpenModel, options: GraphOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.graph import to_graph

    return to_graph(model, options)


def _to_folder(
    model: OpenModel, options: HfOptions | TorchFolderOptions, kind: str, *, from_mlx: bool = False
) -> PlanBuilder:
    from weighbridge.conversion.plan.folder import to_folder

    return to_folder(model, options, WEIGHTS[kind], from_mlx=from_mlx)


def _to_comfy_folders(model: OpenModel, options: ComfyFolderOptions, kind: str) -> PlanBuilder:
    raise UsageError(f"{model.place.path} isn't a pipeline of several models", hint="leave out --comfy-folders")


def _from_mlx(model: OpenModel, renamed: Sequence[str]) -> tuple[OpenModel, list[str]] | None:
    """A folder of mlx-lm to be written for other programs, and notes; None for other models. `renamed`: notes on names
    that are replaced, such as mlx-vlm's. UnsupportedError if no table has the names."""
    from weighbridge.models.clients import is_mlx

    if model.format == "gguf" or not is_mlx(model.config, model.metadata):
        return None
    if not model.described:
        if renamed:
            return None
        raise UnsupportedError(
            f"{model.place.path} is in MLX's form, and no table has the names that other programs read",
            hint="leave --to out, and the copy stays in MLX's form; --arch-file adds a table",
        )
    from weighbridge.models.wrapped import from_mlx_lm

    return from_mlx_lm(model)


def _to_comfy(model: OpenModel, options: ComfyOptions, kind: str) -> PlanBuilder:
    from weighbridge.conversion.comfy import to_comfy

    if model.place.trainer in PIPELINES:
        from weighbridge.conversion.pipelines.single_file import to_single_file

        return to_single_file(model, options, kind)
    return to_comfy(model, options)


def _to_container(model: OpenModel, options: Any, kind: str) -> PlanBuilder:
    if model.place.trainer in PIPELINES and kind in WEIGHTS.values():
        from weighbridge.conversion.pipelines.single_file import to_single_file

        return to_single_file(model, options, kind)
    from weighbridge.conversion.plan.folder import to_container

    return to_container(model, options, kind)


#: Options of a target -> the function that removes a framework's prefix of names, and the one that builds the contents.
#: The other targets are containers of plain dtypes.
_BUILDERS: Final[Mapping[type[TargetOptions], tuple[Unwrap | None, Builder]]] = MappingProxyType(
    {
        AdapterOptions: (None, _to_adapter),
        SchemeOptions: (unwrapped_folder, _to_scheme),
        MlxOptions: (_language_model, _to_mlx),
        MlxTowersOptions: (without_mlx_names, _to_mlx_vlm),
        GgufOptions: (unwrapped, _to_gguf),
        MmprojOptions: (without_mlx_names, _to_mmproj),
        TaskAdapterOptions: (unwrapped, _to_task_adapter),
        GenericGgufOptions: (None, _to_generic_gguf),
        WhisperOptions: (None, _to_ggml),
        GraphOptions: (None, _to_graph),
        ComfyOptions: (None, _to_comfy),
        ComfyFolderOptions: (None, _to_comfy_folders),
        HfOptions: (unwrapped_folder, _to_folder),
        TorchFolderOptions: (unwrapped_folder, _to_folder),
    }
)
