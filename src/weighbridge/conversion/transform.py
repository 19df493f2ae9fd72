"""Plans `wb rename` and `wb slice`: the operation on the model, the plan that writes the result, and the report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.words import check_globs
from weighbridge.conversion.options import ShardOptions, TargetOptions, WriteOptions
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.losses.settings import slice_losses
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target, same_format
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import KeyChange, RenamedTensor, ResizedTensor, Transformed, with_entries
from weighbridge.models.transform.experts import slice_experts
from weighbridge.models.transform.layers import slice_layers
from weighbridge.models.transform.options import RenameRules, SliceOptions
from weighbridge.models.transform.rename import rename
from weighbridge.models.wrapped import for_the_table


@dataclass(frozen=True)
class TransformReport:
    """The outcome of `wb rename` or `wb slice`. Sizes in bytes. `changed`: keys of config.json or of a GGUF."""

    source: str
    target: str
    tensors: int
    renamed: tuple[RenamedTensor, ...]
    dropped: tuple[str, ...]
    cut: tuple[ResizedTensor, ...]
    changed: tuple[KeyChange, ...]
    source_bytes: int
    bytes: int
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = "weighbridge/transform/1"


@dataclass(frozen=True, repr=False)
class TransformPlan(Plan):
    """The plan of a rename or a slice, and its report."""

    report: TransformReport = field(kw_only=True)


def plan_rename(
    model: OpenModel, target: str | os.PathLike[str], names: RenameRules, to: str | TargetOptions | None = None,
    given: Mapping[str, Any] = MappingProxyType({}), write: WriteOptions = WriteOptions(),
) -> TransformPlan:  # fmt: skip
    """Plans to write the model under other names. `given`: options of the target by name.

    Raises UsageError for a GGUF under another dialect's names, which nothing loads.
    """
    kind = choose_target(model, target, to, given, same_format(model, resolve_target(target))).format
    if names.to_names not in (None, "gguf") and kind == model.format == "gguf":
        raise UsageError(
            f"nothing loads a GGUF with {names.to_names} names", hint="name a target that ends in .safetensors"
        )
    source = model if names.to_names is None else for_the_table(model)
    return _plan_result(model, rename(source, names), target, to, given, write)


def plan_slice(
    model: OpenModel, target: str | os.PathLike[str], kept: SliceOptions, to: str | TargetOptions | None = None,
    given: Mapping[str, Any] = MappingProxyType({}), write: WriteOptions = WriteOptions(),
) -> TransformPlan:  # fmt: skip
    """Plans to write a part of the model. `given`: options of the target by name."""
    return _plan_result(model, slice_model(model, kept), target, to, given, write)


def slice_model(model: OpenModel, kept: SliceOptions) -> Transformed:
    """Cuts a model. Raises UsageError if no option selects anything."""
    layers = kept.layers if isinstance(kept.layers, str) else ",".join(kept.layers or ()) or None
    if kept.renumber and layers is None:
        raise UsageError("--renumber applies to layers", hint="choose some: --layers 0-15")
    if layers is None and kept.experts is None and not kept.keep and not kept.drop:
        raise UsageError("nothing selected", hint="use --layers 0-15, --experts 0-3, --keep or --drop")
    result = Transformed(model if layers is None and kept.experts is None else for_the_table(model))
    if layers is not None:
        result = result.then(slice_layers(result.model, layers, renumber=kept.renumber))
    if kept.experts is not None:
        result = result.then(slice_experts(result.model, kept.experts))
    if kept.keep or kept.drop:
        result = result.then(_select(result.model, kept.keep, kept.drop))
    return result


def _select(model: OpenModel, keep: Sequence[str], drop: Sequence[str]) -> Transformed:
    """Keeps the tensors whose names match one of `keep` (all if it is empty) and none of `drop`."""
    names = [e.name for e in model.index]
    check_globs(keep, names, "--keep")
    check_globs(drop, names, "--drop")
    dropped = tuple(
        name
        for name in names
        if (keep and not any(fnmatchcase(name, p) for p in keep)) or any(fnmatchcase(name, p) for p in drop)
    )
    removed = frozenset(dropped)
    kept = with_entries(model, ((e, e.name) for e in model.index if e.name not in removed))
    note = "config and metadata are the whole model's: tensors were chosen by name"
    return Transformed(kept, dropped=dropped, notes=(note,))


def _plan_result(
    model: OpenModel,
    result: Transformed,
    target: str | os.PathLike[str],
    to: str | TargetOptions | None,
    given: Mapping[str, Any],
    write: WriteOptions,
) -> TransformPlan:
    path = resolve_target(target)
    chosen = choose_target(result.model, target, to, given, same_format(model, path))
    options = chosen.options
    if len(model.index.files) > 1 and not path.suffix and isinstance(options, ShardOptions) and not options.sharded:
        sizes = Counter[int]()  # a set remains a set: its largest file bounds the new ones
        for entry in model.index:
            sizes[entry.file] += entry.nbytes
        chosen = chosen._replace(options=replace(options, max_shard_size=max(sizes.values(), default=1) or 1))
    plan = build(result.model, chosen, write, keep_names=bool(result.renamed))
    plan = replace(plan, losses=(*plan.losses, *slice_losses(model, result)))
    notes = [*result.notes]
    if result.changed and "config.json" in result.model.texts and not plan.folder:
        notes.append(f"config.json isn't written next to {path.name}: it would change, too")
    report = TransformReport(
        source=str(model.place.path),
        target=str(plan.target),
        tensors=len(result.model.index),
        renamed=result.renamed,
        dropped=result.dropped,
        cut=result.cut,
        changed=result.changed,
        source_bytes=sum(w.stat().st_size for w in model.place.weights),
        bytes=plan.size,
        losses=tuple(f"{x.tensor}: {x.message}" if x.tensor else x.message for x in plan.losses),
        notes=(*notes, *plan.notes),
    )
    return TransformPlan(**{f.name: getattr(plan, f.name) for f in fields(plan)}, report=report)
