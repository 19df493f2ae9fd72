"""The content of a plan before it has offsets, and helpers that all kinds of targets use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from weighbridge.base.dtypes import DType
from weighbridge.conversion.plan.model import Loss, Move, PlannedFile
from weighbridge.io.links import check_link
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.tensors.nodes import CastReport, LogicalTensor, Node, cast, is_stored_as

# Suffixes of the files that are copied with a model folder.
_SIDE: Final = (".json", ".txt", ".md", ".model", ".jinja", ".py")
_NO_SIDE: Final = (".index.json",)


@dataclass
class PlanBuilder:
    """The contents of a target's files, without their places. Builders fill it in."""

    tensors: dict[str, Node]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stem: str = "model"
    texts: dict[str, bytes] = field(default_factory=dict)
    extra_files: list[PlannedFile] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: writes the set's index from tensor -> file, for targets with their own kind of index
    index: Callable[[Mapping[str, str]], bytes] | None = None
    reports: dict[str, CastReport] = field(default_factory=dict)


def cast_to(name: str, node: LogicalTensor, wanted: DType, draft: PlanBuilder) -> Node:
    """The tensor as `wanted`; a cast that can lose values counts them in a report."""
    if is_stored_as(node, wanted):
        return node
    report = draft.reports[name] = CastReport(name)
    return cast(node, wanted, report)


def ignored_parts(model: Checkpoint) -> list[Loss]:
    """One loss per part of the model that its family ignores (vision, audio)."""
    return [
        Loss(f"left out: {count:,} tensors of another part of the model, {start}*")
        for start, count in model.family.parted(model.resolved.report.apart, model.sizes).items()
    ]


def sidecar_files(folder: Path) -> list[Path]:
    """The small files of a model folder, with those of sentence-transformers modules (1_Pooling/config.json).
    RefusedError for a link that leads out of the folder."""
    near = [p for p in folder.iterdir() if p.name.endswith(_SIDE) and not p.name.endswith(_NO_SIDE)]
    found = sorted(p for p in (*near, *folder.glob("[0-9]_*/*.json")) if p.is_file())
    for path in found:
        check_link(path, folder)
    return found
