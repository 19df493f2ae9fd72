"""The tensors of an image or video model under the names of its single file or of diffusers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.diffusion.model import DIFFUSERS, ORIGINAL, DiffusionModel
from weighbridge.models.diffusion.names import to_diffusers, to_original
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

#: The key of a GGUF with a reshaped tensor's original shape (ComfyUI-GGUF, tools/convert.py).
SHAPE_KEY: Final = "comfy.gguf.orig_shape."


class NamedTensors(NamedTuple):
    """Tensors under the names of a dialect. `sources`: the stored names of each. `others`: stored names of tensors of
    other parts, and those that the table of names lacks."""

    tensors: dict[str, LogicalTensor]
    sources: dict[str, tuple[str, ...]]
    others: tuple[str, ...]


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
    """The tensors of a GGUF in their original shapes, read from the `comfy.gguf.orig_shape` keys."""
    from weighbridge.tensors.nodes import decode, reshape

    tensors = dict(model.logical)
    for key, shape in model.metadata.items():
        name = key.removeprefix(SHAPE_KEY)
        if name == key or name not in tensors:
            continue
        node, sizes = tensors[name], tuple(shape) if isinstance(shape, Sequence) else ()
        numbers = all(isinstance(size, int) and size > 0 for size in sizes)
        if not sizes or not numbers or prod(sizes) != node.spec.elements:
            reason, path = "the shape doesn't have the elements of the tensor", str(model.place.path)
            raise FormatError(reason, path=path, field=key, expected=node.spec.elements, found=list(sizes))
        whole = sizes[-1] % node.spec.dtype.block == 0
        tensors[name] = reshape(node if whole else decode(node), sizes)
    return tensors
