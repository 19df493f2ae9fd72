"""Operations on models as conversions: what is done to the model, the plan that writes the result, and the account."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import UsageError
from weighbridge.conversion.options import ShardOptions, WriteOptions
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.losses.settings import slice_losses
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target, same_format
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.transform.base import KeyChange, RenamedTensor, ResizedTensor, Transformed, with_entries
from weighbridge.models.transform.experts import slice_experts
from weighbridge.models.transform.layers import slice_layers
from weighbridge.models.transform.rename import RenameRules, rename

_GGUF: Final = "gguf"


@dataclass(frozen=True)
class SliceOptions:
    """What is left of a model. `layers`, `experts`: numbers as `0-15` or `0,2,4-7`; `renumber`: layers are counted anew
    from 0. `keep`, `drop`: globs of tensors' names, applied last."""

    layers: str | None = None
    renumber: bool = False
    experts: str | None = None
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class TransformReport:
    """What `wb rename` or `wb slice` did, or would do. Sizes in bytes; `changed`: keys of config.json or of a GGUF."""

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
    schema: str = "weighbridge/surgery/1"


@dataclass(frozen=True, repr=False)
class TransformPlan(Plan):
    """The plan of a rename or a slice, and what it changes."""

    report: TransformReport = field(kw_only=True)


def plan_rename(
    model: Checkpoint, target: str | os.PathLike[str], names: RenameRules, to: str | None = None,
    given: Mapping[str, Any] = MappingProxyType({}), write: WriteOptions = WriteOptions(),
) -> TransformPlan:  # fmt: skip
    """Plans to write the model under other names. `given`: options of the target by name."""
    kind = choose_target(model, target, to or same_format(model, resolve_target(target)), given).format
    if names.dialect not in (None, _GGUF) and kind == _GGUF and model.format == _GGUF:
        raise UsageError(
            f"a GGUF under {names.dialect} names is one that nothing loads",
            hint="name a target that ends in .safetensors",
        )
    return _planned(model, target, lambda m: rename(m, names), to, given, write)


def plan_slice(
    model: Checkpoint, target: str | os.PathLike[str], what: SliceOptions, to: str | None = None,
    given: Mapping[str, Any] = MappingProxyType({}), write: WriteOptions = WriteOptions(),
) -> TransformPlan:  # fmt: skip
    """Plans to write a part of the model. `given`: options of the target by name."""
    return _planned(model, target, lambda m: sliced(m, what), to, given, write)


def sliced(model: Checkpoint, what: SliceOptions) -> Transformed:
    """What is left of a model. UsageError where nothing is asked for."""
    if what.renumber and what.layers is None:
        raise UsageError("--renumber applies to layers", hint="choose some: --layers 0-15")
    steps: list[Callable[[Checkpoint], Transformed]] = []
    if what.layers is not None:
        steps.append(lambda m: slice_layers(m, what.layers or "", renumber=what.renumber))
    if what.experts is not None:
        steps.append(lambda m: slice_experts(m, what.experts or ""))
    if what.keep or what.drop:
        steps.append(lambda m: _chosen(m, what.keep, what.drop))
    if not steps:
        raise UsageError("nothing selected", hint="say --layers 0-15, --experts 0-3, --keep or --drop")
    done = Transformed(model)
    for step in steps:
        done = done.then(step(done.model))
    return done


def _chosen(model: Checkpoint, keep: Sequence[str], drop: Sequence[str]) -> Transformed:
    """The tensors whose names fit one of `keep` (all, without one) and none of `drop`."""
    names = [e.name for e in model.index]
    for pattern in (*keep, *drop):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"no tensor is called {pattern!r}", hint="a glob, such as '*.mlp.*'; wb inspect lists names"
            )
    gone = frozenset(
        name
        for name in names
        if (keep and not any(fnmatchcase(name, p) for p in keep)) or any(fnmatchcase(name, p) for p in drop)
    )
    kept = with_entries(model, ((e, e.name) for e in model.index if e.name not in gone))
    note = "config and metadata are the whole model's: tensors were chosen by name"
    return Transformed(kept, dropped=tuple(n for n in names if n in gone), notes=(note,))


def _planned(
    model: Checkpoint,
    target: str | os.PathLike[str],
    operate: Callable[[Checkpoint], Transformed],
    to: str | None,
    given: Mapping[str, Any],
    write: WriteOptions,
) -> TransformPlan:
    done = operate(model)
    path = resolve_target(target)
    chosen = choose_target(done.model, target, to or same_format(model, path), given)
    if (size := _shard_size(model, path)) and isinstance(chosen.options, ShardOptions) and not chosen.options.sharded:
        chosen = chosen._replace(options=replace(chosen.options, max_shard_size=size))
    plan = build(done.model, chosen, write)
    plan = replace(plan, losses=(*plan.losses, *slice_losses(model, done)))
    unwritten = done.changed and "config.json" in done.model.texts and not plan.folder
    aside = [f"config.json isn't written beside {path.name}: it would change, too"] if unwritten else []
    report = TransformReport(
        source=str(model.place.path),
        target=str(plan.target),
        tensors=len(done.model.index),
        renamed=done.renamed,
        dropped=done.dropped,
        cut=done.cut,
        changed=done.changed,
        source_bytes=sum(w.stat().st_size for w in model.place.weights),
        bytes=plan.size,
        losses=tuple(f"{x.tensor}: {x.message}" if x.tensor else x.message for x in plan.losses),
        notes=(*done.notes, *aside, *plan.notes),
    )
    return TransformPlan(**{f.name: getattr(plan, f.name) for f in fields(plan)}, report=report)


def _shard_size(model: Checkpoint, target: Path) -> int | None:
    """A set stays a set: its largest file is the bound of the new ones."""
    if len(model.index.files) < 2 or target.suffix:
        return None
    sizes = Counter[int]()
    for entry in model.index:
        sizes[entry.file] += entry.nbytes
    return max(sizes.values(), default=1) or 1
