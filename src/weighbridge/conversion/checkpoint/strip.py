"""Removes training-only parts from a checkpoint: optimizer, averages, random states, schedulers, histories. An index
goes in, an index with fewer entries comes out, and any conversion writes it.

Tables identify each part: by its key, by its structure (`state` and `param_groups` are an optimizer under any name),
or by the last component of a tensor's name (`exp_avg`). The rest are weights.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers.base import Entry, Finding, Index
from weighbridge.containers.torch.tree import FORMATS, read_tree
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.locate import is_training
from weighbridge.unpickle.tree import Gap, TensorLeaf


class Extra(StrEnum):
    """What a part of a checkpoint is."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    EMA = "ema"
    SCHEDULER = "scheduler"
    RNG = "random state"
    SCALER = "loss scaler"
    HISTORY = "history"


def _keys(part: Extra, *names: str) -> dict[str, Extra]:
    return dict.fromkeys(names, part)


# Keys at the top of a checkpoint, in lower case, as Lightning, fairseq, timm, Detectron, DeepSpeed, CompVis, EDM,
# accelerate and torch's tutorials name them.
KEYS: Final = MappingProxyType(
    _keys(Extra.OPTIMIZER, "optimizer", "optimizers", "optim", "opt", "opt_state", "optimizer_state",
          "optimizer_states",
          "optimizer_state_dict", "optim_state_dict", "optimizer_dict", "last_optimizer_state", "optimizer_history")
    | _keys(Extra.EMA, "ema", "ema_model", "model_ema", "ema_state_dict", "state_dict_ema", "params_ema", "ema_params",
            "ema_weights", "shadow_params", "g_ema", "averaged_model", "swa_model", "ema_state")
    | _keys(Extra.SCHEDULER, "scheduler", "schedulers", "lr_scheduler", "lr_schedulers", "scheduler_state_dict",
            "lr_scheduler_state_dict", "lr_sched", "sched", "scheduler_state")
    | _keys(Extra.RNG, "rng", "rng_state", "rng_states", "cuda_rng_state", "cuda_rng_states", "cuda_rng_state_all",
            "torch_rng_state", "cpu_rng_state", "numpy_rng_state", "np_rng_state", "random_rng_state", "random_states",
            "random_state", "python_rng_state", "torch_cuda_manual_seed")
    | _keys(Extra.SCALER, "scaler", "grad_scaler", "amp", "amp_scaler", "loss_scaler", "scaler_state_dict")
    | _keys(Extra.HISTORY, "loss", "losses", "loss_history", "train_loss", "train_losses", "val_loss", "val_losses",
            "history", "metrics", "callbacks", "loops", "best_loss", "best_acc", "best_metric", "extra_state")
)  # fmt: skip
# The last component of a tensor's name, where an optimizer's state is stored next to the weights under their names.
MOMENTS: Final = frozenset(
    {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "exp_inf",
     "master_param", "fp32_param", "exp_avg_sq_row", "exp_avg_sq_col"}
)  # fmt: skip
# Keys that together identify a dict.
SHAPES: Final = (
    (frozenset({"state", "param_groups"}), Extra.OPTIMIZER),
    (frozenset({"last_epoch", "_step_count"}), Extra.SCHEDULER),
    (frozenset({"scale", "growth_factor", "backoff_factor"}), Extra.SCALER),
)
# With flat names, these prefixes identify a part; others (`loss.`) may belong to a module.
_FLAT: Final = frozenset({Extra.OPTIMIZER, Extra.EMA})
_SQUASHED: Final = ("", "model.")  # CompVis's LitEma removes the dots from names, and this prefix


@dataclass(frozen=True)
class Dropped:
    """A removed part: its name, what it is, and its size. A part without tensors is plain values, such as an epoch."""

    name: str
    part: str
    why: str
    tensors: int
    bytes: int


@dataclass(frozen=True)
class StripReport:
    """What `wb strip` did, or would do. Sizes in bytes; `saved` compares the files."""

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


class Judgement(NamedTuple):
    """The part that a tensor belongs to, the name of that part, and the evidence."""

    part: Extra
    group: str
    why: str


_KEPT: Final = Judgement(Extra.WEIGHTS, "", "")


class Classification(NamedTuple):
    """Every tensor's verdict, and the key of the one dict that contains all weights, if there is one."""

    verdicts: Mapping[str, Judgement]
    wrapper: str


