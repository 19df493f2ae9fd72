"""Tensor-parallel parts of a ZeRO checkpoint's weights: the place of each part's blocks in the whole weight, by the
rules of `rules`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weighbridge.base.dtypes import F32, DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, SIGNED_64
from weighbridge.base.spec import Shape, Spec, c_strides
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry
from weighbridge.containers.boxes import Box, Hole, Tile, tile
from weighbridge.containers.torch.zero.rules import PartRules, SubParameters


class ZeroPiece(NamedTuple):
    """`length` elements of a stored tensor from element `start` on; `file`: the number of the index that has it."""

    file: int
    entry: Entry
    start: int
    length: int


class ZeroWeight(NamedTuple):
    """A whole weight, or its tensor-parallel part. `stored`: the type of its pieces, which are read as `spec.dtype`."""

    spec: Spec
    stored: DType
    pieces: tuple[ZeroPiece, ...]


class Block(NamedTuple):
    """A block of a whole weight, and its elements in part number `part`, which are divided by `scale`."""

    box: Box
    part: int
    start: int
    strides: tuple[int, ...]
    scale: float = 1.0


class JoinedWeight(NamedTuple):
    """A whole weight of tensor-parallel parts: the `blocks` that `tiles` names; their average if `tiles` is None and
    there are several parts, else the only part."""

    spec: Spec
    parts: tuple[ZeroWeight, ...]
    blocks: tuple[Block, ...] = ()
    tiles: Tile | None = None


def whole(weight: ZeroWeight) -> JoinedWeight:
    return JoinedWeight(weight.spec, (weight,))


class BlockLayout(NamedTuple):
    """The shape of a whole weight, and its blocks."""

    shape: Shape
    blocks: list[Block]


def joined_parts(name: str, parts: Sequence[ZeroWeight], rules: PartRules, path: str) -> JoinedWeight:
    """A weight of tensor-parallel parts."""
    if reason := rules.refused.find(name):
        raise UnsupportedError(f"{path}: DeepSpeed doesn't state how the parts of {name} are joined: {reason}")
    saved = rules.maps.find(name)
    equal = saved is None and (name in rules.whole or name in rules.averages)
    kinds = {(part.spec.dtype, part.stored, part.spec.shape if equal else ()) for part in parts}
    if len(kinds) > 1:
        shapes = [str(part.spec) for part in parts[:8]]
        raise FormatError("tensor-parallel parts have different shapes", path=path, field=name, found=shapes)
    if saved is not None:
        layout = affine_blocks(name, saved, parts, path)
    elif name in rules.whole:
        return whole(parts[0])
    elif name in rules.averages:
        return JoinedWeight(parts[0].spec.with_dtype(F32), tuple(parts))
    else:
        layout = _cut(name, parts, rules, path)
    shape, blocks = layout
    if name in rules.vocabulary and rules.rows is not None:
        if not shape or not 0 < rules.rows <= shape[0]:
            raise FormatError("more rows than the vocabulary's parts have", path=path, field=name, expected=rules.rows,
                              found=list(shape))  # fmt: skip
        shape = (rules.rows, *shape[1:])
    spec, everything = parts[0].spec.with_shape(*shape), Box((0,) * len(shape), shape)
    kept = [(block, block.box.common(everything)) for block in blocks]
    blocks = [block._replace(box=box) for block, box in kept if box.elements]
    try:
        tiles = tile(shape, [block.box for block in blocks]) if spec.elements else None
    except Hole as hole:
        raise FormatError(f"no tensor-parallel part has {hole}", path=path, field=name) from None
    return JoinedWeight(spec, tuple(parts) if tiles else (), tuple(blocks), tiles)


def _cut(name: str, parts: Sequence[ZeroWeight], rules: PartRules, path: str) -> BlockLayout:
    """A weight of parts that are next to each other along an axis, in sections if it has sub-parameters."""
    shapes = [part.spec.shape for part in parts]
    if (sub := rules.sub_parameters.find(name)) is not None:
        shapes, widths = _sub_parameters(name, sub, parts, path)
        return _sections(name, shapes, sub.axis, widths, path)
    halved = name in rules.halves
    axis = 0 if halved or name not in rules.columns else 1
    sizes = [shape[axis] if axis < len(shape) else -1 for shape in shapes]
    if -1 in sizes or (halved and any(size % 2 for size in sizes)):
        raise FormatError("not a shape of tensor-parallel parts", path=path, field=name, found=str(parts[0].spec))
    return _sections(name, shapes, axis, [[size // 2 for size in sizes]] * 2 if halved else [sizes], path)


def _sub_parameters(
    name: str, sub: SubParameters, parts: Sequence[ZeroWeight], path: str
) -> tuple[list[Shape], Sequence[Sequence[int]]]:
    """The shapes of the parts, and the widths of each sub-parameter's."""
    elements = sum(part.spec.elements for part in parts)
    sizes, widths = sub.sizes, sub.widths
    if isinstance(sizes, int):
        total = sum(part.spec.shape[sub.axis] for part in parts if sub.axis < len(part.spec.shape))
        sizes = (total // sizes,) * sizes
    if widths is None and not any(size % len(parts) for size in sizes):
        widths = tuple((size // len(parts),) * len(parts) for size in sizes)
    if widths is None or tuple(map(sum, widths)) != sizes or any(len(cut) != len(parts) for cut in widths):
        raise FormatError("not the sub-parameters of as many tensor-parallel parts", path=path, field=name,
                          found=f"{list(sizes[:8])} in {plural(len(parts), 'part')}")  # fmt: skip
    known = sum(sizes) * math.prod(n for axis, n in enumerate(sub.shape) if n >= 0 and axis != sub.axis)
    shape = [elements // max(known, 1) if n < 0 else n for n in sub.shape]
    shapes = [(*shape[: sub.axis], sum(cut[n] for cut in widths), *shape[sub.axis + 1 :]) for n in range(len(parts))]
    if any(math.prod(cut) != part.spec.elements for cut, part in zip(shapes, parts, strict=True)):
        raise FormatError("sub-parameters don't have the sizes of the parts", path=path, field=name,
                          expected=[list(cut) for cut in shapes[:8]], found=[str(p.spec) for p in parts])  # fmt: skip
    return shapes, widths


def _sections(name: str, shapes: Sequence[Shape], axis: int, widths: Sequence[Sequence[int]], path: str) -> BlockLayout:
    """Sections along `axis` of the parts' shapes, each of parts of these widths."""
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) > 1:
        raise FormatError("tensor-parallel parts have different shapes", path=path, field=name,
                          found=[list(shape) for shape in shapes[:8]])  # fmt: skip
    blocks: list[Block] = []
    at, before = 0, [0] * len(shapes)
    for section in widths:
        for part, (shape, width) in enumerate(zip(shapes, section, strict=True)):
            strides = c_strides(shape)
            starts = (*(0,) * axis, at, *(0,) * (len(shape) - axis - 1))
            box = Box(starts, (*shape[:axis], width, *shape[axis + 1 :]))
            blocks.append(Block(box, part, before[part] * strides[axis], strides))
            before[part] += width
            at += width
    return BlockLayout((*shapes[0][:axis], at, *shapes[0][axis + 1 :]), blocks)


def affine_blocks(name: str, saved: Mapping[str, Any], parts: Sequence[ZeroWeight], path: str) -> BlockLayout:
    """The blocks of an affine map, which states each block's elements in the whole weight and in its part, by offset
    and strides."""
    shape = _integers(saved.get("logical_shape")) if isinstance(saved, dict) else None
    ranks = saved.get("ranks") if shape is not None else None
    blocks: list[Block] = []
    for number, part in enumerate(parts if isinstance(ranks, dict) and len(ranks) == len(parts) else ()):
        rank = ranks.get(number, ranks.get(str(number))) if ranks else None
        pieces = rank.get("pieces") if isinstance(rank, dict) else None
        found = [_block(piece, number, shape or (), part) for piece in pieces or ()]
        kept = [block for block in found if block is not None]
        if len(kept) < len(found) or sum(block.box.elements for block in kept) != part.spec.elements:
            break
        blocks += kept
    else:
        if shape is not None and ranks and len(ranks) == len(parts):
            return BlockLayout(shape, blocks)
    raise FormatError("not the places of the blocks of tensor-parallel parts", path=path, field=name)


def _block(piece: Any, number: int, shape: Shape, part: ZeroWeight) -> Block | None:
    """A piece of an affine map that is a block of the whole weight; None for others."""
    if not isinstance(piece, dict):
        return None
    sizes, scale = _integers(piece.get("shape")), piece.get("scale", 1.0)
    (offset, steps), (start, strides) = _place(piece.get("source")), _place(piece.get("dest"))
    if sizes is None or not len(sizes) == len(steps) == len(strides) == len(shape):
        return None
    if type(scale) not in (int, float) or not math.isfinite(scale) or scale == 0 or offset < 0 or start < 0:
        return None
    starts = []
    for step in c_strides(shape):
        starts.append(offset // step)
        offset %= step
    last = start + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    inside = all(at + n <= size for at, n, size in zip(starts, sizes, shape, strict=True))
    in_order = all(n < 2 or a == b for n, a, b in zip(sizes, steps, c_strides(shape), strict=True))
    box = Box(tuple(starts), sizes)
    if box.elements and not (inside and in_order and last < part.spec.elements):
        return None
    return Block(box, number, start, strides, float(scale))


def _place(value: Any) -> tuple[int, Shape]:
    """An offset and strides; -1 if they aren't."""
    good = isinstance(value, list | tuple) and len(value) == 2 and type(value[0]) is int
    strides = _integers(value[1]) if good else None
    return (-1, ()) if strides is None else (value[0], strides)


def _integers(value: Any) -> Shape | None:
    good = isinstance(value, list | tuple) and len(value) <= DIMS
    return tuple(value) if good and all(type(n) is int and 0 <= n < SIGNED_64 for n in value) else None
