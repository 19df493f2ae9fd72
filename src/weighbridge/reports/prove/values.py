"""Checks that the tensors of two models differ by no more than their types imply."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.options import Progress
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.models.arch.config import value_at
from weighbridge.models.borrowed_config import read_alike
from weighbridge.models.clients import MLX_LM, MLX_VLM, client_of
from weighbridge.models.mlxlm.towers import ties_output, tower_names
from weighbridge.models.transform.text_config import text_path
from weighbridge.models.wrapped import named_alike, parts_lacking
from weighbridge.reports.diff.model import TensorChange
from weighbridge.reports.diff.report import Comparison, compare, compare_folded, count_unexplained
from weighbridge.reports.prove.bounds import RunBounds, coarser_float, cost, largest_error, run_bounds, type_of
from weighbridge.reports.prove.model import ProveCheck

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel


#: Relative error of tensors computed from a config: programs compute them in f32 or in f64.
_DERIVED_ERROR: Final = 1e-5
_FOLDED: Final = "the same with the model's factors and normalization applied"


@dataclass(frozen=True, slots=True)
class TensorsCompared:
    """The check, the bounds that the types imply for a run, and notes on tensors that weren't compared. `folded`:
    whether weights are the same only with factors of the config multiplied in."""

    check: ProveCheck
    bounds: RunBounds
    notes: tuple[str, ...]
    folded: bool = False


def check(a: OpenModel, b: OpenModel, jobs: int | None, progress: Progress | None) -> TensorsCompared:
    """Compares the values of all tensors, under canonical names if the names differ."""
    for_mlx = client_of(a) in (MLX_LM, MLX_VLM), client_of(b) in (MLX_LM, MLX_VLM)
    a, b = read_alike(*named_alike(a, b))
    parts = parts_lacking(a, b)
    missing = _without_place(a, b, for_mlx)
    judged = _judge(compare(a, b, jobs=jobs, progress=progress), missing)
    unused = _unused(a) | _unused(b)
    if judged.faults and unused:
        with suppress(WeighbridgeError):  # one whose names its table doesn't have
            apart = _judge(compare(a, b, names="canonical", jobs=jobs, progress=progress), missing | unused)
            judged = apart if len(apart.faults) < len(judged.faults) else judged
    folded: tuple[str, ...] = ()
    if judged.faults and (second := compare_folded(a, b, jobs=jobs, progress=progress)) is not None:
        again = _judge(second, missing)
        if len(again.faults) < len(judged.faults):
            folded = tuple(f"{name}: {_FOLDED}" for name in judged.names) if not again.faults else ()
            judged = again
    comparison, faults, left_out = judged.comparison, [*judged.faults], judged.left_out
    types = ((type_of(t), t.spec.elements) for view in (comparison.a, comparison.b) for t in view.values())
    bounds = run_bounds(types)
    changes, notes = comparison.tensors, [*parts, *comparison.notes]
    try:
        for config, gguf in ((a, b), (b, a)):
            if gguf.format == "gguf" and config.format != "gguf":
                faults += list(_derived_faults(config, gguf))
    except WeighbridgeError as error:
        notes.append(f"not compared: tensors that follow from the config: {error.message}")
    compared = {*comparison.a, *comparison.b}
    notes += [f"left out: {name} has no place in the target" for name in sorted(left_out & compared - unused)]
    notes += [f"not compared: {name}, which no token uses" for name in sorted(left_out & compared & unused)]
    equal = sum(change.kind in ("equal", "type") for change in changes)
    message = f"{plural(len(changes), 'tensor')}, {equal:,} with equal values"
    if comparison.names == "logical" and comparison.a.keys().isdisjoint(comparison.b) and not (_fits(a) or _fits(b)):
        check = ProveCheck("tensors", "not-checked", "no name is in both, and no table has the names")
    elif faults:
        check = ProveCheck("tensors", "different", f"{message}, {len(faults):,} differ", tuple(faults))
    else:
        worst = max((c.nmse for c in changes if c.kind == "values" and c.nmse is not None), default=0.0)
        message += f", {len(folded):,} {_FOLDED}" if folded else ", the others within their types"
        check = ProveCheck("tensors", "same", message, folded, measures={"worst_nmse": worst})
    return TensorsCompared(check, bounds, tuple(notes), bool(folded))


def _fits(model: OpenModel) -> bool:
    """Whether a table has the model's names. If it has those of one model, the other is damaged or another one."""
    with suppress(WeighbridgeError):
        return bool(model.resolved.canonical)
    return False