# ------------------------------------------------------------------------------------------------ classification


def judge(index: Index) -> Classification:
    """Which tensors are weights, and what the others are."""
    if index.format not in FORMATS or len(index.files) == 0:
        return Classification({e.name: _by_name(e.name, flat=True) for e in index}, "")
    value = read_tree(index.files[0], index.format)
    parts = value if isinstance(value, dict) else {}
    whole = _by_shape("", parts)
    if whole is not None:  # optimizer.pt
        return Classification({e.name: whole for e in index}, "")
    names = {str(key): _names(str(key), inside, index) for key, inside in parts.items()}
    nested = any(names[str(key)] and not isinstance(inside, TensorLeaf) for key, inside in parts.items())
    verdicts: dict[str, Judgement] = {}
    for key, inside in parts.items():
        verdicts |= _of_part(str(key), inside, names[str(key)], nested)
    heads = {key for key, found in names.items() if any(verdicts[n].part is Extra.WEIGHTS for n in found)}
    wrapper = heads.pop() if len(heads) == 1 and nested else ""
    return Classification({e.name: verdicts.get(e.name, _KEPT) for e in index}, wrapper)


def _names(key: str, inside: Any, index: Index) -> list[str]:
    """The tensor names in one entry of the top dict; for an object saved whole (a module), the names its parts have
    in the index."""
    if isinstance(inside, Gap):
        return [e.name for e in index if e.name.startswith(f"{key}.")]
    return list(leaves(inside))


def _of_part(key: str, inside: Any, names: Iterable[str], nested: bool) -> dict[str, Judgement]:
    """The verdicts for the tensors `names` of one entry of the top dict. If that is flat, each key is just a
    tensor's name."""
    by_key = KEYS.get(key.lower()) if nested else None
    found = _by_shape(key, inside) if by_key is None else Judgement(by_key, key, f"the key {key!r}")
    alone = isinstance(inside, TensorLeaf)
    return {name: found or _by_name(name, flat=alone, inside=key) for name in names}


def leaves(value: Any) -> Iterator[str]:
    """The names of the tensors in a nested value."""
    if isinstance(value, TensorLeaf):
        yield value.name
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)


def _by_shape(key: str, value: Any) -> Judgement | None:
    """What a dict is, by its keys; a list of such dicts (Lightning) counts as one."""
    first = value[0] if isinstance(value, list | tuple) and value else value
    keys = first.keys() if isinstance(first, dict) else frozenset()
    for shape, part in SHAPES:
        if shape <= keys:
            return Judgement(part, key, f"it has {' and '.join(sorted(shape))}")
    return None


def _by_name(name: str, *, flat: bool = False, inside: str = "") -> Judgement:
    last = name.rpartition(".")[2]
    if last in MOMENTS:
        return Judgement(Extra.OPTIMIZER, f"*.{last}", f"names that end in {last}")
    front = (name if flat else name.removeprefix(f"{inside}.")).partition(".")[0]
    part = KEYS.get(front.lower())
    if part in _FLAT and front != name:
        group = front if flat else f"{inside}.{front}"
        return Judgement(part, group, f"names that begin with {front}.")
    return _KEPT


# ------------------------------------------------------------------------------------------------ selection


def stripped(index: Index, judged: Classification, *, keep_ema: bool = False, ema_as_weights: bool = False) -> Index:
    """The index of what is kept. UsageError if nothing is, or if averages are requested but missing."""
    keep = {Extra.WEIGHTS, *([Extra.EMA] if keep_ema else [])}
    entries = [e for e in index if judged.verdicts[e.name].part in keep]
    if not any(judged.verdicts[e.name].part is Extra.WEIGHTS for e in entries):
        parts = ", ".join(sorted({v.part.value for v in judged.verdicts.values()})) or "nothing"
        raise UsageError(f"the file contains no model weights, only {parts}")
    swaps = _averages(index, judged) if ema_as_weights else {}
    named = [msgspec.structs.replace(swaps.get(e.name, e), name=_name(e.name, judged)) for e in entries]
    findings = tuple(f for f in index.findings if f.tensor is not None and _concerns(f, judged))
    metadata = {} if index.format in FORMATS else index.metadata
    return replace(index, entries=tuple(named), metadata=metadata, findings=findings)


def _name(name: str, judged: Classification) -> str:
    return name.removeprefix(f"{judged.wrapper}.") if judged.wrapper else name


