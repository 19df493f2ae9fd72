"""Plans `wb strip`: writes a training checkpoint's weights and reports every part that is removed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, fields, replace
from types import MappingProxyType
from typing import Any

from weighbridge.base.records import dataclass
from weighbridge.conversion.options import TargetOptions, WriteOptions
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target
from weighbridge.models.locate import is_training
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.training_parts import Extra, averages_of, judge, left_out, with_parts


@dataclass(frozen=True)
class StripReport:
    """The outcome of `wb strip`. Sizes in bytes; `saved` compares the files."""

    source: str
    target: str
    tensors: int
    wrapper: str
    dropped: tuple[Dropped, ...]
    ema_used: int
    source_bytes: int
    bytes: int
    saved: int
    notes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    schema: str = "weighbridge/strip/1"


@dataclass(frozen=True, repr=False)
class StripPlan(Plan):
    """The plan to write the weights, and a report of the removed parts."""

    report: StripReport = field(kw_only=True)


def plan_strip(
    model: OpenModel,
    target: str | os.PathLike[str],
    to: str | TargetOptions | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
    write: WriteOptions = WriteOptions(),
    *,
    keep_ema: bool = False,
    ema_as_weights: bool = False,
) -> StripPlan:
    """Plans to write only the weights. `given`: options of the target by name."""
    judged = judge(model.index)
    bare = with_parts(model, judged, keep_ema=keep_ema, ema_as_weights=ema_as_weights)
    plan = build(bare, choose_target(bare, target, to, given), write)
    plan = replace(plan, files=tuple(f for f in plan.files if not is_training(f.name)))
    used = len(averages_of(model.index, judged)) if ema_as_weights else 0
    stored = {Extra.WEIGHTS, *([Extra.EMA] if keep_ema else [])}
    paths = sorted(model.place.folder.iterdir()) if model.place.path.is_dir() else ()
    # the files of a training run in the folder, which aren't copied
    run_files = [p for p in paths if p.is_file() and is_training(p.name)]
    files = [Dropped(p.name, "file", "a training run's own file", 0, p.stat().st_size) for p in run_files]
    dropped = (*left_out(model.index, judged, stored), *files)
    before = sum(w.stat().st_size for w in model.place.weights) + sum(f.bytes for f in files)
    report = StripReport(
        source=str(model.place.path),
        target=str(plan.target),
        tensors=len(bare.index),
        wrapper=judged.wrapper,
        dropped=dropped,
        ema_used=used,
        source_bytes=before,
        bytes=plan.size,
        saved=before - plan.size,
        notes=() if dropped else ("nothing to remove",),
        losses=tuple(f"{x.tensor}: {x.message}" if x.tensor else x.message for x in plan.losses),
    )
    return StripPlan(**{f.name: getattr(plan, f.name) for f in fields(plan)}, report=report)
