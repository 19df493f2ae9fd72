"""The family tree of a page's models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weighbridge.base.options import Progress
from weighbridge.base.records import dataclass
from weighbridge.models.model import OpenModel
from weighbridge.reports.lineage.model import APART, LineageModel, LineageReport
from weighbridge.reports.lineage.report import relate_models
from weighbridge.reports.lineage.words import branch_text, describe, sentence

SCHEMA: Final = "weighbridge/family/1"


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """A model in the tree, a parent before its children. `model`: its number; `above`: that of the model that it hangs
    on, None for a root. `is_parent`: whether that is its parent, or only its nearest relative. `text`: its relation."""

    model: int
    above: int | None
    is_parent: bool
    text: str


@dataclass(frozen=True, slots=True)
class FamilyPair:
    """Two models that are related. `parent`: the number of the one that the other was made from, if that is known."""

    a: int
    b: int
    parent: int | None
    text: str
    cosine: float | None
    distance: float | None


@dataclass(frozen=True, slots=True)
class FamilyView:
    """`models`: by number. `apart`: pairs without a common origin. `sentence`: of two models, how they are related.
    `remarks`: metadata that the weights disprove, and notes. `bytes_read`: of samples."""

    models: tuple[LineageModel, ...]
    rows: tuple[FamilyRow, ...]
    pairs: tuple[FamilyPair, ...]
    apart: int
    sentence: str
    remarks: tuple[str, ...]
    bytes_read: int
    schema: str = SCHEMA


def family(models: Sequence[OpenModel], paths: Sequence[str], progress: Progress | None = None) -> FamilyView:
    """Returns the tree of two models or more. Reads sampled rows of each. Raises UnsupportedError for a model without
    weight matrices, FormatError for weights that aren't finite."""
    return family_view(relate_models(models, paths, progress))


def family_view(report: LineageReport) -> FamilyView:
    """Returns the tree with models as numbers."""
    numbers = {model.name: number for number, model in enumerate(report.models)}
    rows = (
        FamilyRow(
            numbers[row.name], None if row.above is None else numbers[row.above],
            row.is_parent and row.above is not None, branch_text(report, row.name, row.above, row.is_parent),
        )
        for row in report.tree
    )  # fmt: skip
    related = [pair for pair in report.pairs if pair.relation not in APART]
    pairs = (
        FamilyPair(
            numbers[pair.a], numbers[pair.b], None if pair.parent is None else numbers[pair.parent], describe(pair),
            pair.cosine, pair.distance,
        )
        for pair in related
    )  # fmt: skip
    of_two = sentence(report.pairs[0]) if len(report.models) == 2 else ""
    return FamilyView(
        report.models, tuple(rows), tuple(pairs), len(report.pairs) - len(related), of_two,
        (*report.contradictions, *report.notes), report.bytes_read,
    )  # fmt: skip
