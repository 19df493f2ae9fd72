"""Whose names tensors have: of a family's dialects and their prefixes those that most of the names are of."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weighbridge.models.arch.expand import (
    Sizes,
    TensorSlot,
    applies,
    check_count,
    first_name,
    index_counts,
    optional_slots,
    run,
)
from weighbridge.models.arch.tables.layers import optional_layers
from weighbridge.models.arch.tables.spec import PREFIX

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family


def detect_dialect(family: Family, names: Sequence[str] | Mapping[str, Any], sizes: Sizes) -> tuple[int, str, str]:
    """How many of `names` are of the dialect and prefix that most are of, and these; the first of the table where
    several fit. Of dialects that share their names the one whose shapes the tensors have, where these are known."""
    kept = names if isinstance(names, Mapping) else frozenset(names)
    pairs = [(d.name, prefix) for d in family.dialects.values() for prefix in d.prefixes]
    pairs = [pair for pair in pairs if _starts(family, *pair, kept, sizes)] or pairs
    options = [(count_matches(family, dialect, prefix, kept, sizes), dialect, prefix) for dialect, prefix in pairs]
    best = max(options, key=lambda found: found[0])
    same = [o for o in options if o[0] == best[0] and (o == best or _cuts_otherwise(family, o[1]))]
    if len(same) == 1 or not isinstance(names, Mapping):
        return best
    shapes: dict[str, Any] = {n: getattr(getattr(v, "spec", v), "shape", v) for n, v in names.items()}
    return min(same, key=lambda option: len(family.check(option[1], sizes, shapes).misshapen))


def best_prefix(family: Family, dialect: str, names: Mapping[str, Any], sizes: Sizes) -> str:
    """The prefix of a dialect that most of the names have; the first where none is better."""
    prefixes = family.dialects[dialect].prefixes
    if prefixes[1:]:
        started = [p for p in prefixes if _starts(family, dialect, p, names, sizes)]
        prefixes = tuple(started) or prefixes
    return max(prefixes, key=lambda p: count_matches(family, dialect, p, names, sizes)) if prefixes[1:] else prefixes[0]


def _starts(family: Family, dialect: str, prefix: str, kept: Container[str], sizes: Sizes) -> bool:
    """Whether the tensors have the first name of any template: a quick test that saves counting names nobody has."""
    counts = index_counts(family.index, sizes)
    names = [t.name for t in family.dialects[dialect].templates]
    names = [name for name in names if f"{{{PREFIX}}}" in name] or names
    return any(first_name(name, counts, prefix) in kept for name in names)


def count_matches(family: Family, dialect: str, prefix: str, kept: Container[str], sizes: Sizes) -> int:
    """How many of a dialect's names the tensors have."""
    counts = index_counts(family.index, sizes)
    templates = [t for t in family.dialects[dialect].templates if applies(family.rows[t.roles[0]], sizes)]
    numbers = range(len(optional_layers(family.layer_sets, dict(sizes.layers))))
    further = [t.mtp_name.replace("{n}", str(n)) for t in templates if t.mtp_name for n in numbers]
    names = dict.fromkeys((*(t.name for t in templates), *further))  # rows for some of the layers each may share one
    check_count(names, counts, prefix)
    return sum(name in kept for template in names for name in run(template, counts, prefix))


def _cuts_otherwise(family: Family, dialect: str) -> bool:
    """Whether tensors of this dialect may have other shapes than those of its base under the same names."""
    return any(dialect in row.shapes or row.transposed(dialect) for row in family.rows.values())


def optional_places(family: Family, dialect: str, sizes: Sizes, prefix: str) -> Iterator[TensorSlot]:
    """The places of a dialect's tensors that may be absent."""
    named = family.rows, family.role_indices, family.index
    may_be_absent = optional_layers(family.layer_sets, dict(sizes.layers))
    return optional_slots(family.dialects[dialect], *named, sizes, prefix, may_be_absent)
