"""How the tensors of a file fit a family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Shape

_SHOWN = 5  # names in a message; the report has them all


@dataclass(frozen=True, slots=True)
class MappingReport:
    """How a file's tensors fit a family. Names are in the order of the table (`missing`) or of the file (the others).

    `misshapen`: name, expected shape, actual shape. `dropped`: constants without information. `apart`: tensors of other
    parts of the model, such as a vision tower.
    """

    missing: tuple[str, ...] = ()
    unmapped: tuple[str, ...] = ()
    misshapen: tuple[tuple[str, Shape, Shape], ...] = ()
    dropped: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.missing or self.unmapped or self.misshapen)

    def __str__(self) -> str:
        shapes = [f"{name} is {list(found)}, expected {list(want)}" for name, want, found in self.misshapen]
        lists = (("missing", self.missing), ("without a rule", self.unmapped), ("of the wrong shape", shapes))
        return "; ".join(f"{len(names)} {word}: {some(names)}" for word, names in lists if names) or "all fit"


def some(names: Sequence[str]) -> str:
    """The first names, and the number of others."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class MappingError(FormatError):
    """A file's tensors don't fit the family; `report` has every name."""

    def __init__(
        self, family: str, dialect: str, report: MappingReport, *, path: str | None = None, hint: str | None = None
    ) -> None:
        words = f"the tensors don't fit a {family} model under its {dialect} names: {report}"
        super().__init__(words, path=path, hint=hint)
        self.report, self.family, self.dialect = report, family, dialect
