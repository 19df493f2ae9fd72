"""AQLM and EXL3 as tensors (`schema/codebooks.py` has their forms in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.codebooks import AQLM, EXL3, AqlmLayout
from weighbridge.packings.trellis import ROTATED, Codebook, TrellisCodes
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


def build(match: Match[Any], stored: Mapping[str, Node]) -> LogicalTensor:
    """See `packings.schema.base.PackingSchema`."""
    return (_trellis if match.schema is EXL3 else _additive)(match, stored)


def _additive(match: Match[AqlmLayout], stored: Mapping[str, Node]) -> LogicalTensor:
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


def _trellis(match: Match[Any], stored: Mapping[str, Node]) -> LogicalTensor:
    if match.bits is None:
        raise UnsupportedError(f"{match.name} is packed as EXL3 with codes of two widths, which aren't decoded",
                               hint="use the unquantized model; wb get --raw reads its stored tensors")  # fmt: skip
    outer, inner = match.shape
    signs = "inputs" not in stored
    inputs, outputs = (
        (stored["input_signs"], stored["output_signs"]) if signs else (stored["inputs"], stored["outputs"])
    )
    book: Codebook = "mcg" if "mcg" in stored else "mul1" if "mul1" in stored else "3inst"
    bands = inner // ROTATED
    members = {
        "codes": nodes.reshape(stored["codes"], (bands, stored["codes"].spec.elements // bands)),
        "inputs": nodes.reshape(inputs, (inputs.spec.elements, 1)),
        "outputs": nodes.reshape(outputs, (1, outputs.spec.elements)),
    }
    packed = QuantizedTensor(Spec((inner, outer), F32), TrellisCodes(match.bits, book, signs), members)
    return nodes.transpose(nodes.decode(packed, "its rows and columns are rotated"))
