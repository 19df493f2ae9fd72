"""The parts of a PyTorch training checkpoint: the model's weights, and the data that only training needs (optimizer,
averages, random states, schedulers, histories). Functions take an index and return one with fewer entries.

Tables identify each part: by its key, by its structure (`state` and `param_groups` are an optimizer under any name),
or by the last component of a tensor's name (`exp_avg`). The rest are weights."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.formats import DISTRIBUTED, PYTORCH
from weighbridge.containers.torch.tree import read_tree
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped, RenamedTensors
from weighbridge.unpickle.tree import Gap, TensorLeaf


class Extra(StrEnum):
    """The kinds of parts of a checkpoint."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    EMA = "ema"
    SCHEDULER = "scheduler"
    RNG = "random state"
    SCALER = "loss scaler"
    HISTORY = "history"


# Keys at the top of a checkpoint, in lower case, as used by Lightning, fairseq, timm, Detectron, DeepSpeed, CompVis,
# EDM, accelerate, torchtitan and torch's tutorials.
KEYS: Final = MappingProxyType({
    **dict.fromkeys((
        "optimizer", "optimizers", "optim", "opt", "opt_state", "optimizer_state", "optimizer_states",
        "optimizer_state_dict", "optim_state_dict", "optimizer_dict", "last_optimizer_state", "optimizer_history",
    ), Extra.OPTIMIZER),
    **dict.fromkeys((
        "ema", "ema_model", "model_ema", "ema_state_dict", "state_dict_ema", "params_ema", "ema_params",
        "ema_weights", "shadow_params", "g_ema", "averaged_model", "swa_model", "ema_state",
    ), Extra.EMA),
    **dict.fromkeys((
        "scheduler", "schedulers", "lr_scheduler", "lr_schedulers", "scheduler_state_dict", "lr_scheduler_state_dict",
        "lr_sched", "sched", "scheduler_state",
    ), Extra.SCHEDULER),
    **dict.fromkeys((
        "rng", "rng_state", "rng_states", "cuda_rng_state", "cuda_rng_states", "cuda_rng_state_all",
        "torch_rng_state", "cpu_rng_state", "numpy_rng_state", "np_rng_state", "random_rng_state", "random_states",
        "random_state", "python_rng_state", "torch_cuda_manual_seed",
    ), Extra.RNG),
    **dict.fromkeys((
        "scaler", "grad_scaler", "amp", "amp_scaler", "loss_scaler", "scaler_state_dict",
    ), Extra.SCALER),
    **dict.fromkeys((
        "loss", "losses", "loss_history", "train_loss", "train_losses", "val_loss", "val_losses", "history",
        "metrics", "callbacks", "loops", "best_loss", "best_acc", "best_metric", "extra_state", "train_state",
    ), Extra.HISTORY),
})  # fmt: skip
# The last component of tensor names if an optimizer's state is stored next to the weights under their names.
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
# The parts that a prefix of a flat name can identify; other prefixes (`loss.`) may belong to a module.
_FLAT: Final = frozenset({Extra.OPTIMIZER, Extra.EMA})
_SQUASHED: Final = ("", "model.")  # CompVis's LitEma removes the dots from names, and this prefix


class Judgement(NamedTuple):
    """The part that a tensor belongs to, the name of that part, and the evidence."""

    part: Extra
    group: str
    why: str


_KEPT: Final = Judgement(Extra.WEIGHTS, "", "")


class Classification(NamedTuple):
    """Every tensor's judgement; the key of the only dict with weights, if there is one; the top dict of a PyTorch
    file."""

    verdicts: Mapping[str, Judgement]
    wrapper: str
    top: Mapping[Any, Any] = MappingProxyType({})


# ------------------------------------------------------------------------------------------------ classification


