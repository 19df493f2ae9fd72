"""Roles that a dialect stores in keys instead of tensors: a list of numbers, one per index of the role.

A GGUF stores the four numbers of each xIELU (Apertus) like this: `xielu.alpha_p` replaces a tensor of one element in
every layer. A table declares it with `as_metadata`. Names, shapes and cuts are those of a tensor of that name with a
stacked index; only the reader and the writer of a GGUF know that it is a key. So a missing key is a missing tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError
from weighbridge.models.arch.expand import Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families_of_graph

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node


def of_graph(architecture: str) -> frozenset[str]:
    """The keys of every family with this `general.architecture`."""
    return frozenset[str]().union(*(f.metadata_names() for f in families_of_graph(architecture)))


def tensors(family: Family, sizes: Sizes, metadata: Mapping[str, Any]) -> dict[str, Node]:
    """The tensors that a GGUF stores in keys, in F32. A single number counts for every index, as in llama.cpp
    (`get_key_or_arr`). FormatError for another number of values or a value that is not a number."""
    keys = sorted(family.metadata_names() & metadata.keys())
    if not keys:
        return {}
    import numpy as np

    from weighbridge.tensors.nodes import const

    places = family.expansion("gguf", sizes).places
    shapes = {key: places[key].shape for key in keys}
    lists = {key: _numbers(key, metadata[key], math.prod(shape)) for key, shape in shapes.items()}
    return {name: const(np.array(v, dtype="<f4").reshape(shapes[name]), F32) for name, v in lists.items()}


def _numbers(key: str, value: Any, count: int) -> list[float]:
    listed = [value] * count if isinstance(value, int | float) else value
    if len(listed) != count:
        raise FormatError("needs a number per layer", field=key, expected=count, found=len(listed))
    if isinstance(listed, str) or not all(type(n) in (int, float) for n in listed):
        raise FormatError("is not a list of numbers", field=key, expected=f"{count}, one per layer")
    return [float(n) for n in listed]
