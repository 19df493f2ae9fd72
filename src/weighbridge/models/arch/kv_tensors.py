"""Roles that a dialect stores in keys instead of tensors: a list of numbers, one per index of the role, or integers.

A GGUF stores the four numbers of each xIELU (Apertus) like this: `xielu.alpha_p` replaces a tensor of one element in
every layer. It stores the 64-bit constants of hashed n-grams (Qwen 4) as lists of integers. A table declares both with
`as_metadata`. Names, shapes and cuts are those of a tensor of that name with a stacked index; only the reader and the
writer of a GGUF know that it is a key. So a missing key is a missing tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weighbridge.base.dtypes import F32, I64
from weighbridge.base.errors import FormatError
from weighbridge.models.arch.expand import Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families_of_graph
from weighbridge.models.arch.tables.spec import INTEGERS
from weighbridge.models.arch.tables.values import integer

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node


def of_graph(architecture: str) -> frozenset[str]:
    """The keys of every family with this `general.architecture`."""
    return frozenset[str]().union(*(f.metadata_names() for f in families_of_graph(architecture)))


def tensors(family: Family, sizes: Sizes, metadata: Mapping[str, Any]) -> dict[str, Node]:
    """The tensors that a GGUF stores in keys, in F32 or I64. A single number counts for every index, as in llama.cpp
    (`get_key_or_arr`). FormatError for another number of values or a value that is not a number."""
    keys = sorted(family.metadata_names() & metadata.keys())
    if not keys:
        return {}
    import numpy as np

    from weighbridge.tensors.nodes import const

    places = family.expansion("gguf", sizes).places
    out: dict[str, Node] = {}
    for key in (key for key in keys if key in places):
        shape, whole = places[key].shape, family.rows[places[key].roles[0]].kind == INTEGERS
        values = (_integers if whole else _numbers)(key, metadata[key], math.prod(shape))
        out[key] = const(np.array(values, "<i8" if whole else "<f4").reshape(shape), I64 if whole else F32)
    return out


def _integers(key: str, value: Any, count: int) -> list[int]:
    listed = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
    if len(listed) != count:
        raise FormatError("needs as many integers as the config implies", field=key, expected=count, found=len(listed))
    return [integer(n, key, most=(1 << 63) - 1) for n in listed]


def _numbers(key: str, value: Any, count: int) -> list[float]:
    listed = [value] * count if isinstance(value, int | float) else value
    if len(listed) != count:
        raise FormatError("needs a number per layer", field=key, expected=count, found=len(listed))
    if isinstance(listed, str) or not all(type(n) in (int, float) for n in listed):
        raise FormatError("is not a list of numbers", field=key, expected=f"{count}, one per layer")
    return [float(n) for n in listed]