def judge(index: Index) -> Classification:
    """Decides which tensors are weights, and which part the others belong to."""
    if index.format not in PYTORCH or len(index.files) == 0:
        return Classification({e.name: _by_name(e.name, flat=True) for e in index}, "")
    value = read_tree(index)
    parts = value if isinstance(value, dict) else {}
    whole = _by_shape("", parts)
    if whole is not None:  # optimizer.pt
        return Classification({e.name: whole for e in index}, "", parts)
    ordered = sorted(e.name for e in index)
    names = {str(key): _names(str(key), inside, ordered) for key, inside in parts.items()}
    # In a flat dict, each key is a tensor's name.
    nested = any(names[str(key)] and not isinstance(inside, TensorLeaf) for key, inside in parts.items())
    verdicts: dict[str, Judgement] = {}
    for key, inside in ((str(key), inside) for key, inside in parts.items()):
        kind = KEYS.get(key.lower()) if nested else None
        part = _by_shape(key, inside) if kind is None else Judgement(kind, key, f"the key {key!r}")
        flat = isinstance(inside, TensorLeaf)
        verdicts |= {name: part or _by_name(name, flat=flat, inside=key) for name in names[key]}
    heads = {key for key, tensors in names.items() if any(verdicts[n].part is Extra.WEIGHTS for n in tensors)}
    wrapper = heads.pop() if len(heads) == 1 and nested else ""
    return Classification({e.name: verdicts.get(e.name, _KEPT) for e in index}, wrapper, parts)


def _names(key: str, inside: Any, ordered: Sequence[str]) -> list[str]:
    """Returns the tensor names in one entry of the top dict. An object that was saved whole (a module) has the names
    with its prefix. `ordered`: all names, sorted."""
    if isinstance(inside, Gap):
        return list(ordered[bisect_left(ordered, f"{key}.") : bisect_left(ordered, f"{key}/")])  # `/` follows `.`
    return list(leaves(inside))


def leaves(value: Any) -> Iterator[str]:
    """Yields the names of the tensors in a nested value."""
    if isinstance(value, TensorLeaf):
        yield value.name
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)


def _by_shape(key: str, value: Any) -> Judgement | None:
    """Recognises a part by the keys of its dict; a list of such dicts (Lightning) counts as one."""
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


def model_parts(model: OpenModel, *, ema: bool = False) -> OpenModel:
    """Reduces a training checkpoint to its weights, without the key that holds them all, or to their averages;
    `left_out` lists the rest. Returns any other file unchanged, including one without weights (an optimizer). Raises
    UsageError if averages are requested but missing."""
    index = model.index
    judged = judge(index) if not model.place.trainer and _may_be_nested(index) else None
    if judged is None or not any(v.part is Extra.WEIGHTS for v in judged.verdicts.values()):
        if ema:
            raise UsageError(f"{model.place.path} has no averaged (EMA) weights of a training checkpoint")
        return model
    kept = {name for name, verdict in judged.verdicts.items() if verdict.part is Extra.WEIGHTS}
    fronts = {name.partition(".")[0] for name in kept}
    dropped = tuple(d for d in left_out(index, judged, {Extra.WEIGHTS}) if d.tensors or d.name not in fronts)
    if not (dropped or judged.wrapper or ema):
        return model
    bare = with_parts(model, judged, ema_as_weights=ema)
    weights = replace(
        bare.index,
        metadata={_name(k, judged): v for k, v in index.metadata.items() if k.partition(".")[0] in fronts},
        findings=tuple(f for f in index.findings if f.tensor not in judged.verdicts or f.tensor in kept),
    )
    place = model.place
    if ema and (latest := kept - averages_of(index, judged).keys()):
        note = f"{plural(len(latest), 'weight')} without an average: the latest values are used, such as {min(latest)}"
        place = replace(place, notes=(*place.notes, note))
    return replace(bare, index=weights, left_out=dropped, place=place)


def is_training_checkpoint(index: Index) -> bool:
    """Whether a file has parts besides the model's weights, or nests these under a key."""
    judged = judge(index) if _may_be_nested(index) else None
    return judged is not None and bool(judged.wrapper or left_out(index, judged, {Extra.WEIGHTS}))


def _may_be_nested(index: Index) -> bool:
    """Whether the names allow for a training checkpoint: a quick check before the pickle is read a second time."""
    if index.format not in PYTORCH or (len(index.files) != 1 and index.format != DISTRIBUTED):
        return False
    fronts = {e.name.partition(".")[0] for e in index}
    moments = any(e.name.rpartition(".")[2] in MOMENTS for e in index)
    return len(fronts) == 1 or bool(index.metadata) or moments or any(front.lower() in KEYS for front in fronts)


