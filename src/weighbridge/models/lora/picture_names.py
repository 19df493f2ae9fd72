"""Finds the modules that a LoRA of an image or video model changes in the tables of names (models/diffusion/names).

A kohya name has `_` for `.`: it is compared with every name of a table, spelled like that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.containers.sniff import diffusion
from weighbridge.models.diffusion.names import NamePlace, NameTable, build_table, documents, filled

if TYPE_CHECKING:
    from weighbridge.models.lora.pictures import PictureChange

_WEIGHT: Final = ".weight"
_NUMBER: Final = re.compile(r"(?<![^_])(?:\*|\d+)(?![^_])", re.ASCII)
#: The modules of T5's encoder, which no table renames.
_T5: Final = tuple(
    f"encoder.block.*.layer.{n}.{module}"
    for n, modules in ((0, ("SelfAttention.q", "SelfAttention.k", "SelfAttention.v", "SelfAttention.o")),
                       (1, ("DenseReluDense.wi", "DenseReluDense.wi_0", "DenseReluDense.wi_1", "DenseReluDense.wo")))
    for module in modules
)  # fmt: skip


class PictureTable(NamedTuple):
    """A table of names. `trained`: whether kohya's trainer takes the names of diffusers, not those of the file."""

    id: str
    names: NameTable
    models: tuple[str, ...]
    trained: bool


class LocatedChange(NamedTuple):
    """A change, and the place of its module in a table."""

    change: PictureChange
    place: NamePlace


class LocatedLora(NamedTuple):
    """The changes of a denoiser, all of them in a table. `diffusers`: whose names they have."""

    table: PictureTable
    diffusers: bool
    changes: tuple[LocatedChange, ...]


@cache
def tables() -> tuple[PictureTable, ...]:
    """The tables of denoisers."""
    parts = {row.id: row.part for row in diffusion.table().rows}
    return tuple(
        PictureTable(name, build_table(raw), tuple(raw["models"]), raw.get("kohya") == "diffusers")
        for name, raw in documents().items()
        if parts[raw["models"][0]] == "denoiser"
    )


def located(
    changes: Sequence[PictureChange], path: str, models: frozenset[str] | None = None
) -> tuple[LocatedLora, ...]:
    """The tables that have all modules of a denoiser's LoRA. `models`: only tables of these. Raises UsageError if none
    has."""
    found = []
    best: list[str] | None = None
    for table in (one for one in tables() if models is None or models & {*one.models}):
        for diffusers in (True, False):
            pairs = [(change, place_of(change, table, diffusers)) for change in changes]
            missing = [change.module for change, place in pairs if place is None]
            if not missing:
                places = (LocatedChange(change, place) for change, place in pairs if place is not None)
                lora = LocatedLora(table, diffusers, tuple(places))
                found += [lora] if fits(lora) else []
            elif best is None or len(missing) < len(best):
                best = missing
    if not found:
        unknown = best or [change.module for change in changes]
        raise UsageError(
            f"{path} changes {plural(len(unknown), 'module')} that no table of names has: {', '.join(unknown[:3])}",
            hint="such a LoRA can be merged: wb convert MODEL DST --lora LORA",
        )
    return tuple(found)


def place_of(change: PictureChange, table: PictureTable, diffusers: bool) -> NamePlace | None:
    """The place of a change's module in a table, by its names in a dialect; None if the table lacks it."""
    if not change.prefix.underscored:
        return table.names.place_of(change.module + _WEIGHT, diffusers=diffusers)
    dotted = [name for name in _spelled(flat_modules(table.id, diffusers), change.module)]
    return table.names.place_of(dotted[0] + _WEIGHT, diffusers=diffusers) if len(dotted) == 1 else None


def text_module(change: PictureChange) -> str | None:
    """The dotted name of a module of a text encoder; None for an unknown one."""
    if not change.prefix.underscored:
        return change.module
    return next(_spelled(text_modules(), change.module), None)


@cache
def flat_modules(table: str, diffusers: bool) -> Mapping[str, tuple[str, ...]]:
    """The templates of a table's modules, by their form with `_` for `.` and `#` for numbers."""
    names = next(one.names for one in tables() if one.id == table)
    templates = (name for row in names.rows for name in (row.diffusers if diffusers else (row.original,)))
    return _by_form(name.removesuffix(_WEIGHT) for name in templates if name.endswith(_WEIGHT))


@cache
def text_modules() -> Mapping[str, tuple[str, ...]]:
    clip = build_table(documents()["open_clip"])
    return _by_form([*(n.removesuffix(_WEIGHT) for row in clip.rows for n in row.diffusers), *_T5])


def _by_form(templates: Any) -> Mapping[str, tuple[str, ...]]:
    forms: dict[str, tuple[str, ...]] = {}
    for template in dict.fromkeys(templates):
        form = _NUMBER.sub("#", template.replace(".", "_"))
        forms[form] = (*forms.get(form, ()), template)
    return forms


def _spelled(forms: Mapping[str, tuple[str, ...]], module: str) -> Iterator[str]:
    """Yields the dotted names that a name with underscores may stand for."""
    for template in forms.get(_NUMBER.sub("#", module), ()):
        pattern = "_".join(r"(\d+)" if step == "*" else re.escape(step) for step in template.split("."))
        if match := re.fullmatch(pattern, module, re.ASCII):
            yield filled(template, match.groups())


def fits(lora: LocatedLora) -> bool:
    """Whether the sizes of the changed matrices are those of one of the table's models."""
    columns = {
        _layer(one.place.row.original): prod(down.spec.shape[1:])
        for one in lora.changes
        if (down := one.change.parts.get("down")) is not None
    }
    rows = (row for row in diffusion.table().rows if row.id in lora.table.models)
    return any(
        all(sizes[1] in (0, columns.get(_layer(name), sizes[1])) for name, sizes in row.conditions.shapes.items())
        for row in rows
    )


def _layer(name: str) -> str:
    """A layer of a block, which has the same inputs in all blocks."""
    return ".".join(name.split(".")[-3:-1])
