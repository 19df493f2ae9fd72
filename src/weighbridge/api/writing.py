"""The functions that write a model. `plan_<verb>(src, dst, ...)` opens the source, reads headers and returns a plan:
`plan.losses` lists what the target can't hold, `plan.describe()` is the plan as plain data, `plan.run(progress=...)`
writes. `<verb>(...)` plans and writes. After an error nothing new remains, except with `resume`, and existing files are
unchanged.

Errors: FormatError (the source is damaged), UnsupportedError, RefusedError (names the option that allows it),
UsageError (options that contradict each other or don't apply to the target), OSError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.api.keywords import (
    ConvertKeywords,
    MergeKeywords,
    QuantizeKeywords,
    RenameKeywords,
    SliceKeywords,
    SplitKeywords,
    StripKeywords,
    WriteKeywords,
)
from weighbridge.api.verbs import planned_and_run, with_bill
from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.containers.formats import PIPELINES
from weighbridge.conversion.options import (
    CHECKPOINT,
    AdapterOptions,
    CheckpointOptions,
    Path,
    QuantizeOptions,
    RankOptions,
    resolve,
)
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target, is_whisper_cpp, same_format
from weighbridge.forward.calibration import calibration, given, scheme_calibration
from weighbridge.forward.options import TextOptions
from weighbridge.models.model import OpenModel, open_tokenizer
from weighbridge.models.open import open_model

if TYPE_CHECKING:
    from weighbridge.conversion.checkpoint.strip import StripPlan
    from weighbridge.conversion.merging.sources import MergeInput
    from weighbridge.conversion.quantize.plan import QuantizePlan
    from weighbridge.conversion.transform import TransformPlan
    from weighbridge.models.lora.weights import WeightedAdapter


_OF_TEXTS: Final = frozenset(one.name for one in fields(TextOptions))


@contextmanager
def _opened(src: Path, options: WriteKeywords, *, tokenizer: bool = False) -> Iterator[OpenModel]:
    """Opens the model at `src` for a plan, which closes it; closes it here if planning fails. `tokenizer`: accept a
    folder without weights."""
    model = (open_tokenizer(src, options) if tokenizer else None) or open_model(src, options)
    try:
        if options.all_parts and "all_parts" in options.given:
            from weighbridge.models.training_parts import is_training_checkpoint

            if not (model.place.trainer or is_training_checkpoint(model.index)):
                raise UsageError(f"--all-parts doesn't apply to {src}", hint="it applies to training checkpoints")
        yield model
    except BaseException:
        model.close()
        raise


def _with_adapters(model: OpenModel, adapters: Sequence[WeightedAdapter]) -> OpenModel:
    if not adapters:
        return model
    from weighbridge.models.lora.merge import merge_for_writing

    return merge_for_writing(model, adapters)


@accepting(ConvertKeywords)
def plan_convert(src: Path, dst: Path, options: ConvertKeywords) -> Plan:
    """Plans to convert the model at `src` to `dst`: another format, other dtypes, other shards.

    `to` is a format (gguf, hf, mlx, safetensors, torch, npz, ggml, dcp, onnx, checkpoint ...) or the options of one
    (`wb.GgufOptions(...)`); without it the extension of `dst` decides. ggml is whisper.cpp's: a Whisper to
    `ggml-NAME.bin` is written as one."""
    if options.to == CHECKPOINT or isinstance(options.to, CheckpointOptions):
        if options.ema:
            raise UsageError("--ema doesn't apply to a training checkpoint as the target", hint="it keeps all parts")
        source = replace(options, all_parts=True)
    else:
        source = options
    with _opened(src, source, tokenizer=options.vocab_only) as model:
        target = choose_target(model, dst, options.to, options.target_options)
        if target.folder and not target.asked and model.borrowed is None and not model.place.trainer:
            from weighbridge.conversion.pipelines.from_file import check_described  # late: few targets are folders

            check_described(model)
        if options.lora:
            if isinstance(target.options, AdapterOptions | CheckpointOptions):
                raise UsageError(f"--lora doesn't apply to {target.options.title}", hint="it applies to models")
            model = _with_adapters(model, options.adapters)
        has_text = not _OF_TEXTS.isdisjoint(options.given)
        calibrate = scheme_calibration(target.options, options, options) if has_text else None
        plan = build(model, target, options, calibrate=calibrate)
        return plan if options.sbom is None else with_bill(plan, options, [src], "converted", options.adapters)


@accepting(SplitKeywords)
def plan_split(src: Path, dst: Path, options: SplitKeywords) -> Plan:
    """Plans to write the model at `src` to the folder `dst` as shards of at most `max_shard_size` bytes or
    `max_shard_tensors` tensors, in its own format, or for `tp` ranks of a tensor-parallel group."""
    given = options.target_options
    if not given:
        hint = "--max-shard-size 5GB, --max-shard-tensors 128 or --tp 4"
        raise UsageError("no bound for a shard was given", hint=hint)
    with _opened(src, options) as model:
        if "tp" in given:
            from weighbridge.conversion.tensor_parallel import plan_ranks

            return plan_ranks(model, resolve_target(dst), resolve(RankOptions, "model", given), options)
        return build(model, choose_target(model, dst, None, given, same_format(model, resolve_target(dst))), options)


@accepting(MergeKeywords)
def plan_merge(src: MergeInput, dst: Path, options: MergeKeywords) -> Plan:
    """Plans to write several models as one, `dst`: those of a recipe in mergekit's YAML, as a mixture of experts if it
    lists experts, or `src` by a `method`.

    `src` is a recipe's path or its data as a dict, a list of models (with `method`), or a model and LoRA adapters. For
    the shards, or the tensor-parallel ranks, of one model, `dst` is a file, or a folder with one file."""
    from weighbridge.conversion.merging.mixture_recipe import MixtureRecipe
    from weighbridge.conversion.merging.recipe import Recipe
    from weighbridge.conversion.merging.sources import WithAdapters, read_input

    found = read_input(src, options, options.given)
    given = options.target_options
    if isinstance(found, MixtureRecipe):
        from weighbridge.conversion.merging.mixture import plan_mixture
        from weighbridge.forward.run import prompt_states

        plan = plan_mixture(found, dst, options.to, given, options, options, options.seed, prompt_states)
        return with_bill(plan, options, found.models, "merge")
    if isinstance(found, Recipe):
        from weighbridge.conversion.merging.plan import plan_recipe

        plan = plan_recipe(found, dst, options.to, given, options, options, options.seed)
        return with_bill(plan, options, found.models, "merge")
    path, adapters = found if isinstance(found, WithAdapters) else (found, ())
    with _opened(path, options) as model:
        model = _with_adapters(model, adapters)
        to = options.to or same_format(model, resolve_target(dst))
        plan = build(model, choose_target(model, dst, to, given), options)
        return with_bill(plan, options, [path], "merge" if adapters else "converted", adapters)


@accepting(StripKeywords)
def plan_strip(src: Path, dst: Path, options: StripKeywords) -> StripPlan:
    """Plans to write the weights of the training checkpoint `src` to `dst`, without optimizer, averages and random
    states. `plan.report` lists each part that is left out, and why."""
    from weighbridge.conversion.checkpoint import strip as stripping

    with _opened(src, replace(options, all_parts=True)) as model:
        return stripping.plan_strip(
            model, dst, options.to, options.target_options, options,
            keep_ema=options.keep_ema, ema_as_weights=options.ema_as_weights,
        )  # fmt: skip


@accepting(RenameKeywords)
def plan_rename(src: Path, dst: Path, options: RenameKeywords) -> TransformPlan:
    """Plans to write the model `src` to `dst` under other names: strips prefixes, replaces patterns, adds a prefix and
    changes the dialect, in this order. Raises UsageError if two tensors would have the same name."""
    from weighbridge.conversion import transform

    with _opened(src, options) as model:
        return transform.plan_rename(model, dst, options, options.to, options.target_options, options)


@accepting(SliceKeywords)
def plan_slice(src: Path, dst: Path, options: SliceKeywords) -> TransformPlan:
    """Plans to write a part of the model `src` to `dst`: layers and experts by number ("0-15", "0,2,4-7", "8-"),
    tensors by globs. config.json, a GGUF's keys and lists with an entry per layer are cut with them."""
    from weighbridge.conversion import transform

    with _opened(src, options) as model:
        return transform.plan_slice(model, dst, options, options.to, options.target_options, options)


