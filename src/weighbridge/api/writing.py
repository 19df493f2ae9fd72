"""Everything that writes, in one shape: `plan_<verb>(src, dst, ...)` opens the source, reads headers and gives a plan;
`plan.losses` is what the target can't hold, `plan.describe()` all of it as plain data, `plan.run(progress=...)` writes.
`<verb>(...)` does both. On any error nothing is left behind (but for `resume`), and what existed stays.

Errors: FormatError (the source is damaged), UnsupportedError, RefusedError (names the option that allows it),
UsageError (options that don't go together, or don't apply to the target), OSError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Unpack

from weighbridge.adapters.remote.schemes import resolve_path, resolve_target
from weighbridge.api.keywords import (
    ConvertKeywords,
    Path,
    QuantizeKeywords,
    ShardKeywords,
    TransformKeywords,
    WriteKeywords,
    sort_keywords,
)
from weighbridge.api.verbs import planned_and_run
from weighbridge.base.errors import UsageError
from weighbridge.conversion import transform
from weighbridge.conversion.checkpoint import strip as stripping
from weighbridge.conversion.options import (
    AdapterOptions,
    CheckpointOptions,
    RankOptions,
    TargetOptions,
    resolve,
)
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target, same_format
from weighbridge.conversion.quantize import plan as quantizing
from weighbridge.conversion.quantize.inputs import QuantizeOptions
from weighbridge.conversion.quantize.plan import QuantizePlan
from weighbridge.conversion.tensor_parallel import plan_ranks
from weighbridge.conversion.transform import SliceOptions, TransformPlan
from weighbridge.models.checkpoint import Checkpoint, SourceOptions, open_tokenizer
from weighbridge.models.lora.merge import merge_adapter
from weighbridge.models.open import open_model
from weighbridge.models.transform.rename import RenameRules


@contextmanager
def _opened(src: Path, options: SourceOptions, *, tokenizer: bool = False) -> Iterator[Checkpoint]:
    """The model at `src`. It stays open for the plan; closed where planning fails. `tokenizer`: a folder without
    weights will do."""
    model = (open_tokenizer(src, options) if tokenizer else None) or open_model(src, options)
    try:
        yield model
    except BaseException:
        model.close()
        raise


def plan_convert(
    src: Path,
    dst: Path,
    *,
    to: str | TargetOptions | None = None,
    lora: Path | None = None,
    **options: Unpack[ConvertKeywords],
) -> Plan:
    """Plans to convert the model at `src` to `dst`: another format, other dtypes, other shards.

    `to`: the format (gguf, hf, mlx, safetensors, torch, npz, checkpoint), or options of one (`wb.GgufOptions(...)`);
    None: it follows from the extension of `dst`. `lora`: an adapter to merge into the weights.
    """
    source, write, given = sort_keywords(options)
    with _opened(src, source, tokenizer=bool(given.get("vocab_only"))) as model:
        target = choose_target(model, dst, to, given)
        if lora is not None:
            if isinstance(target.options, AdapterOptions | CheckpointOptions):
                raise UsageError(f"--lora doesn't apply to {target.options.title}", hint="it applies to models")
            model = merge_adapter(model, resolve_path(lora))
        return build(model, target, write)


def plan_split(src: Path, dst: Path, *, tp: int | None = None, **options: Unpack[ShardKeywords]) -> Plan:
    """Plans to write the model at `src` to the folder `dst` as shards of at most `max_shard_size` bytes or
    `max_shard_tensors` tensors, in its own format, or for `tp` ranks of a tensor-parallel group."""
    source, write, given = sort_keywords(options)
    if tp is None and not given.keys() & {"max_shard_size", "max_shard_tensors"}:
        raise UsageError("no bound for a shard was given", hint="--max-size 5GB, --max-tensors 128 or --tp 4")
    with _opened(src, source) as model:
        if tp is not None:
            return plan_ranks(model, resolve_target(dst), resolve(RankOptions, "model", {"tp": tp, **given}), write)
        return build(model, choose_target(model, dst, same_format(model, resolve_target(dst)), given), write)


def plan_merge(src: Path, dst: Path, **options: Unpack[WriteKeywords]) -> Plan:
    """Plans to write the shards, or the tensor-parallel ranks, of the model at `src` as one file `dst`, or as a folder
    with one file."""
    source, write, given = sort_keywords(options)
    with _opened(src, source) as model:
        return build(model, choose_target(model, dst, same_format(model, resolve_target(dst)), given), write)


def plan_strip(
    src: Path,
    dst: Path,
    *,
    to: str | None = None,
    keep_ema: bool = False,
    ema_as_weights: bool = False,
    **options: Unpack[TransformKeywords],
) -> stripping.StripPlan:
    """Plans to write the weights of the training checkpoint `src` to `dst`, without optimizer, averages, random states.
    `plan.report` lists what is left out and why. `keep_ema` keeps averaged weights beside the others, `ema_as_weights`
    writes them in the others' place."""
    source, write, given = sort_keywords(options)
    with _opened(src, source) as model:
        return stripping.plan_strip(model, dst, to, given, write, keep_ema=keep_ema, ema_as_weights=ema_as_weights)


