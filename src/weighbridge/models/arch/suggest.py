"""How a model's tensors fit the families: its own, or, for a model of none, the known family that it is most like.

A model of an unknown class is read as if it were of each known class in turn: sizes from the same config (or the same
GGUF keys under the other architecture's name), names generated, looked up, compared. Headers alone, no numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.spec import Shape
from weighbridge.models.arch.dialects import detect_dialect
from weighbridge.models.arch.expand import Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.mapping_report import MappingReport
from weighbridge.models.arch.registry import families


@dataclass(frozen=True, slots=True)
class Fit:
    """How tensors fit a family: they have `hits` of its names, in this dialect, for a model of this class."""

    family: Family
    architecture: str
    dialect: str
    sizes: Sizes
    report: MappingReport
    hits: int

    @property
    def distance(self) -> int:
        """How many names would have to change."""
        return len(self.report.missing) + len(self.report.unmapped) + len(self.report.misshapen)


def fit(family: Family, sizes: Sizes, shapes: Mapping[str, Shape]) -> Fit:
    """How tensors of these names and shapes fit one family."""
    _, dialect, _ = detect_dialect(family, shapes, sizes)
    report = family.check(dialect, sizes, shapes)
    hits = len(shapes) - len(report.unmapped)
    return Fit(family, sizes.architecture, dialect, sizes, report, hits)


def nearest(config: Mapping[str, Any], metadata: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Fit | None:
    """The known family that a model of an unknown one is most like: the fewest names to change, most names shared; if
    none shares a name, most shapes, at least half of them; of equals one that isn't `like` another. None where there
    is none. `config`: of a folder; `metadata`: of a GGUF."""
    found = [fit(family, sizes, shapes) for family, sizes in _readings(config, metadata, shapes)]
    if shared := [f for f in found if f.hits]:
        return min(shared, key=lambda f: (f.distance, -f.hits, f.family.document.like is not None))
    wanted = Counter(map(tuple, shapes.values()))
    alike = {n: _alike(f, wanted) for n, f in enumerate(found)}
    best = max(alike, key=lambda n: (alike[n], -found[n].distance, found[n].family.document.like is None), default=None)
    return None if best is None or 2 * alike[best] < len(shapes) else found[best]


def _alike(found: Fit, wanted: Counter[Shape]) -> int:
    """How many tensors would have a shape that the family has, each taken once."""
    names = found.family.names(found.dialect, found.sizes)
    return (Counter(map(tuple, names.values())) & wanted).total()


def _readings(
    config: Mapping[str, Any], metadata: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> Iterator[tuple[Family, Sizes]]:
    """The model's sizes as each class of each family would read them, where it can."""
    declared = metadata.get("general.architecture")
    for family in families().values():
        try:
            if isinstance(declared, str):
                yield family, family.sizes_from_gguf(_as_of(metadata, declared, family.gguf), shapes)
                continue
            for name in reversed(list(family.architectures)):
                yield family, family.sizes_from_hf({**config, "architectures": [name]})
        except (FormatError, UnsupportedError, UsageError):  # it doesn't describe a model of the family
            continue


def _as_of(metadata: Mapping[str, Any], declared: str, wanted: str) -> dict[str, Any]:
    """A GGUF's keys as they would be under another architecture's name."""
    return {
        f"{wanted}.{key.removeprefix(declared + '.')}" if key.startswith(f"{declared}.") else key: value
        for key, value in metadata.items()
    }