def with_parts(
    model: OpenModel, judged: Classification, *, keep_ema: bool = False, ema_as_weights: bool = False
) -> OpenModel:
    """Returns the model with its weights only. Raises UsageError if there are none, or if averages are requested but
    missing."""
    index = model.index
    keep = {Extra.WEIGHTS, *([Extra.EMA] if keep_ema else [])}
    entries = [e for e in index if judged.verdicts[e.name].part in keep]
    if not any(judged.verdicts[e.name].part is Extra.WEIGHTS for e in entries):
        parts = ", ".join(sorted({v.part.value for v in judged.verdicts.values()})) or "nothing"
        raise UsageError(f"the file contains no model weights, only {parts}")
    swaps = averages_of(index, judged) if ema_as_weights else {}
    chosen = [(swaps.get(e.name, e), _name(e.name, judged)) for e in entries]
    named = [msgspec.structs.replace(entry, name=name) for entry, name in chosen]
    findings = tuple(
        f for f in index.findings if f.tensor is not None and f.tensor.partition(".")[0].lower() not in KEYS
    )
    metadata = {} if index.format in PYTORCH else index.metadata
    kept = replace(index, entries=tuple(named), metadata=metadata, findings=findings)
    nodes = None if model.nodes is None else RenamedTensors(model.nodes, {name: e.name for e, name in chosen})
    return replace(model, index=kept, nodes=nodes)


def _name(name: str, judged: Classification) -> str:
    return name.removeprefix(f"{judged.wrapper}.") if judged.wrapper else name


def averages_of(index: Index, judged: Classification) -> dict[str, Entry]:
    """Returns the averaged tensor of each weight that has one. Raises UsageError without averages, and
    UnsupportedError if their names don't match."""
    averages = {
        e.name.removeprefix(f"{v.group}."): e for e in index if (v := judged.verdicts[e.name]).part is Extra.EMA
    }
    if not averages:
        raise UsageError("the checkpoint contains no averaged (EMA) weights")
    matched: dict[str, Entry] = {}
    for entry in index:
        if judged.verdicts[entry.name].part is not Extra.WEIGHTS:
            continue
        name = _name(entry.name, judged)
        spellings = (
            *(name, f"module.{name}", f"model.{name}", f"module.model.{name}", name.removeprefix("module.")),
            name.partition(".")[2],  # without a wrapper of only the weights, such as Lightning's
            *(name.removeprefix(front).replace(".", "") for front in _SQUASHED),
        )
        average = next((averages[n] for n in spellings if n in averages), None)
        if average is not None and average.shape == entry.shape:
            matched[entry.name] = average
    if not matched:
        raise UnsupportedError(
            "the averaged weights' names don't match the weights' names", hint="wb strip --keep-ema writes both"
        )
    return matched


def left_out(index: Index, judged: Classification, kept: Collection[Extra]) -> tuple[Dropped, ...]:
    """Returns everything outside the parts `kept`: tensors by part, then the values next to them in a PyTorch file (an
    epoch, a loss, hyperparameters)."""
    groups: dict[Judgement, list[Entry]] = {}
    for entry in index:
        groups.setdefault(judged.verdicts[entry.name], []).append(entry)
    dropped = [
        Dropped(verdict.group, verdict.part.value, verdict.why, len(entries), sum(e.spec.nbytes for e in entries))
        for verdict, entries in groups.items()
        if verdict.part not in kept
    ]
    if index.format not in PYTORCH:
        return tuple(dropped)
    listed = {judged.wrapper, *(d.name for d in dropped)}
    ordered = sorted(judged.verdicts)
    without_tensors = (str(key) for key, inside in judged.top.items() if not _names(str(key), inside, ordered))
    for key in dict.fromkeys((*(key.partition(".")[0] for key in index.metadata), *without_tensors)):
        if key in listed:
            continue
        part = _by_shape(key, judged.top.get(key))
        if key.lower() in KEYS:
            part = Judgement(KEYS[key.lower()], key, f"the key {key!r}")
        kind, evidence = (part.part.value, part.why) if part else ("value", "it isn't a tensor")
        dropped.append(Dropped(key, kind, evidence, 0, 0))
    return tuple(dropped)
