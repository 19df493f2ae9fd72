"""Lists model families, and checks a model's tensors against its family. Reads headers and tables only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families, read_family
from weighbridge.models.arch.suggest import fit, nearest
from weighbridge.models.config.losses import config_losses
from weighbridge.models.open import SourceOptions, open_model


@dataclass(frozen=True, slots=True)
class FamilyLine:
    """A family: the name of its table, its GGUF name, the table it extends, its transformers classes, its dialects, and
    the number of roles (logical tensors of a layer or of the model)."""

    name: str
    gguf: str
    like: str | None
    classes: tuple[str, ...]
    dialects: tuple[str, ...]
    roles: int


@dataclass(frozen=True, slots=True)
class RoleLine:
    """A row: the role, its shape as symbols, the condition and the layers in which it exists, whether it may be absent,
    and its name and layout in each dialect."""

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
    """A family's table. `sizes`: the keys of each symbol in a config and in a GGUF."""

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
    """The result of checking a model's tensors against a family. `known`: the model names one of its classes; otherwise
    it is the nearest family. `stated`: the class that the model names. `dropped`: constants without information.
    `apart`: ignored tensors of other parts of the model, by name prefix. `settings`: those of config.json that a GGUF
    can't hold or that the table doesn't read."""

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
    settings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.known and not (self.missing or self.unmapped or self.misshapen)


def list_families() -> tuple[FamilyLine, ...]:
    """Returns every family, by name."""
    return tuple(_line(family) for family in families().values())


def _line(family: Family) -> FamilyLine:
    classes, dialects = tuple(family.architectures), tuple(family.dialects)
    return FamilyLine(family.name, family.gguf, family.document.parent, classes, dialects, len(family.rows))


def family_table(name: str, arch_file: str | os.PathLike[str] | None = None) -> Table:
    """Returns the table of a family, by its name, a class or its GGUF name. `arch_file`: a table to search first."""
    candidates = (*((read_family(Path(arch_file)),) if arch_file else ()), *families().values())
    matches = (
        *(family for family in candidates if name == family.name),
        *(family for family in candidates if name in family.architectures),
        *(family for family in candidates if name == family.gguf),
    )
    if not matches:
        raise UsageError(f"unknown family {name!r}", hint="wb arch list shows them")
    family = matches[0]
    sizes = {symbol: (size.hf, size.gguf) for symbol, size in family.sizes.items()}
    names: dict[str, dict[str, str]] = {role: {} for role in family.rows}
    layouts = {row.name: {d: str(via) for d, via in row.layouts.items()} for row in family.rows.values()}
    for dialect in family.dialects.values():
        for template in dialect.templates:
            for role in template.roles:
                names[role][dialect.name] = template.name
                if template.layouts:
                    layouts[role][dialect.name] = ", ".join(map(str, template.layouts))
    rows = (
        RoleLine(r.name, r.kind, r.shape, r.when, r.layers, r.optional, names[r.name], layouts[r.name])
        for r in family.rows.values()
    )
    return Table(_line(family), sizes, tuple(rows))


def check(path: str | os.PathLike[str], arch_file: str | os.PathLike[str] | None = None) -> FamilyCheck:
    """Checks the model at `path` against its family, or the nearest one if its class is unknown. `arch_file`: a table
    to try first. Raises UnsupportedError if no family is similar."""
    with open_model(path, SourceOptions(arch_file=arch_file)) as model:
        shapes = _shapes(model.logical)
        try:
            in_table, match = True, fit(model.family, model.sizes, _shapes(model.tensors))
        except UnsupportedError:
            in_table, near = False, nearest({} if model.format == "gguf" else model.config, model.metadata, shapes)
            if near is None:
                raise
            match = near
        if model.format == "gguf":
            stated = model.metadata.get("general.architecture")
        else:
            classes = model.config.get("architectures")
            stated = classes[0] if isinstance(classes, list) and classes else None
        report = match.report
        return FamilyCheck(
            path=os.fspath(model.place.path),
            stated=stated if isinstance(stated, str) else None,
            known=in_table,
            family=match.family.name,
            architecture=match.architecture,
            dialect=match.dialect,
            tensors=len(shapes),
            sizes=dict(match.sizes.values),
            missing=report.missing,
            unmapped=report.unmapped,
            misshapen=tuple(Misshapen(*row) for row in report.misshapen),
            dropped=report.dropped,
            apart=match.family.parted(report.apart, match.sizes),
            settings=tuple(config_losses(model.config, match.family)) if in_table and model.format != "gguf" else (),
        )


def _shapes(tensors: Mapping[str, Any]) -> dict[str, Shape]:
    return {name: tuple(node.spec.shape) for name, node in tensors.items()}
