"""AQLM as tensors (`schema/codebooks.py` has its form in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.codebooks import AQLM, AqlmLayout
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import LogicalTensor, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node


@dataclass(frozen=True)
class AdditiveCodes(NoBlockForm):
    """Blocks of `layout.high` x `layout.wide` weights: a scale, times the sum of an entry of each codebook. A row has
    the blocks of `layout.high` rows of the matrix."""

    layout: AqlmLayout
    code_bits: int
    index: DType
    entry: DType
    scale: DType
    name: str = field(default=AQLM.name, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({"codes": 1, "books": 0, "scales": 1})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        """The sum in F32, in the order of the codebooks, then the scale, as aqlm does on a CPU."""
        books, entries, high, wide = self.layout
        codes: NDArray[Any] = parts["codes"].view(f"<u{self.index.size}").reshape(hi - lo, -1, books)
        table = kernels.widened(self.entry, parts["books"]).reshape(books, entries, high * wide)
        total = table[0][codes[..., 0] & (entries - 1)]
        for book in range(1, books):
            total += table[book][codes[..., book] & (entries - 1)]
        total *= kernels.widened(self.scale, parts["scales"])[:, None, None]
        out.reshape(hi - lo, high, -1, wide)[:] = total.reshape(hi - lo, -1, high, wide).swapaxes(1, 2)


def build(match: Match[AqlmLayout], stored: Mapping[str, Node]) -> LogicalTensor:
    """See `packings.schema.base.PackingSchema`."""
    books, _, high, _ = match.layout
    rows, width = match.shape[0] // high, match.shape[1]
    packing = AdditiveCodes(match.layout, match.bits or 0, *(stored[m].spec.dtype for m in AQLM.members))
    members = {
        "codes": nodes.reshape(stored["codes"], (rows, stored["codes"].spec.elements // rows)),
        "books": nodes.reshape(stored["books"], (books, stored["books"].spec.elements // books)),
        "scales": nodes.reshape(stored["scales"], (rows, 1)),
    }
    packed = QuantizedTensor(Spec((rows, high * width), F32), packing, members)
    return packed if high == 1 else nodes.reshape(nodes.decode(packed, "its blocks cross rows"), match.shape)
