"""Which image or video model tensors belong to, and in whose names: those of the single file, or of diffusers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.sniff import diffusion
from weighbridge.containers.sniff.diffusion import DiffusionRow
from weighbridge.models.diffusion.names import NameTable, filled, table

#: The dialects of names, for `wb rename --to-names`.
ORIGINAL: Final = "original"
DIFFUSERS: Final = "diffusers"
_DENOISER: Final = "denoiser"
_TEXT: Final = "text"


class DiffusionModel(NamedTuple):
    """`prefix`: of its names in the file. `names`: the table of its names; None if it has none."""

    row: DiffusionRow
    title: str
    prefix: str
    dialect: str
    names: NameTable | None

    @property
    def denoises(self) -> bool:
        """Whether it is the part of a pipeline that GGUFs are made of."""
        return self.row.part == _DENOISER

    def known(self, names: Iterable[str]) -> int:
        """The number of names in diffusers that its table has."""
        return 0 if self.names is None else self.names.count(names)


def diffusion_model(shapes: Mapping[str, Sequence[int]], path: Path) -> DiffusionModel | None:
    """The image or video model with tensors of these names and shapes; None for other models. UnsupportedError if two
    tables fit. `path`: of the model, for errors."""
    matches = diffusion.matches(shapes)
    found = [match for match in matches if match.row.part == _DENOISER] or [*matches]
    if len({match.row.id for match in found}) > 1:
        titles = " and ".join(match.title for match in found)
        raise UnsupportedError(f"{path} has the tensors of {titles}", hint="wb identify names the parts")
    # a text encoder of transformers may be OpenCLIP's, under the names that diffusers gives it
    if found and (found[0].row.part != _TEXT or table(found[0].row.id)):
        match = found[0]
        return DiffusionModel(match.row, match.title, match.prefix, ORIGINAL, table(match.row.id))
    # some models' names are a subset of another's: the table that matches the most names wins
    return max(_in_diffusers(shapes), key=lambda candidate: candidate.known(shapes), default=None)


def _in_diffusers(shapes: Mapping[str, Sequence[int]]) -> Iterator[DiffusionModel]:
    """Yields the models whose diffusers names match."""
    for row in diffusion.table().rows:
        known = table(row.id)
        if known is not None and all(_exists(known, name, row, shapes) for name in row.conditions.names):
            model = DiffusionModel(row, row.title, "", DIFFUSERS, known)
            # a whole CLIP has these tensors too, and others: it is no text encoder
            if row.part != _TEXT or model.known(shapes) == sum(not name.endswith(".position_ids") for name in shapes):
                yield model


def _exists(known: NameTable, name: str, row: DiffusionRow, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether a tensor of a single file exists under its names in diffusers, with the sizes that its row requires."""
    place = known.place_of(name, diffusers=False)
    if place is None:
        return False
    names = [filled(template, place.numbers) for template in place.row.diffusers]
    sizes = row.conditions.shapes.get(name)
    return all(n in shapes for n in names) and (sizes is None or diffusion.fits(shapes[names[0]], sizes))