@accepting(QuantizeKeywords)
def plan_quantize(src: Path, dst: Path, options: QuantizeKeywords) -> QuantizePlan:
    """Plans to quantize the model at `src`, in any format, to the GGUF `dst`, with the bytes that llama-quantize would
    write. `ftype` is one of its types, such as Q4_K_M; leave it out with `target_bpw` or `target_size`, which choose a
    type for each tensor, with a `text` by what the model predicts on it, or with a `recipe`, a file with the type of
    each tensor, such as the `recipe` of another plan. `plan.refusals` lists what prevents `run`. A Whisper becomes
    a whisper.cpp file if `src` is one, or if `dst` is named ggml-NAME.bin."""
    from weighbridge.conversion.quantize import plan as quantizing

    with _opened(src, options) as model:
        if is_whisper_cpp(model, resolve_target(dst)):
            from weighbridge.conversion.whisper import quantize as whisper

            for option in given(options):
                raise UsageError(f"{option} doesn't apply to a whisper.cpp file")
            plan = whisper.plan_quantize(model, dst, options.ftype, options.target_options, options)
            return with_bill(plan, options, [src], "quantized")
        chosen = resolve(QuantizeOptions, "gguf" if model.format == "gguf" else "model", options.target_options)
        model = _with_adapters(model, options.adapters)
        if model.place.trainer in PIPELINES:
            from weighbridge.conversion.pipelines.from_comfy import pipeline_of
            from weighbridge.conversion.pipelines.quantized import plan_quantized

            for option in given(options):
                raise UsageError(f"{option} doesn't apply to a pipeline of several models")
            parts = pipeline_of(model)
            return plan_quantized(
                parts, dst, options.ftype, chosen, options, lambda part, target: build(part, target, options)
            )
        made, effects = calibration(model, chosen, options, options.progress)
        plan = quantizing.build(model, dst, options.ftype, chosen, options, made=made, effects=effects)
        return with_bill(plan, options, [src], "quantized", options.adapters)


convert = planned_and_run(plan_convert, "Converts a model; the arguments are those of `plan_convert`.")
split = planned_and_run(plan_split, "Splits a model into shards; the arguments are those of `plan_split`.")
merge = planned_and_run(plan_merge, "Merges models, or shards; the arguments are those of `plan_merge`.")
strip = planned_and_run(plan_strip, "Writes only a checkpoint's weights; the arguments are those of `plan_strip`.")
rename = planned_and_run(plan_rename, "Renames a model's tensors; the arguments are those of `plan_rename`.")
slice = planned_and_run(plan_slice, "Writes a part of a model; the arguments are those of `plan_slice`.")
quantize = planned_and_run(plan_quantize, "Quantizes a model to a GGUF; the arguments are those of `plan_quantize`.")
