"""Named layout changes: how a tensor's rows lie in one dialect and how they lie in another.

A layout is two-way (`undo(apply(t))` is `t`), says whether it is `exact`, and is named by architecture tables as
`name(arguments)`, the arguments being sizes of the model (`rope(H)`). A row move never looks inside a row, so it serves
plain and block-quantized tensors alike. The arithmetic is in pure functions that give an order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import FormatError
from weighbridge.tensors.nodes import Node, gather


class Layout(Protocol):
    """A two-way change. `exact`: `undo(apply(t))` gives back every bit; where not, a plan lists it as a loss."""

    @property
    def exact(self) -> bool: ...

    def apply(self, node: Node) -> Node: ...

    def undo(self, node: Node) -> Node: ...


@lru_cache(maxsize=64)
def rope_order(rows: int, heads: int) -> NDArray[np.int64]:
    """Where ggml's rows come from: row i of the interleaved tensor is row `order[i]` of the one with halves.

    Hugging Face rotates the pairs (j, j + d/2) of a head of d rows, ggml's NORM rope the pairs (2j, 2j + 1).
    llama.cpp `LlamaModel.permute`: reshape(heads, 2, d/2, ...), swap axes 1 and 2.
    """
    if heads <= 0 or rows % (2 * heads):
        raise FormatError("rotary heads don't divide the rows", expected=f"a multiple of {2 * heads}", found=rows)
    order = np.arange(rows, dtype=np.int64).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).ravel()
    order.setflags(write=False)
    return order


@lru_cache(maxsize=64)
def inverse(order_of: Callable[..., NDArray[np.int64]], *arguments: int) -> NDArray[np.int64]:
    """The order that undoes `order_of(*arguments)`."""
    order = order_of(*arguments)
    back = np.empty_like(order)
    back[order] = np.arange(order.size, dtype=np.int64)
    back.setflags(write=False)
    return back


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary halves of each head (Hugging Face) <-> neighbouring pairs (ggml)."""

    heads: int
    exact: bool = True

    def apply(self, node: Node) -> Node:
        return gather(node, rope_order(node.spec.rows, self.heads))

    def undo(self, node: Node) -> Node:
        return gather(node, inverse(rope_order, node.spec.rows, self.heads))


# name -> its constructor, which takes the sizes named in brackets
LAYOUTS: Final[Mapping[str, Callable[..., Layout]]] = MappingProxyType({"rope": Rope})


def layout(name: str, *arguments: int) -> Layout:
    """The layout that a table calls `name(arguments)`."""
    return LAYOUTS[name](*arguments)
