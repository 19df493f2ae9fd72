"""Layouts of single tensors that mlx-vlm's classes change: axes, shapes, types and lengths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError
from weighbridge.base.words import plural

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node


def with_axis(name: str, node: LogicalTensor, source: int, target: int) -> Node:
    """The tensor with the axis `source` moved to `target`. Raises FormatError if it has too few axes."""
    from weighbridge.tensors.nodes import as_node, reshape, strided  # late: numpy

    plain = as_node(node)
    shape = plain.spec.shape
    if len(shape) <= max(source, target):
        raise FormatError(f"{name} has the shape {list(shape)}, which has no axis {max(source, target)}")
    axes = list(range(len(shape)))
    axes.insert(target % len(shape), axes.pop(source))
    strides = [math.prod(shape[axis + 1 :]) for axis in axes]
    return strided(reshape(plain, (plain.spec.elements,)), 0, [shape[axis] for axis in axes], strides)


def integers(node: LogicalTensor, dtype: DType) -> Node:
    """Integers in another type."""
    from weighbridge.tensors.nodes import as_node, cast  # late: numpy

    return cast(as_node(node), dtype)


def reshaped(node: LogicalTensor, shape: list[Any]) -> Node:
    """The tensor in another shape; -1: as many elements as are left. Raises FormatError if the sizes don't fit."""
    from weighbridge.tensors.nodes import as_node, reshape  # late: numpy

    plain = as_node(node)
    if -1 in shape:
        shape = [shape[0], plain.spec.elements // max(shape[0], 1)]
    if not all(isinstance(size, int) for size in shape) or math.prod(shape) != plain.spec.elements:
        raise FormatError(f"config.json has no sizes for a convolution of {plural(plain.spec.elements, 'element')}")
    return reshape(plain, tuple(shape))


def padded(node: LogicalTensor, size: int) -> Node:
    """A vector of `size` elements, with zeros behind those that it has."""
    from weighbridge.tensors.nodes import as_node, concat, zeros  # late: numpy

    plain = as_node(node)
    return concat([plain, zeros((size - plain.spec.elements,), plain.spec.dtype)])


def shifted(node: LogicalTensor, by: int) -> Node:
    """The tensor plus `by`."""
    from weighbridge.tensors.nodes import shift  # late: numpy

    return shift(node, by)
