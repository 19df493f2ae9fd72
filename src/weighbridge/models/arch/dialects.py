"""Detects the dialect and prefix that most of a file's tensor names have."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

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
from weighbridge.models.arch.naming import FamilyNames
from weighbridge.models.arch.tables.layers import optional_layers
from weighbridge.models.arch.tables.spec import PREFIX


def detect_dialect(family: FamilyNames, names: Sequence[str] | Mapping[str, Any], sizes: Sizes) -> tuple[int, str, str]:
    """Returns the number of `names` that the best dialect and prefix have, and these two.

    The first of the table wins a tie, except between dialects with the same names and other shapes: then the shapes
    decide, if `names` maps to tensors or shapes.
    """
    kept = names if isinstance(names, Mapping) else frozenset(names)
    pairs = [(d.name, prefix) for d in family.dialects.values() for prefix in d.prefixes]
    pairs = [pair for pair in pairs if _has_first_name(family, *pair, kept, sizes)] or pairs
    options = [(count_matches(family, dialect, prefix, kept, sizes), dialect, prefix) for dialect, prefix in pairs]
    best = max(options, key=lambda option: option[0])
    tied = [option for option in options if option[0] == best[0]]
    reshapes = (any(d in row.shapes or row.transposed(d) for row in family.rows.values()) for _, d, _ in tied)
    if len(tied) == 1 or not isinstance(names, Mapping) or not any(reshapes):
        return best
    shapes: dict[str, Any] = {n: getattr(getattr(v, "spec", v), "shape", v) for n, v in names.items()}

    def misshapen(option: tuple[int, str, str]) -> int:
        _, dialect, _ = option
        places = family.expansion(dialect, sizes, best_prefix(family, dialect, shapes, sizes)).places
        return sum(name in places and tuple(shape) != places[name].shape for name, shape in shapes.items())

    return min(tied, key=misshapen)


def best_prefix(family: FamilyNames, dialect: str, names: Mapping[str, Any], sizes: Sizes) -> str:
    """The prefix of a dialect that most of the names have; the first one wins a tie."""
    prefixes = family.dialects[dialect].prefixes
    if len(prefixes) == 1:
        return prefixes[0]
    started = [p for p in prefixes if _has_first_name(family, dialect, p, names, sizes)] or prefixes
    return max(started, key=lambda prefix: count_matches(family, dialect, prefix, names, sizes))


def _has_first_name(family: FamilyNames, dialect: str, prefix: str, kept: Container[str], sizes: Sizes) -> bool:
    """Whether `kept` has the first name of any template: a quick test before counting all names."""
    counts = index_counts(family.index, sizes)
    names = [t.name for t in family.dialects[dialect].templates]
    names = [name for name in names if f"{{{PREFIX}}}" in name] or names
    return any(first_name(name, counts, prefix) in kept for name in names)


def count_matches(family: FamilyNames, dialect: str, prefix: str, kept: Container[str], sizes: Sizes) -> int:
    """The number of a dialect's names that `kept` has."""
    counts = index_counts(family.index, sizes)
    templates = [t for t in family.dialects[dialect].templates if applies(family.rows[t.roles[0]], sizes)]
    numbers = range(len(optional_layers(family.layer_sets, dict(sizes.layers))))
    mtp_names = [t.mtp_name.replace("{n}", str(n)) for t in templates if t.mtp_name for n in numbers]
    names = dict.fromkeys((*(t.name for t in templates), *mtp_names))  # roles of different layers may share a name
    check_count(names, counts, prefix)
    return sum(name in kept for template in names for name in run(template, counts, prefix))


def optional_places(family: FamilyNames, dialect: str, sizes: Sizes, prefix: str) -> Iterator[TensorSlot]:
    """The places of a dialect's tensors that may be absent."""
    optional = optional_layers(family.layer_sets, dict(sizes.layers))
    return optional_slots(family.dialects[dialect], family.rows, family.role_indices, family.index, sizes, prefix,
                          optional)  # fmt: skip