def plan_rename(
    src: Path,
    dst: Path,
    *,
    strip_prefix: str | Sequence[str] = (),
    replace: Sequence[tuple[str, str]] = (),
    add_prefix: str = "",
    to_names: str | None = None,
    to: str | None = None,
    **options: Unpack[TransformKeywords],
) -> TransformPlan:
    """Plans to write the model `src` to `dst` under other names, in this order: without the prefixes `strip_prefix`,
    with what the patterns of `replace` (pattern of `re`, replacement) match replaced, with the prefix `add_prefix`,
    under the names and layout of a dialect `to_names` ("hf", "gguf", "mlx", "canonical"). UsageError where two tensors
    would have one name."""
    source, write, given = sort_keywords(options)
    prefixes = (strip_prefix,) if isinstance(strip_prefix, str) else tuple(strip_prefix)
    names = RenameRules(prefixes, tuple(replace), add_prefix, to_names)
    with _opened(src, source) as model:
        return transform.plan_rename(model, dst, names, to, given, write)


def plan_slice(
    src: Path,
    dst: Path,
    *,
    layers: str | Sequence[str] | None = None,
    renumber: bool = False,
    experts: str | None = None,
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    to: str | None = None,
    **options: Unpack[TransformKeywords],
) -> TransformPlan:
    """Plans to write a part of the model `src` to `dst`: `layers` and `experts` by number ("0-15", "0,2,4-7", "8-"; of
    two stacks "encoder:0-3,decoder:0-1"), tensors by the globs `keep` and `drop`. config.json, a GGUF's keys and lists
    with an entry per layer are cut with them; `renumber` numbers the layers from 0."""
    source, write, given = sort_keywords(options)
    chosen = layers if isinstance(layers, str) or layers is None else ",".join(layers) or None
    with _opened(src, source) as model:
        wanted = SliceOptions(chosen, renumber, experts, tuple(keep), tuple(drop))
        return transform.plan_slice(model, dst, wanted, to, given, write)


def plan_quantize(src: Path, dst: Path, ftype: str = "", **options: Unpack[QuantizeKeywords]) -> QuantizePlan:
    """Plans to quantize the model at `src`, in whatever format it is, to the GGUF `dst`, with the bytes that
    llama-quantize would write. `ftype`: one of its types, such as Q4_K_M; "" with `target_bpw` or `target_size`, which
    give each tensor the type that serves the whole best. `plan.refusals` is what stands in the way of `run`."""
    source, write, given = sort_keywords(options)
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list | tuple)}
    with _opened(src, source) as model:
        chosen = resolve(QuantizeOptions, "gguf" if model.format == "gguf" else "model", {**given, **lists})
        return quantizing.build(model, dst, ftype, chosen, write)


convert = planned_and_run(plan_convert, "Converts a model; the arguments are those of `plan_convert`.")
split = planned_and_run(plan_split, "Splits a model into shards; the arguments are those of `plan_split`.")
merge = planned_and_run(plan_merge, "Merges shards into one file; the arguments are those of `plan_merge`.")
strip = planned_and_run(plan_strip, "Writes a checkpoint's weights alone; the arguments are those of `plan_strip`.")
rename = planned_and_run(plan_rename, "Renames a model's tensors; the arguments are those of `plan_rename`.")
slice = planned_and_run(plan_slice, "Writes a part of a model; the arguments are those of `plan_slice`.")
quantize = planned_and_run(plan_quantize, "Quantizes a model to a GGUF; the arguments are those of `plan_quantize`.")
