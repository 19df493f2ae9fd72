"""Removes experts: cuts or drops their tensors, cuts the router's rows, and keeps the config consistent.

The family's table identifies tensors with experts: the index is in the name, the tensor is a stack over it, or its
shape contains the number of experts (a router, its bias).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.containers.gguf.values import KV, kvs
from weighbridge.models.arch.config import value_at, with_part
from weighbridge.models.arch.expand import TensorSlot
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.values import integer
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import (
    KeyChange,
    RenamedTensor,
    ResizedTensor,
    Transformed,
    slots,
    with_config,
    with_entries,
    with_keys,
    with_shapes,
)
from weighbridge.models.transform.layer_stack import parse_numbers
from weighbridge.models.transform.text_config import text_path

_INDEX: Final = "e"  # the symbol of the expert index in tables
# Experts per token, and groups of experts to choose from: both bounded by the number of experts.
_USED: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "expert_used_count")
_GROUPS: Final = ("n_group", "expert_group_count")


class ExpertAxis(NamedTuple):
    """How a tensor contains experts: by the number in its name, or along an axis."""

    place: TensorSlot
    axis: int | None  # None: by name


@dataclass(frozen=True)
class _Experts:
    """A model's experts: their number, the symbol of their index, and the ones to keep."""

    symbol: str
    count: int
    kept: tuple[int, ...]


def slice_experts(model: OpenModel, selection: str) -> Transformed:
    """Returns the model with these experts in every layer (`0-3`; see `parse_numbers`). Raises UnsupportedError if it
    has none, or if a quantized stack isn't stored expert by expert."""
    sizes = model.family.sizes
    symbol = model.family.index.get(_INDEX)
    count = model.sizes.get(symbol) if symbol else None
    if symbol is None or count is None:
        raise UnsupportedError(f"the model has no experts ({model.family.name})")
    # Groups of experts share other modules if the number of these follows from the number of experts.
    texts = [text for index in model.family.index.values() if index != symbol for text in sizes[index].hf]
    if any(key in expression.names(expression.parse(text)) for text in texts for key in sizes[symbol].hf):
        raise UnsupportedError(f"groups of experts share other modules ({model.family.name}): experts can't be removed")
    kept = parse_numbers(selection, count, "expert")
    if len(set(kept)) < len(kept):
        raise UsageError("an expert can't be selected twice: the router would choose it twice")
    experts = _Experts(symbol, count, kept)
    config = _changed_keys(model, experts)
    done = _cut(model, experts)
    if model.format == "gguf":
        declared = kvs(model.metadata)
        front = f"{model.family.gguf}."
        keys = {f"{front}{key}": KV(declared[f"{front}{key}"].type, value) for key, value in config.items()}
        keyed, changes = with_keys(done.model, keys)
        return replace(done, model=keyed, changed=changes)
    path = text_path(model, tuple(config))
    part = value_at(model.config, path)
    changes = tuple(KeyChange(k, part.get(k), v) for k, v in config.items() if part.get(k) != v)
    new = with_part(model.config, path, {**part, **config})
    return replace(done, model=with_config(done.model, new, changes), changed=changes)


# ------------------------------------------------------------------------------------------------ config and keys


