"""An open model as an image or video model: which one it is, and its tensors under the names of its single file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.sniff import diffusion
from weighbridge.containers.sniff.diffusion import DiffusionRow
from weighbridge.models.diffusion.names import NameTable, filled, table, to_diffusers, to_original

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel
    from weighbridge.tensors.nodes import LogicalTensor

#: The dialects of names, for `wb rename --to-names`.
ORIGINAL: Final = "original"
DIFFUSERS: Final = "diffusers"
#: The key of a GGUF with the shape of a tensor whose rows were divided anew (ComfyUI-GGUF, tools/convert.py).
SHAPE_KEY: Final = "comfy.gguf.orig_shape."
ARCHITECTURE: Final = "general.architecture"


class DiffusionModel(NamedTuple):
    """`prefix`: of its names in the file. `names`: the table of its names; None if it has none."""

    row: DiffusionRow
    title: str
    prefix: str
    dialect: str
    names: NameTable | None


class NamedTensors(NamedTuple):
    """Tensors under the names of a dialect. `sources`: the stored names of each. `others`: stored names of tensors of
    other parts, and those that the table of names lacks."""

    tensors: dict[str, LogicalTensor]
    sources: dict[str, tuple[str, ...]]
    others: tuple[str, ...]


def diffusion_model(model: OpenModel) -> DiffusionModel | None:
    """The image or video model that an open model is; None for other models. UnsupportedError if two tables fit."""
    if model.format == "gguf" and model.metadata.get(ARCHITECTURE) not in {None, *diffusion.architectures()}:
        return None
    shapes = {e.name: e.shape for e in model.index} if model.nodes is None else _shapes(model.nodes)
    found = diffusion.denoisers(shapes)
    if len({match.row.id for match in found}) > 1:
        titles = " and ".join(match.title for match in found)
        raise UnsupportedError(f"{model.place.path} has the tensors of {titles}", hint="wb identify names the parts")
    for match in found:
        return DiffusionModel(match.row, match.title, match.prefix, ORIGINAL, table(match.row.id))
    return next(_in_diffusers(shapes), None)


def _in_diffusers(shapes: Mapping[str, Sequence[int]]) -> Iterator[DiffusionModel]:
    """The models whose names in diffusers these are."""
    for row in diffusion.table().rows:
        known = table(row.id) if row.part == "denoiser" else None
        if known is not None and all(_exists(known, name, row, shapes) for name in row.conditions.names):
            yield DiffusionModel(row, row.title, "", DIFFUSERS, known)


def _exists(known: NameTable, name: str, row: DiffusionRow, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether a tensor of a single file exists under its names in diffusers, with the sizes that its row requires."""
    place = known.place_of(name, diffusers=False)
    if place is None:
        return False
    names = [filled(template, place.numbers) for template in place.row.diffusers]
    sizes = row.conditions.shapes.get(name)
    return all(n in shapes for n in names) and (sizes is None or diffusion.fits(shapes[names[0]], sizes))


def _shapes(nodes: Mapping[str, LogicalTensor]) -> dict[str, Sequence[int]]:
    return {name: node.spec.shape for name, node in nodes.items()}


def named_tensors(model: OpenModel, found: DiffusionModel, dialect: str = ORIGINAL) -> NamedTensors:
    """The tensors of the model under the names of a dialect, without prefix, in the shapes of that dialect.

    Raises UnsupportedError if the model has no table of names, and FormatError if a part of a tensor is missing."""
    tensors = original_shapes(model) if model.format == "gguf" else model.logical
    own = {name.removeprefix(found.prefix): name for name in tensors if name.startswith(found.prefix)}
    others = tuple(name for name in tensors if not name.startswith(found.prefix))
    plain = {name: tensors[stored] for name, stored in own.items()}
    if dialect == found.dialect:
        return NamedTensors(plain, {name: (stored,) for name, stored in own.items()}, others)
    if found.names is None:
        raise UnsupportedError(f"there is no table of the names of {found.row.title} in diffusers")
    try:
        renamed = (to_diffusers if dialect == DIFFUSERS else to_original)(found.names, plain)
    except FormatError as error:
        raise FormatError(error.reason, path=str(model.place.path)) from None
    sources = {name: tuple(own[old] for old in olds) for name, olds in renamed.sources.items()}
    return NamedTensors(renamed.tensors, sources, (*others, *(own[name] for name in renamed.unknown)))


def original_shapes(model: OpenModel) -> dict[str, LogicalTensor]:
    """The tensors of a GGUF in their original shapes, which keys hold if rows were divided anew."""
    from weighbridge.tensors.nodes import decode, reshape

    tensors = dict(model.logical)
    for key, shape in model.metadata.items():
        name = key.removeprefix(SHAPE_KEY)
        if name == key or name not in tensors:
            continue
        node, sizes = tensors[name], tuple(shape) if isinstance(shape, Sequence) else ()
        count = 1
        for size in sizes:
            count *= size if isinstance(size, int) and size > 0 else 0
        if not sizes or count != node.spec.elements:
            raise FormatError(
                "the shape doesn't have the elements of the tensor", path=str(model.place.path), field=key,
                expected=node.spec.elements, found=list(sizes),
            )  # fmt: skip
        whole = sizes[-1] % node.spec.dtype.block == 0
        tensors[name] = reshape(node if whole else decode(node), sizes)
    return tensors
