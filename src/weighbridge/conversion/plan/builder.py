"""The contents of a plan before offsets are known, and helpers for all kinds of targets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from weighbridge.base.dtypes import F16, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.formats import DISTRIBUTED
from weighbridge.conversion.plan import probe
from weighbridge.conversion.plan.contents import PlannedFile, Preparation
from weighbridge.conversion.result import Effect, Loss, Move
from weighbridge.models.model import OpenModel
from weighbridge.models.resolved import ResolvedModel
from weighbridge.tensors.nodes import CastReport, LogicalTensor, Node, cast, is_stored_as

_NUMBER: Final = re.compile(r"\.\d+\.")
_LISTED: Final = 8  # names of values in one line


@dataclass
class PlanBuilder:
    """The contents of a target's files without their offsets, filled in by the builders."""

    tensors: dict[str, Node]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stem: str = "model"
    texts: dict[str, bytes] = field(default_factory=dict)
    extra_files: list[PlannedFile] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: writes the set's index from tensor -> file, for targets with a special index
    index: Callable[[Mapping[str, str]], bytes] | None = None
    reports: dict[str, CastReport] = field(default_factory=dict)
    #: values of a training checkpoint that the target has in another form
    used_values: frozenset[str] = frozenset()
    #: settings that an option changes on purpose
    requested: frozenset[str] = frozenset()
    #: further files that are read
    sources: tuple[Path, ...] = ()
    #: a draft model with its target's settings in its config
    described: OpenModel | None = None
    #: computes bytes that tensors read
    preparation: Preparation | None = None


def cast_to(name: str, node: LogicalTensor, dtype: DType, draft: PlanBuilder) -> Node:
    """Casts a tensor to `dtype`. A cast that can lose values counts them in a report."""
    if is_stored_as(node, dtype):
        return node
    return cast(node, dtype, draft.reports.setdefault(name, CastReport(name)))


def cast_for_gguf(name: str, node: LogicalTensor, dtype: DType, requested: DType, draft: PlanBuilder) -> Node:
    """Casts a tensor to `dtype`. Adds a loss if that is the fallback for rows of partial blocks of `requested`."""
    if dtype is F16 and requested.block > 1:
        columns = node.spec.shape[-1]
        draft.losses.append(Loss(f"row length {columns} isn't a multiple of {requested.block}; using F16", name))
    return cast_to(name, node, dtype, draft)


def list_unnamed(
    model: OpenModel,
    draft: PlanBuilder,
    elsewhere: Collection[str] = (),
    hint: Callable[[OpenModel, str], str] = lambda model, start: "",
) -> None:
    """Lists the tensors that the family's table doesn't name, so that the target can't hold them.

    Adds a loss per other part of the model (vision, audio), with a hint, and a note on tensors that carry nothing.
    `elsewhere`: tensors that another file of the target holds; `hint(model, start)`: how to write the part whose names
    begin with `start`.
    """
    report = model.resolved.report
    apart = [name for name in report.apart if name not in elsewhere]
    parts = model.family.parted(apart, model.sizes)
    for start, count in parts.items():
        part = f"{plural(count, 'tensor')} of another part of the model, {start}*{hint(model, start)}"
        draft.losses.append(Loss(f"left out: {part}"))
    if report.dropped:
        kinds = Counter(_NUMBER.sub(".*.", name) for name in report.dropped)
        names = ", ".join(f"{kind} ({count:,})" if count > 1 else kind for kind, count in kinds.items())
        draft.notes.append(f"left out, since they carry nothing: {plural(len(report.dropped), 'tensor')}, {names}")


def without_place(model: OpenModel) -> list[Loss]:
    """Returns one loss per tensor of roles that a GGUF of the family lacks."""
    family = model.family
    unmapped = family.unmapped_roles("gguf", model.sizes, model.roles)
    unused = [i for i in unmapped if model.resolved.reads_no_row(i[0])]
    parts = (("it", [i for i in unmapped if i not in unused]), ("the rows that no token uses", unused))
    return [
        Loss(f"left out: a {family.gguf} GGUF has no place for {part}", name)
        for part, roles in parts
        for name in family.holding(model.dialect, model.sizes, model.logical, roles)
    ]


