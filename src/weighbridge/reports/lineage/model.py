"""The answers of `wb lineage`."""

from __future__ import annotations

from typing import Final, Literal

from weighbridge.base.records import dataclass

SCHEMA: Final = "weighbridge/lineage/1"

Relation = Literal[
    "same", "quantized", "fine-tuned", "lora-merged", "merged", "pruned", "repeated", "slices", "permuted", "related",
    "unrelated", "different-shapes",
]  # fmt: skip
#: Relations of models that have no common origin, as far as the weights show.
APART: Final = frozenset({"unrelated", "different-shapes"})


@dataclass(frozen=True, slots=True)
class LineageSource:
    """A parent of a model; `weight`: its share in a merged model."""

    name: str
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class LineageModel:
    """A compared model. `type`: of most matrices. `parents`: the nearest ancestors among the compared models; empty if
    they are unknown. `evidence`: the source of the parents: `weights`, or the metadata that names them. `same_as`: an
    earlier model with equal samples. `claims`: the base models that its metadata names."""

    name: str
    path: str
    type: str
    layers: int
    bytes_read: int
    relation: Relation | None = None
    parents: tuple[LineageSource, ...] = ()
    evidence: str | None = None
    same_as: str | None = None
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LineagePair:
    """How two models are related. `parent`: the name of that which the other was made from, None if unknown. `exact`:
    whether the values follow exactly, except for rounding. `distance`: the norm of the difference over that of a's
    weights. `rank` and `targets`: of a merged LoRA; `targets` are otherwise the roles that changed."""

    a: str
    b: str
    relation: Relation
    parent: str | None = None
    evidence: str | None = None
    exact: bool = False
    cosine: float | None = None
    distance: float | None = None
    rank: int | None = None
    targets: tuple[str, ...] = ()
    detail: str = ""

    def counterpart(self, name: str) -> str:
        return self.b if name == self.a else self.a


@dataclass(frozen=True, slots=True)
class LineageBranch:
    """A row of the family tree: a model, the row that it hangs on (None for a root), and whether that is its parent or
    only its nearest relative."""

    name: str
    above: str | None
    is_parent: bool = True


@dataclass(frozen=True, slots=True)
class LineageReport:
    """The relations of several models. `pairs`: every two of them. `tree`: in the order of printing, a parent before
    its children. `contradictions`: metadata that the weights disprove. `bytes_read`: of samples, in all files."""

    models: tuple[LineageModel, ...]
    pairs: tuple[LineagePair, ...]
    tree: tuple[LineageBranch, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]
    bytes_read: int
    schema: str = SCHEMA

    def __bool__(self) -> bool:
        """Whether no metadata contradicts the weights."""
        return not self.contradictions

    def pair(self, a: str, b: str) -> LineagePair:
        """Returns the relation of two models, in either order."""
        return next(pair for pair in self.pairs if {pair.a, pair.b} == {a, b} and (a != b))


@dataclass(frozen=True, slots=True)
class StoreLineage:
    """The relations of the models in stores. `families`: models with a common origin, two or more each. `single`: the
    names of models without a relative. `uncompared`: the models that weren't compared, and why. `contradictions`,
    `notes`: of all families. `bytes_read`: of samples, in all files."""

    families: tuple[LineageReport, ...]
    single: tuple[str, ...]
    uncompared: tuple[str, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]
    bytes_read: int

    def __bool__(self) -> bool:
        """Whether no metadata contradicts the weights."""
        return not self.contradictions
