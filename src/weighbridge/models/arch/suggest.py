"""Measures how a model's tensors fit its family, and finds the nearest known family of an unknown model.

An unknown model is read as if it were of each known class in turn: sizes from the same config (or the same GGUF keys
under the other architecture's name), names generated, looked up, compared. This needs only headers and no numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import MappingReport, detect_dialect
from weighbridge.models.arch.registry import families


@dataclass(frozen=True, slots=True)
class Fit:
    """How tensors fit a family. `hits`: the number of tensors with a name of this dialect, for a model of this
    class."""

    family: Family
    architecture: str
    dialect: str
    sizes: Sizes
    report: MappingReport
    hits: int

    @property
    def distance(self) -> int:
        """The number of names that would have to change."""
        return len(self.report.missing) + len(self.report.unmapped) + len(self.report.misshapen)


def fit(family: Family, sizes: Sizes, shapes: Mapping[str, Shape]) -> Fit:
    """How tensors of these names and shapes fit one family."""
    _, dialect, _ = detect_dialect(family, shapes, sizes)
    report = family.check(dialect, sizes, shapes)
    hits = len(shapes) - len(report.unmapped)
    return Fit(family, sizes.architecture, dialect, sizes, report, hits)


def nearest(config: Mapping[str, Any], metadata: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Fit | None:
    """The known family nearest to an unknown model; None if none is near.

    The best has the fewest names to change and most names in common. If no names match, it has most shapes in common,
    at least half of them. A family with its own table wins a tie. `config`: that of a folder; `metadata`: that of a
    GGUF.
    """
    fits = [fit(family, sizes, shapes) for family, sizes in _readings(config, metadata, shapes)]
    if matching := [f for f in fits if f.hits]:
        return min(matching, key=lambda f: (f.distance, -f.hits, f.family.document.parent is not None))
    actual = Counter(map(tuple, shapes.values()))
    common = [(Counter(map(tuple, f.family.names(f.dialect, f.sizes).values())) & actual).total() for f in fits]
    ranks = ((common[n], -f.distance, f.family.document.parent is None, -n) for n, f in enumerate(fits))
    best = max(ranks, default=None)
    return None if best is None or 2 * best[0] < len(shapes) else fits[-best[-1]]


def _readings(
    config: Mapping[str, Any], metadata: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> Iterator[tuple[Family, Sizes]]:
    """The model's sizes as each class of each family reads them, if it can."""
    declared = metadata.get("general.architecture")
    for family in families().values():
        try:
            if isinstance(declared, str):
                start = f"{declared}."
                renamed = {
                    f"{family.gguf}.{key.removeprefix(start)}" if key.startswith(start) else key: value
                    for key, value in metadata.items()
                }
                yield family, family.sizes_from_gguf(renamed, shapes)
                continue
            for name in reversed(list(family.architectures)):
                yield family, family.sizes_from_hf({**config, "architectures": [name]})
        except (FormatError, UnsupportedError, UsageError):  # not a model of the family
            continue