def _changed_keys(model: OpenModel, experts: _Experts) -> dict[str, Any]:
    """Returns the keys that change with fewer experts; those of a GGUF without the architecture prefix."""
    size = model.family.sizes[experts.symbol]
    if model.format == "gguf":
        names, front = size.gguf, f"{model.family.gguf}."
        keys = [key for key in model.metadata if key.startswith(front)]
        declared = {key.removeprefix(front): model.metadata[key] for key in keys}
    else:
        names, declared = size.hf, dict(model.family.effective(model.config))
    stated = [name for name in names if declared.get(name) is not None] or list(names[:1])
    out: dict[str, Any] = dict.fromkeys(stated, len(experts.kept))
    for key in _USED:
        if declared.get(key) is not None:
            out[key] = min(integer(declared[key], key, 1), len(experts.kept))
    for key in _GROUPS:
        if (groups := declared.get(key)) is not None and integer(groups, key) > 1:
            # The router chooses among groups of experts: every group must keep equally many, in order.
            each, share = experts.count // groups, len(experts.kept) // groups
            if [n // each for n in experts.kept] != [g for g in range(groups) for _ in range(share)]:
                raise UsageError(
                    f"the router chooses among {groups} groups of {each} experts ({key}): "
                    "every group must keep equally many",
                    hint=", ".join(f"{g * each}-{g * each + max(each // 2, 1) - 1}" for g in range(groups)),
                )
    return out


# ------------------------------------------------------------------------------------------------ tensors


def _cut(model: OpenModel, experts: _Experts) -> Transformed:
    from weighbridge.tensors.slicing import take

    axes = _expert_axes(model, experts)
    new = {old: at for at, old in enumerate(experts.kept)}
    entries, gone = [], []
    for entry in model.index:
        part = axes.get(entry.name)
        if part is None or part.axis is not None:
            entries.append((entry, entry.name))
        elif (number := part.place.named[part.place.indices.index(_INDEX)]) in new:
            module = part.place.name.removesuffix(".weight")
            renumbered = part.place.renumbered(_INDEX, new[number]).removesuffix(".weight")
            entries.append((entry, renumbered + entry.name[len(module) :]))
        else:
            gone.append(entry.name)
    renamed = tuple(RenamedTensor((e.name,), name) for e, name in entries if e.name != name)
    done = with_entries(model, entries)
    nodes, resized = dict(done.stored), []
    for name in (entry.name for entry in model.index):
        if name not in axes or (axis := axes[name].axis) is None:
            continue
        node = nodes[name]
        if len(node.spec.shape) <= axis or node.spec.shape[axis] % experts.count:
            raise UnsupportedError(
                f"{name} {list(node.spec.shape)} doesn't store its {experts.count} experts one by one on axis {axis}",
                hint="decode it first: wb convert SRC DST --dtype bf16",
            )
        unit = node.spec.shape[axis] // experts.count
        nodes[name] = take(node, axis, [(n * unit, (n + 1) * unit) for n in experts.kept])
        resized.append(ResizedTensor(name, node.spec.shape, nodes[name].spec.shape))
    return Transformed(with_shapes(done, nodes) if resized else done, renamed, tuple(gone), tuple(resized))


def _expert_axes(model: OpenModel, experts: _Experts) -> dict[str, ExpertAxis]:
    """Returns the stored tensors with experts. The members of a packed tensor have the expert axis of the tensor."""
    places = slots(model)
    axes = {name: part for name, place in places.items() if (part := _expert_axis(model, place, experts)) is not None}
    modules = {name.removesuffix(".weight"): part for name, part in axes.items()}
    out = {}
    for entry in model.index:
        owners = [entry.name]  # then the modules that it may belong to, unless the table has it (a router's scale)
        while entry.name not in places and "." in owners[-1]:
            owners.append(owners[-1].rpartition(".")[0])
        part = next((part for owner in owners if (part := axes.get(owner) or modules.get(owner))), None)
        if part is not None:
            out[entry.name] = part
    return out


def _expert_axis(model: OpenModel, place: TensorSlot, experts: _Experts) -> ExpertAxis | None:
    if _INDEX in place.indices[: len(place.named)]:
        return ExpertAxis(place, None)
    stacked: Sequence[str] = place.indices[len(place.named) :]
    if _INDEX in stacked:
        return ExpertAxis(place, stacked.index(_INDEX))
    row = model.family.rows[place.roles[0]]
    if experts.symbol not in row.shape:
        return None
    axis = row.shape.index(experts.symbol)
    return ExpertAxis(place, len(stacked) + (len(row.shape) - 1 - axis if row.transposed(model.dialect) else axis))
