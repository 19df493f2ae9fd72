"""Facts about model families as rows, and how a model's tensors match a family. Reads headers and tables only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Shape
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families, read_family
from weighbridge.models.arch.suggest import Fit, fit, nearest
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.open import SourceOptions, open_model


@dataclass(frozen=True, slots=True)
class FamilyLine:
    """A family: its table's name, its GGUF name, the table it extends, its transformers classes, its dialects, and
    the number of roles (logical tensors of a layer or of the model)."""

    name: str
    gguf: str
    like: str | None
    classes: tuple[str, ...]
    dialects: tuple[str, ...]
    roles: int


@dataclass(frozen=True, slots=True)
class RoleLine:
    """A row: the role, its shape as symbols, when and in which layers it exists, whether it may be absent, and its name
    and layout in each dialect."""

    role: str
    kind: str
    shape: tuple[str, ...]
    when: str | None
    layers: str | None
    optional: bool
    names: dict[str, str]
    layouts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """A family's whole table. `sizes`: symbol -> its source in a config and in a GGUF."""

    family: FamilyLine
    sizes: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    rows: tuple[RoleLine, ...]


@dataclass(frozen=True, slots=True)
class Misshapen:
    """A tensor whose shape differs from the table's."""

    name: str
    expected: Shape
    found: Shape


@dataclass(frozen=True, slots=True)
class FamilyCheck:
    """How a model's tensors match a family. `known`: the model names one of its classes; otherwise it is the nearest
    family. `stated`: the model's own name for its class. `dropped`: constants without information. `apart`: the
    number of ignored tensors of other parts of the model, by name prefix."""

    path: str
    stated: str | None
    known: bool
    family: str
    architecture: str
    dialect: str
    tensors: int
    sizes: dict[str, int]
    missing: tuple[str, ...]
    unmapped: tuple[str, ...]
    misshapen: tuple[Misshapen, ...]
    dropped: tuple[str, ...]
    apart: dict[str, int]

    @property
    def ok(self) -> bool:
        return self.known and not (self.missing or self.unmapped or self.misshapen)


def listed() -> tuple[FamilyLine, ...]:
    """Every family, by name."""
    return tuple(_line(family) for family in families().values())


def _line(family: Family) -> FamilyLine:
    classes, dialects = tuple(family.architectures), tuple(family.dialects)
    return FamilyLine(family.name, family.gguf, family.document.like, classes, dialects, len(family.rows))


def shown(name: str, arch_file: str | os.PathLike[str] | None = None) -> Table:
    """The table of a family, by its name, GGUF's name of it or the name of one of its classes."""
    own = (read_family(Path(arch_file)),) if arch_file else ()
    for family in (*own, *families().values()):
        if name in (family.name, family.gguf, *family.architectures):
            sizes = {symbol: (size.hf, size.gguf) for symbol, size in family.sizes.items()}
            return Table(_line(family), sizes, tuple(_roles(family)))
    raise UsageError(f"unknown family {name!r}", hint="wb arch list shows them")


def _roles(family: Family) -> Iterable[RoleLine]:
    names: dict[str, dict[str, str]] = {role: {} for role in family.rows}
    layouts = {row.name: {d: str(via) for d, via in row.layouts.items()} for row in family.rows.values()}
    for dialect in family.dialects.values():
        for template in dialect.templates:
            for role in template.roles:
                names[role][dialect.name] = template.name
                if template.layouts:
                    layouts[role][dialect.name] = ", ".join(map(str, template.layouts))
    for row in family.rows.values():
        yield RoleLine(
            row.name, row.kind, row.shape, row.when, row.layers, row.optional, names[row.name], layouts[row.name]
        )


def check(path: str | os.PathLike[str], arch_file: str | os.PathLike[str] | None = None) -> FamilyCheck:
    """How the model at `path` matches its family, or the nearest one if its class is unknown. `arch_file`: a table
    to try first. UnsupportedError if no family is similar."""
    with open_model(path, SourceOptions(arch_file=arch_file)) as model:
        shapes = _shapes(model.logical)
        try:
            known, found = True, fit(model.family, model.sizes, _shapes(model.tensors))
        except UnsupportedError:
            known, near = False, nearest({} if model.format == "gguf" else model.config, model.metadata, shapes)
            if near is None:
                raise
            found = near
        return _check(model, found, known, len(shapes))


def _shapes(tensors: Mapping[str, Any]) -> dict[str, Shape]:
    return {name: tuple(node.spec.shape) for name, node in tensors.items()}


def _first(config: Mapping[str, Any]) -> Any:
    """The first of a config's architectures."""
    listed = config.get("architectures")
    return listed[0] if isinstance(listed, list) and listed else None


def _check(model: Checkpoint, found: Fit, known: bool, tensors: int) -> FamilyCheck:
    stated = model.metadata.get("general.architecture") if model.format == "gguf" else _first(model.config)
    report = found.report
    return FamilyCheck(
        path=os.fspath(model.place.path),
        stated=stated if isinstance(stated, str) else None,
        known=known,
        family=found.family.name,
        architecture=found.architecture,
        dialect=found.dialect,
        tensors=tensors,
        sizes=dict(found.sizes.values),
        missing=report.missing,
        unmapped=report.unmapped,
        misshapen=tuple(Misshapen(*wrong) for wrong in report.misshapen),
        dropped=report.dropped,
        apart=found.family.parted(report.apart, found.sizes),
    )
