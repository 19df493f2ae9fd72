"""A plan in the making, and what every kind of target does with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from weighbridge.base.dtypes import DType
from weighbridge.conversion.plan.model import Loss, Move, PlannedFile
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.tensors.nodes import CastReport, Node, QuantizedTensor, cast

# What goes with a model folder to its new place, besides the weights and their index.
_SIDE: Final = (".json", ".txt", ".md", ".model", ".jinja", ".py")
_NO_SIDE: Final = (".index.json",)


@dataclass
class PlanBuilder:
    """A plan in the making: what will be in the files, not yet where."""

    tensors: dict[str, Node]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stem: str = "model"
    texts: dict[str, bytes] = field(default_factory=dict)
    beside: list[PlannedFile] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: makes the set's index of the file of each tensor, where a target has one of its own kind
    index: Callable[[Mapping[str, str]], bytes] | None = None
    reports: dict[str, CastReport] = field(default_factory=dict)


def retyped(name: str, node: Node, wanted: DType, draft: PlanBuilder) -> Node:
    """The tensor as `wanted`, its cast counted where it can lose a value."""
    if node.spec.dtype is wanted and not isinstance(node, QuantizedTensor):
        return node
    report = draft.reports[name] = CastReport(name)
    return cast(node, wanted, report)


def apart(model: Checkpoint) -> list[Loss]:
    """What a family leaves out of a model of several parts: a line for each part."""
    return [
        Loss(f"left out: {count:,} tensors of another part of the model, {start}*")
        for start, count in model.family.parted(model.resolved.report.apart, model.sizes).items()
    ]


def side_files(folder: Path) -> list[Path]:
    """The small files of a model folder, and of its sentence-transformers modules (1_Pooling/config.json)."""
    near = [p for p in folder.iterdir() if p.name.endswith(_SIDE) and not p.name.endswith(_NO_SIDE)]
    return sorted(p for p in (*near, *folder.glob("[0-9]_*/*.json")) if p.is_file())
