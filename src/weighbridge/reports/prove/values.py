"""The tensors of two models, and whether each differs by no more than its type implies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.reports.diff.report import Comparison, Progress, TensorChange, compare
from weighbridge.reports.prove.bounds import RunBounds, largest_error, run_bounds, type_of
from weighbridge.reports.prove.model import ProveCheck

if TYPE_CHECKING:
    from weighbridge.models.checkpoint import Checkpoint


#: Relative error of what is computed from a config: programs compute it in f32 or in f64.
_DERIVED_ERROR: Final = 1e-5


@dataclass(frozen=True, slots=True)
class TensorsCompared:
    """The check, the bounds that the types imply for a run, and what isn't compared."""

    check: ProveCheck
    bounds: RunBounds
    notes: tuple[str, ...]


def check(a: Checkpoint, b: Checkpoint, jobs: int | None, progress: Progress | None) -> TensorsCompared:
    """Compares all tensors, under canonical names where the two forms have other names. Reads all values."""
    found = compare(a, b, jobs=jobs, progress=progress)
    types = ((type_of(t), t.spec.elements) for view in (found.a, found.b) for t in view.values())
    bounds = run_bounds(types)
    left_out = _without_place(a, b) if found.names == "canonical" else frozenset()
    wrong = [line for change in found.tensors if (line := _fault(change, found, left_out))]
    notes = [*found.notes]
    try:
        wrong += _derived_faults(a, b)
    except WeighbridgeError as error:
        notes.append(f"not compared: tensors that follow from the config: {error}")
    notes += [f"left out: {name} has no place in the target" for name in sorted(left_out)]
    equal = sum(change.kind in ("equal", "type") for change in found.tensors)
    worst = max((c.nmse for c in found.tensors if c.kind == "values" and c.nmse is not None), default=0.0)
    message = f"{len(found.tensors):,} tensors, {equal:,} with equal values"
    if wrong:
        return TensorsCompared(
            ProveCheck("tensors", "different", f"{message}, {len(wrong):,} differ", tuple(wrong)), bounds, tuple(notes)
        )
    verdict = ProveCheck("tensors", "same", f"{message}, the others within their types", measures={"worst_nmse": worst})
    return TensorsCompared(verdict, bounds, tuple(notes))


def _without_place(a: Checkpoint, b: Checkpoint) -> frozenset[str]:
    """The canonical names of tensors that the family has in one model's form and not in the other's."""
    found: set[str] = set()
    for one, other in ((a, b), (b, a)):
        with suppress(WeighbridgeError):
            lost = one.family.unmapped_roles(other.dialect, one.sizes, one.roles)
            found.update(one.family.holding("canonical", one.sizes, one.resolved.canonical, lost))
    return frozenset(found)


def _derived_faults(a: Checkpoint, b: Checkpoint) -> list[str]:
    """What is wrong with tensors of a GGUF that follow from the other model's config and from none of its tensors."""
    for config, gguf in ((a, b), (b, a)):
        if gguf.format == "gguf" and config.format != "gguf":
            return list(_derived(config, gguf))
    return []


def _derived(config: Checkpoint, gguf: Checkpoint) -> Iterator[str]:
    import numpy as np

    from weighbridge.tensors.nodes import as_node

    family = config.family
    wanted = family.derived("gguf", config.sizes)
    stored = {instance: node for instance, node in gguf.roles.items() if family.rows[instance[0]].derived}
    for instance in wanted.keys() | stored.keys():
        pair = [as_node(side[instance]).read_all().view("<f4") for side in (wanted, stored) if instance in side]
        if len(pair) < 2:
            yield f"{instance[0]}: {'missing' if instance in wanted else 'not in the source'}"
        elif not np.allclose(pair[0], pair[1], rtol=_DERIVED_ERROR, atol=0):
            yield f"{instance[0]}: other values than the config gives"


def _fault(change: TensorChange, found: Comparison, left_out: frozenset[str]) -> str:
    """What is wrong with a tensor; "" if nothing."""
    if change.kind in ("equal", "type") or change.name in left_out:
        return ""
    if change.kind != "values":
        return f"{change.name}: {change.kind.replace('only in a', 'missing').replace('only in b', 'not in the source')}"
    error = change.nmse if change.nmse is not None else math.inf
    source, target = type_of(found.a[change.name]), type_of(found.b[change.name])
    bound = largest_error(source, target)
    if not change.broken and error <= bound:
        return ""
    broken = f", {change.broken:,} values are NaN or Inf on one side" if change.broken else ""
    return f"{change.name}: NMSE {error:.3g}, {source} to {target} explains {bound:.3g}{broken}"
