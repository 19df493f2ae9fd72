"""The values of EXL3 (`schema/codebooks.py` has its form in a file).

A code is the end of a path: with the codes before it in the tile, it is a state of 16 bits, which a codebook maps to an
F16 number by integer arithmetic. The matrix is then rotated in blocks of 128 rows and columns by Hadamard matrices, and
scaled. exllamav3 rounds to F16 in between; here only the codebook's values are F16. Source: exllamav3
(exllamav3_ext/quant: codebook.cuh, exl3_dq.cuh, reconstruct.cu, pack.cu; modules/quant/exl3.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F16
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.schema.codebooks import EXL3
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes.base import Bytes

Words = NDArray[np.uint32]
Codebook = Literal["3inst", "mcg", "mul1"]

_TILE: Final = 16
_STATE_BITS: Final = 16
_SIGNS: Final = 16  # in an older file's word
ROTATED: Final = 128
# Multiplier and addend of a state; masks that make two F16 numbers of the result.
_3INST: Final = (89_226_354, 64_248_484)
_MCG: Final = (0xCBAC1FED, 0)
_KEPT_BITS: Final = 0x8FFF8FFF
_EXPONENTS: Final = 0x3B603B60
# Of mul1: the sum of bytes becomes the F16 number 1024 + sum, which is scaled and shifted by F16 numbers.
_MUL1: Final = 0x83DCD12D
_MUL1_SCALE, _MUL1_SHIFT = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float64)
_MUL1_BASE: Final = 1024


def _two_halves(states: Words, multiplier: int, addend: int) -> NDArray[np.float16]:
    x = states * np.uint32(multiplier) + np.uint32(addend)
    halves = ((x & np.uint32(_KEPT_BITS)) ^ np.uint32(_EXPONENTS)).view(np.uint16).view(np.float16)
    return np.asarray(halves[::2] + halves[1::2])


def _byte_sum(states: Words) -> NDArray[np.float16]:
    total = (states * np.uint32(_MUL1)).view(np.uint8).reshape(-1, 4).sum(1)
    return np.asarray((_MUL1_BASE + total) * _MUL1_SCALE + _MUL1_SHIFT, np.float16)


_CODEBOOKS: Final[Mapping[Codebook, Callable[[Words], NDArray[np.float16]]]] = MappingProxyType({
    "3inst": lambda states: _two_halves(states, *_3INST),
    "mcg": lambda states: _two_halves(states, *_MCG),
    "mul1": _byte_sum,
})  # fmt: skip


@cache
def codebook(name: Codebook) -> NDArray[np.float32]:
    """The value of each state, [2^16]."""
    return _CODEBOOKS[name](np.arange(1 << _STATE_BITS, dtype=np.uint32)).astype(np.float32)


@cache
def tile_order() -> NDArray[np.int64]:
    """The place in the order of codes of each weight of a tile, [16 x 16]: eight codes per lane of a tensor core."""
    lane, code = np.divmod(np.arange(_TILE * _TILE), 8)
    row = lane % 4 * 2 + (code & 1) + 8 * (code >> 1 & 1)
    column = lane // 4 + 8 * (code >> 2)
    order = np.empty(_TILE * _TILE, np.int64)
    order[row * _TILE + column] = np.arange(_TILE * _TILE)
    return order


@cache
def _rotation() -> NDArray[np.float32]:
    """The Hadamard matrix of 128 rows by Sylvester's construction, orthogonal."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < ROTATED:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(np.sqrt(ROTATED))


def states(tiles: NDArray[np.uint32], bits: int) -> NDArray[np.uint16]:
    """The states of each tile [tiles, 256], of its words [tiles, 8 * bits]. A code follows those before it, the first
    one the last."""
    stream = np.unpackbits(tiles.byteswap().view(np.uint8), axis=-1)
    codes = stream.reshape(len(tiles), _TILE * _TILE, bits) @ (1 << np.arange(bits)[::-1]).astype(np.uint16)
    out, shift = codes.astype(np.uint16), bits
    while shift < _STATE_BITS:
        out |= np.roll(codes, shift // bits, -1).astype(np.uint16) << np.uint16(shift)
        shift += bits
    return out


@dataclass(frozen=True)
class TrellisCodes(NoBlockForm):
    """A matrix [in, out]. `signs`: its scales are signs, 16 in a word."""

    code_bits: int
    book: Codebook
    signs: bool
    name: str = field(default=EXL3.name, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({"codes": ROTATED, "inputs": _SIGNS if self.signs else 1, "outputs": 0})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        """Rotates bands of 128 rows, then scales."""
        width, first = spec.shape[-1], lo // ROTATED * ROTATED
        words = np.ascontiguousarray(parts["codes"]).view("<u4").reshape(-1, 8 * self.code_bits).astype(np.uint32)
        tiles = codebook(self.book)[states(words, self.code_bits)][:, tile_order()]
        bands = tiles.reshape(-1, width // _TILE, _TILE, _TILE).swapaxes(1, 2).reshape(-1, ROTATED, width)
        bands = np.matmul(_rotation(), bands)
        bands = np.matmul(bands.reshape(len(bands), -1, ROTATED), _rotation()).reshape(-1, width)
        inputs = self._scales(parts["inputs"], lo - lo // _SIGNS * _SIGNS, hi - lo)
        np.multiply(bands[lo - first : hi - first], inputs[:, None], out.reshape(hi - lo, width))
        out.reshape(hi - lo, width)[:] *= self._scales(parts["outputs"], 0, width)

    def _scales(self, data: Bytes, start: int, count: int) -> NDArray[np.float32]:
        if not self.signs:
            found: NDArray[Any] = kernels.widened(F16, data)
            return found
        flags = np.unpackbits(np.ascontiguousarray(data), bitorder="little")[start : start + count]
        return 1 - 2 * flags.astype(np.float32)