def _dropped_rows(model: OpenModel) -> list[Loss]:
    """Returns one loss per tensor of a GGUF whose surplus rows, which its layout change drops, aren't zeros."""
    family, losses = model.family, []
    calls = {name: row.layouts.get(model.dialect) for name, row in family.rows.items()}
    dropping = {name for name, call in calls.items() if call is not None and call.row.drops}
    for name, row in family.rows_of(model.dialect, model.sizes, model.tensors).items() if dropping else ():
        if row.name in dropping and name in model.tensors:
            change: Any = family.layout_of(model.dialect, row.name, model.sizes)
            rows = change.surplus(model.tensors[name])
            if others := rows.spec.rows - len(probe.zero_rows(rows, 0)):
                text = f"left out: {plural(others, 'row')} that a {family.name} model has no place for"
                losses.append(Loss(text, name))
    return losses


def unplaced(model: OpenModel, dialect: str, target: str) -> list[Loss]:
    """Returns one loss per tensor that `dialect` has no name for, except zeros that only llama.cpp's graph needs.
    Without a part of its router, a model chooses other experts."""
    family = model.family
    unmapped = family.unmapped_roles(dialect, model.sizes, model.roles)
    if model.format == "gguf":
        unmapped = [i for i in unmapped if not probe.is_zero(model.roles[i])]
    routers = [i for i in unmapped if family.rows[i[0]].kind == "router"]
    lost: list[Loss] = []
    for instances in (routers, [i for i in unmapped if i not in routers]):
        names = family.holding(model.dialect, model.sizes, model.tensors, instances)
        effect: Effect = "results" if instances is routers else "metadata"
        lost += [Loss(f"left out: a {family.name} {target} has no place for it", name, effect) for name in names]
    return lost + (_dropped_rows(model) if model.format == "gguf" else [])


def zeros_made(model: OpenModel, dialect: str, named: Mapping[str, LogicalTensor]) -> list[str]:
    """Returns a note on the tensors that are zeros because the model has none of their role."""
    absent = {row.name for row in model.family.rows.values() if dialect in row.zeros} - {
        role for role, _ in model.roles
    }
    rows = model.family.rows_of(dialect, model.sizes, named) if absent else {}
    made = [name for name, row in rows.items() if row.name in absent]
    return [f"zeros, with which the model computes the same: {plural(len(made), 'tensor')}, {made[0]}"] if made else []


def one_way_losses(resolved: ResolvedModel) -> list[Loss]:
    """Returns one loss per tensor that a GGUF has with fewer elements than a folder, or computed with others."""
    family, losses = resolved.family, []
    computed = [name for name in family.one_way if family.rows[name].computed]
    parts = {role: name for name in computed for role in family.rows[name].read_with}
    for name, role in family.rows_of(resolved.dialect, resolved.sizes, resolved.tensors).items() if parts else ():
        if role.name in parts and name in resolved.tensors:
            made = parts[role.name]
            there = next(t.name for t in family.dialects["gguf"].templates if made in t.roles)
            text = f"a GGUF has {there} instead, {family.one_way[made]}"
            losses.append(Loss(f"{text}: no folder can be made of it again", name))
    for reduced in (name for name in family.one_way if name not in computed):
        for name in family.holding(resolved.dialect, resolved.sizes, resolved.tensors, [(reduced, ())]):
            before, after = (node.spec for node in (resolved.tensors[name], resolved.roles[reduced, ()]))
            if before.elements != after.elements:
                change = f"{family.one_way[reduced]}, from {list(before.shape)} to {list(after.shape)}"
                losses.append(Loss(f"{change}: no folder can be made again", name))
    return losses


def check_two_way(model: OpenModel) -> None:
    """Raises UnsupportedError for a GGUF with tensors that no folder can be made from."""
    for role, why in model.family.one_way.items():
        if (role, ()) in model.resolved.known_roles:
            name = model.family.rows[role].names["gguf"]
            raise UnsupportedError(
                f"{model.place.path}: no folder can be made of it, since {name} is {why}",
                hint="convert from the model's own folder; wb convert SRC DST.safetensors keeps llama.cpp's names",
            )


def left_out(model: OpenModel, used: Collection[str] = ()) -> list[Loss]:
    """The parts of a training checkpoint that a conversion omits: a loss for each with tensors, one for all values
    except `used`, including the pickled objects among the weights of a distributed checkpoint."""
    parts = [part for part in model.left_out if part.tensors]
    values = [part.name for part in model.left_out if not part.tensors and part.name not in used]
    values += model.metadata if model.format == DISTRIBUTED else ()
    losses = [
        Loss(f"left out: {part.part} ({part.why}), tensors: {part.tensors:,}, bytes: {part.bytes:,}", part.name)
        for part in parts
    ]
    if values:
        more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
        losses.append(Loss(f"left out, not tensors: {', '.join(values[:_LISTED])}{more}"))
    return losses
