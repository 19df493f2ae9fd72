"""Chooses each model's parents among the compared models, and arranges all of them as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from weighbridge.reports.lineage import thresholds
from weighbridge.reports.lineage.mixing import Made
from weighbridge.reports.lineage.model import APART, LineageBranch, LineagePair, LineageSource, Relation

_FAR: Final = 10.0  # more than any distance of models with a common origin
Claimed = tuple[str, str, str]  # child, parent, where


class ChosenParents(NamedTuple):
    relation: Relation
    parents: tuple[LineageSource, ...]
    evidence: str


def choose_parents(
    names: Sequence[str], pairs: Sequence[LineagePair], composites: Mapping[str, Made], named: Sequence[Claimed],
    same: Mapping[str, str],
) -> dict[str, ChosenParents]:  # fmt: skip
    """Returns the parents of each model that has any. First those of a merge; then the nearest model that it follows
    from exactly; then the base model that its metadata names, if it is related. No model becomes its own ancestor."""
    result: dict[str, ChosenParents] = {}
    nearest = {name: nearest_parents(name, pairs) for name in names if name not in composites}
    for name, row in composites.items():
        result[name] = ChosenParents(row.relation, row.sources, "weights")  # type: ignore[arg-type]
    for tied in (False, True):  # an ancestor of all others is certain, once theirs are known
        for name, rows in nearest.items():
            if rows and (len(rows) > 1) is tied and (pair := eldest_parent(name, rows, result)) is not None:
                result[name] = ChosenParents(pair.relation, (LineageSource(pair.counterpart(name)),), "weights")
    by_pair = {frozenset((pair.a, pair.b)): pair for pair in pairs}
    for child, parent, stated_in in named:
        child = same.get(child, child)
        pair = by_pair.get(frozenset((child, parent)))
        if child in result or pair is None or pair.relation in APART or child in ancestors(parent, result):
            continue
        result[child] = ChosenParents(pair.relation, (LineageSource(parent),), stated_in)
    return result


def nearest_parents(name: str, pairs: Sequence[LineagePair]) -> list[LineagePair]:
    """Returns the relations to a model's nearest parents: those with as many layers first, then by distance."""
    rows = [pair for pair in pairs if pair.parent is not None and pair.parent != name and name in (pair.a, pair.b)]
    exact = [pair for pair in rows if pair.relation == "quantized"] or rows
    limit = min((pair.distance or 0.0 for pair in exact), default=0.0) * (1 + thresholds.TIE)
    return [pair for pair in exact if (pair.distance or 0.0) <= limit]


def eldest_parent(name: str, rows: Sequence[LineagePair], result: Mapping[str, ChosenParents]) -> LineagePair | None:
    """Returns the relation to the parent that is an ancestor of all others; None if there is none."""
    lines = [ancestors(pair.counterpart(name), result) for pair in rows]
    return next((pair for pair in rows if all(pair.counterpart(name) in line for line in lines)), None)


def ancestors(name: str, result: Mapping[str, ChosenParents]) -> set[str]:
    """Returns a model and all its ancestors."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        if (item := todo.pop()) not in seen:
            seen.add(item)
            todo += [source.name for source in result[item].parents] if item in result else []
    return seen


def branches(
    names: Sequence[str], pairs: Sequence[LineagePair], parents: Mapping[str, Sequence[str]], same: Mapping[str, str]
) -> Iterator[LineageBranch]:
    """Yields the rows of the tree. A model hangs on its first parent. Models without one hang on their nearest
    relative, except for one root of each family."""
    above = {name: parents[name][0] for name in names if parents.get(name)}
    related = {frozenset((p.a, p.b)): remoteness(p) for p in pairs if p.relation not in APART}
    for name, first in same.items():
        above[name] = first
    children: dict[str, list[tuple[str, bool]]] = {}
    for name, parent in above.items():
        children.setdefault(parent, []).append((name, True))
    roots = [name for name in names if name not in above]
    while roots:
        root = roots.pop(0)
        placed = _below(root, children)
        while near := [
            (distance, second, name) for second in roots for name in placed
            if (distance := _distance(related, name, second, children)) is not None
        ]:  # fmt: skip
            _, second, name = min(near, key=lambda row: row[0])
            roots.remove(second)
            children.setdefault(name, []).append((second, False))
            placed += _below(second, children)
        yield LineageBranch(root, None)
        yield from rows_below(root, children)


def remoteness(pair: LineagePair) -> float:
    """Returns the distance of a pair; models with other layers, or without a distance, are further away."""
    far = pair.relation not in ("same", "quantized", "fine-tuned", "lora-merged", "merged", "permuted")
    return (0.0 if pair.relation == "permuted" else pair.distance or 0.0) + far * _FAR


def _distance(
    related: Mapping[frozenset[str], float], name: str, root: str, children: Mapping[str, list[tuple[str, bool]]]
) -> float | None:
    """Returns the smallest distance of a placed model to a root's family; None if no member is related to it."""
    direct = related.get(frozenset((name, root)))
    if direct is not None:
        return direct
    peers = (related.get(frozenset((name, second))) for second in _below(root, children))
    return min((distance for distance in peers if distance is not None), default=None)


def _below(name: str, children: Mapping[str, list[tuple[str, bool]]]) -> list[str]:
    """Returns a model and everything that hangs on it."""
    result = [name]
    for item in result:
        result += [child for child, _ in children.get(item, ())]
    return result


def rows_below(name: str, children: Mapping[str, list[tuple[str, bool]]]) -> Iterator[LineageBranch]:
    todo = [(child, name, is_parent) for child, is_parent in reversed(children.get(name, ()))]
    while todo:
        child, parent, is_parent = todo.pop()
        yield LineageBranch(child, parent, is_parent)
        todo += [(item, child, certain) for item, certain in reversed(children.get(child, ()))]