def _concerns(finding: Finding, judged: Classification) -> bool:
    """Whether a finding is about weights."""
    front = str(finding.tensor).partition(".")[0]
    return front.lower() not in KEYS


def _averages(index: Index, judged: Classification) -> dict[str, Entry]:
    """The averaged tensor for each weight that has one."""
    averages = {
        e.name.removeprefix(f"{v.group}."): e for e in index if (v := judged.verdicts[e.name]).part is Extra.EMA
    }
    if not averages:
        raise UsageError("the checkpoint contains no averaged (EMA) weights")
    found: dict[str, Entry] = {}
    for entry in index:
        if judged.verdicts[entry.name].part is not Extra.WEIGHTS:
            continue
        name = _name(entry.name, judged)
        other = next((averages[n] for n in _spellings(name) if n in averages), None)
        if other is not None and other.shape == entry.shape:
            found[entry.name] = other
    if not found:
        raise UnsupportedError(
            "the averaged weights' names don't match the weights' names", hint="keep them: --keep-ema"
        )
    return found


def _spellings(name: str) -> Iterator[str]:
    """Possible names of the average of the weight `name`."""
    yield from (name, f"module.{name}", f"model.{name}", f"module.model.{name}", name.removeprefix("module."))
    yield from (name.removeprefix(front).replace(".", "") for front in _SQUASHED)


# ------------------------------------------------------------------------------------------------ plan


@dataclass(frozen=True, repr=False)
class StripPlan(Plan):
    """The plan to write the weights, and what it removes."""

    report: StripReport = field(kw_only=True)


def plan_strip(
    model: Checkpoint,
    target: str | os.PathLike[str],
    to: str | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
    write: WriteOptions = WriteOptions(),
    *,
    keep_ema: bool = False,
    ema_as_weights: bool = False,
) -> StripPlan:
    """Plans to write only the weights. `given`: options of the target by name."""
    judged = judge(model.index)
    kept = stripped(model.index, judged, keep_ema=keep_ema, ema_as_weights=ema_as_weights)
    bare = replace(model, index=kept)
    plan = build(bare, choose_target(bare, target, to, given), write)
    plan = replace(plan, files=tuple(f for f in plan.files if not is_training(f.name)))
    used = len(_averages(model.index, judged)) if ema_as_weights else 0
    stored = {Extra.WEIGHTS, *([Extra.EMA] if keep_ema else [])}
    files = _files(model) if model.place.path.is_dir() else ()
    dropped = (*_dropped(model.index, judged, stored), *files)
    dropped += tuple(_values(model.index, {judged.wrapper, *(d.name for d in dropped)}))
    before = sum(w.stat().st_size for w in model.place.weights) + sum(f.bytes for f in files)
    report = StripReport(
        source=str(model.place.path),
        target=str(plan.target),
        tensors=len(kept),
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


def _dropped(index: Index, judged: Classification, stored: set[Extra]) -> Iterator[Dropped]:
    groups: dict[Judgement, list[Entry]] = {}
    for entry in index:
        groups.setdefault(judged.verdicts[entry.name], []).append(entry)
    for verdict, entries in groups.items():
        if verdict.part not in stored:
            total = sum(e.spec.nbytes for e in entries)
            yield Dropped(verdict.group, verdict.part.value, verdict.why, len(entries), total)


def _values(index: Index, listed: Collection[str]) -> Iterator[Dropped]:
    """The values beside the tensors of a PyTorch file, which are not written: an epoch, a loss, hyperparameters."""
    if index.format not in FORMATS or not index.files:
        return
    parts = read_tree(index.files[0], index.format)
    for key in dict.fromkeys(key.partition(".")[0] for key in index.metadata):
        if key in listed:
            continue
        found = _by_shape(key, parts.get(key)) if isinstance(parts, dict) else None
        if key.lower() in KEYS:
            found = Judgement(KEYS[key.lower()], key, f"the key {key!r}")
        yield Dropped(key, found.part.value if found else "value", found.why if found else "it is no tensor", 0, 0)


def _files(model: Checkpoint) -> tuple[Dropped, ...]:
    """A training run's own files in the folder, which aren't copied."""
    found = sorted(p for p in model.place.folder.iterdir() if p.is_file() and is_training(p.name))
    return tuple(Dropped(p.name, "file", "a training run's own file", 0, p.stat().st_size) for p in found)
