"""Roles that a dialect keeps in keys and not in tensors: a list of numbers, one for each index of the role.

A GGUF has the four numbers of each xIELU (Apertus) so: `xielu.alpha_p` for what is a tensor of one element in every
layer elsewhere. A table says it with `keyed`. Names, shapes and cuts are then those of a tensor of that name in which
the index is stacked; only who writes a GGUF puts it among the keys, and who reads one finds it there. A key that is
missing is so a missing tensor, and a layer's number that is missing a part of one.
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


def names(family: Family, dialect: str = "gguf") -> frozenset[str]:
    """The keys of a dialect that hold a role."""
    return (
        frozenset(t.name for t in family.dialects[dialect].templates if t.metadata)
        if dialect in family.dialects
        else frozenset()
    )


def of_graph(architecture: str) -> frozenset[str]:
    """Those of every family whose GGUFs are of this `general.architecture`."""
    return frozenset[str]().union(*map(names, families_of_graph(architecture)))


def tensors(family: Family, sizes: Sizes, metadata: Mapping[str, Any]) -> dict[str, Node]:
    """What a GGUF says in keys, as the tensors that the table speaks of, F32. A single number is that of every index,
    as llama.cpp takes it (`get_key_or_arr`). FormatError for another count of them, and for what is no number."""
    found = sorted(names(family) & metadata.keys())
    if not found:
        return {}
    import numpy as np

    from weighbridge.tensors.nodes import const

    places = family.expansion("gguf", sizes).places
    lists = {name: _numbers(name, metadata[name], math.prod(places[name].shape)) for name in found}
    return {name: const(np.array(values, dtype="<f4"), F32) for name, values in lists.items()}


def _numbers(key: str, value: Any, count: int) -> list[float]:
    listed = [value] * count if isinstance(value, int | float) else value
    if len(listed) != count:
        raise FormatError("hasn't a number for each layer", field=key, expected=count, found=len(listed))
    if isinstance(listed, str) or not all(type(n) in (int, float) for n in listed):
        raise FormatError("isn't a list of numbers", field=key, expected=f"{count}, one for each layer")
    return [float(n) for n in listed]