def _unused(model: OpenModel) -> frozenset[str]:
    with suppress(WeighbridgeError):
        return model.resolved.unused
    return frozenset()


class _Judged(NamedTuple):
    """A comparison, and its tensors that differ by more than their types imply. `left_out`: of those that have no place
    in one of the forms, the names here."""

    comparison: Comparison
    names: tuple[str, ...]
    faults: tuple[str, ...]
    left_out: frozenset[str]


def _judge(comparison: Comparison, missing: frozenset[str]) -> _Judged:
    left_out = missing if comparison.names == "canonical" else frozenset()
    rows = [(c.name, fault) for c in comparison.tensors if c.name not in left_out and (fault := _fault(c, comparison))]
    return _Judged(comparison, tuple(name for name, _ in rows), tuple(fault for _, fault in rows), left_out)


def _without_place(a: OpenModel, b: OpenModel, for_mlx: tuple[bool, bool]) -> frozenset[str]:
    """Returns the canonical names of tensors that the family has in only one of the two forms. `for_mlx`: whether each
    is in MLX's form, in which a family may have the names of Hugging Face."""
    names: set[str] = set()
    for source, target, to_mlx in ((a, b, for_mlx[1]), (b, a, for_mlx[0])):
        with suppress(WeighbridgeError):
            dialect = "mlx" if to_mlx else target.dialect
            lost = source.family.unmapped_roles(dialect, source.sizes, source.roles)
            names.update(source.family.holding("canonical", source.sizes, source.resolved.canonical, lost))
        with suppress(WeighbridgeError):
            if to_mlx:
                names.update(_unread_by_mlx_vlm(source))
    return frozenset(names)


def _unread_by_mlx_vlm(source: OpenModel) -> set[str]:
    """Returns the names, in a comparison, of the tensors that mlx-vlm's class of a model drops."""
    towers = tower_names(source.config)
    if towers is None:
        return set()
    resolved = source.resolved
    places = source.family.expansion(source.dialect, source.sizes, resolved.prefix).places
    text = value_at(source.config, text_path(source))
    named = {towers.to_mlx(name): name for name in source.logical}
    tied = towers.tied_outputs(named, ties_output(source))
    unread = [old for name, old in named.items() if name in tied or towers.is_unread(name, text)]
    lost = [instance for name in unread if name in places for instance in places[name].instances]
    others = [name for name in unread if name in resolved.others]
    canonical = source.family.holding("canonical", source.sizes, resolved.canonical, lost)
    return {*canonical, *others, *map(towers.to_mlx, others)}


def _derived_faults(config: OpenModel, gguf: OpenModel) -> Iterator[str]:
    """Yields the faults of a GGUF's tensors that follow from the other model's config."""
    import numpy as np

    from weighbridge.tensors.nodes import as_node

    expected = config.family.derived("gguf", config.sizes)
    stored = {instance: node for instance, node in gguf.roles.items() if gguf.family.rows[instance[0]].derived}
    for instance in expected.keys() | stored.keys():
        pair = [as_node(side[instance]).read_all().view("<f4") for side in (expected, stored) if instance in side]
        if len(pair) < 2:
            yield f"{instance[0]}: {'missing' if instance in expected else 'not in the source'}"
        elif not np.allclose(pair[0], pair[1], rtol=_DERIVED_ERROR, atol=0):
            yield f"{instance[0]}: other values than the config implies"


def _fault(change: TensorChange, comparison: Comparison) -> str:
    """Returns the fault of a tensor; empty if there is none."""
    if change.kind in ("equal", "type"):
        return ""
    if change.kind != "values":
        return f"{change.name}: {change.kind.replace('only in a', 'missing').replace('only in b', 'not in the source')}"
    error = change.nmse if change.nmse is not None else math.inf
    x, y = comparison.a[change.name], comparison.b[change.name]
    source, target = type_of(x), type_of(y)
    bound = largest_error(source, target)
    rounded = coarser_float(source, target)
    if rounded is None or not cost(rounded.name):
        wrong = "" if error <= bound else f"NMSE {error:.3g}, {source} to {target} explains {bound:.3g}"
    else:
        count = 0 if change.broken else count_unexplained(x, y, rounded)
        wrong = f"{plural(count, 'value')} differ by more than rounding to {rounded}, NMSE {error:.3g}" if count else ""
    if change.broken:
        wrong += f"{', ' if wrong else ''}{plural(change.broken, 'value', 'are')} NaN or Inf on one side"
    return f"{change.name}: {wrong}" if wrong else ""
