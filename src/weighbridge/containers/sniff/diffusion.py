"""Recognises image and video models by the tensor names and shapes of their single files, by the table diffusion.toml.

A file may hold several parts of a pipeline (denoiser, VAE, text encoders), one match each. Two matches of one part mean
that the names don't decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from weighbridge.base.imports.tables import read_table
from weighbridge.base.spec import Shape


class Conditions(NamedTuple):
    """Names that must exist, names that must not, and sizes of tensors (0: any)."""

    names: tuple[str, ...]
    lacks: tuple[str, ...]
    shapes: Mapping[str, Shape]

    def hold(self, shapes: Mapping[str, Sequence[int]], prefix: str) -> bool:
        """Whether tensors of these names and shapes meet the conditions under a prefix."""
        return (
            all(prefix + name in shapes for name in self.names)
            and not any(prefix + name in shapes for name in self.lacks)
            and all(fits(shapes.get(prefix + name), sizes) for name, sizes in self.shapes.items())
        )


class Variant(NamedTuple):
    """A version of a model, and what distinguishes it."""

    title: str
    conditions: Conditions


class DiffusionRow(NamedTuple):
    """A row of the table. `gguf`: general.architecture of its GGUFs; None if ComfyUI-GGUF has none."""

    id: str
    title: str
    part: str
    conditions: Conditions
    variants: tuple[Variant, ...]
    gguf: str | None


class DiffusionMatch(NamedTuple):
    """A model that tensors belong to, and the prefix of its names."""

    row: DiffusionRow
    title: str
    prefix: str


class DiffusionTable(NamedTuple):
    """All rows, and the prefixes of each part."""

    rows: tuple[DiffusionRow, ...]
    prefixes: Mapping[str, tuple[str, ...]]


@cache
def table() -> DiffusionTable:
    """The parsed table."""
    return build_table(read_table(__file__, "diffusion.toml"))


def build_table(raw: Mapping[str, Any]) -> DiffusionTable:
    """The rows of a parsed table."""
    rows = tuple(
        DiffusionRow(
            row["id"], row["title"], row["part"], _conditions(row),
            tuple(Variant(v["title"], _conditions(v)) for v in row.get("variants", ())), row.get("gguf"),
        )
        for row in raw["model"]
    )  # fmt: skip
    return DiffusionTable(rows, {part: tuple(prefixes) for part, prefixes in raw["prefixes"].items()})


def _conditions(row: Mapping[str, Any]) -> Conditions:
    shapes = {name: tuple(sizes) for name, sizes in row.get("shape", {}).items()}
    return Conditions(tuple(row.get("names", ())), tuple(row.get("lacks", ())), shapes)


def fits(shape: Sequence[int] | None, sizes: Shape) -> bool:
    """Whether a shape has these sizes. The size 0 fits any."""
    return (
        shape is not None and len(shape) == len(sizes) and all(n in (0, m) for n, m in zip(sizes, shape, strict=True))
    )


def matches(
    shapes: Mapping[str, Sequence[int]], diffusion_table: DiffusionTable | None = None
) -> tuple[DiffusionMatch, ...]:
    """The models that tensors of these names and shapes belong to, in the table's order."""
    diffusion_table = diffusion_table or table()
    return tuple(
        DiffusionMatch(
            row, next((v.title for v in row.variants if v.conditions.hold(shapes, prefix)), row.title), prefix
        )
        for row in diffusion_table.rows
        for prefix in diffusion_table.prefixes[row.part]
        if row.conditions.hold(shapes, prefix)
    )


# Patterns of `tensor_names.FAMILIES` that files of these models may match. The table isn't read for others.
_FAMILIES: Final = frozenset({None, "clip", "t5", "ldm", "flux", "dit", "unet"})


def title_of(shapes: Mapping[str, Sequence[int]], family: str | None) -> str | None:
    """A line about the models in a file; None if it has none, or only a text encoder. `family`: of the names."""
    models = matches(shapes) if family in _FAMILIES else ()
    return describe(models) if any(model.row.part != "text" for model in models) else None


@cache
def architectures() -> frozenset[str]:
    """The general.architecture of GGUFs that ComfyUI-GGUF reads."""
    return frozenset(row.gguf for row in table().rows if row.gguf)


def describe(models: Sequence[DiffusionMatch]) -> str:
    """A line about the parts, such as `FLUX.1 [dev], with VAE`. Notes if two rows fit one part."""
    parts: dict[tuple[str, str], list[str]] = {}
    for model in models:
        group = (model.row.part, model.prefix if model.row.part == "text" else "")
        parts.setdefault(group, []).append(model.title)
    lines = [" or ".join(dict.fromkeys(titles)) + " (both fit)" * (len(set(titles)) > 1) for titles in parts.values()]
    return lines[0] + (f", with {', '.join(lines[1:])}" if len(lines) > 1 else "")
