"""Unpacks integer codes from words, in the bit layouts of quantizers, to one byte per code.

stream      element i has bits [i * b, i * b + b) of the row's bytes. MLX, GPTQ (transposed), compressed-tensors
            from 0.18 on. 32 codes are b words of 32 bits.
padded      32 // b codes a word, low bits first, the rest of the word unused. compressed-tensors up to 0.17 for
            3, 5, 6 and 7 bits (the others are a stream).
planar      32 codes are b words: a plane of the low bits, then a plane of the next (3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2,
            7 = 4 + 2 + 1), each a stream. GPTQModel's gptq_p.
awq         nibbles of a word hold columns 0 2 4 6 1 3 5 7 (AutoAWQ's GEMM kernel).
high-first  two codes a byte, the first in the high nibble. bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.tensors import kernels, np

if TYPE_CHECKING:
    from weighbridge.tensors.reference.floats import Bytes

_PLANES: Final = MappingProxyType({2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)})


def _padded(bits: int, rows: Bytes) -> Bytes:
    words = rows.view(np.uint32)
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    codes = (words[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(len(rows), -1)


def _planar(bits: int, rows: Bytes) -> Bytes:
    chunks = rows.reshape(-1, 4 * bits)
    codes, at = np.zeros((len(chunks), 32), np.uint8), 0
    for plane in _PLANES[bits]:
        part = np.ascontiguousarray(chunks[:, 4 * at : 4 * (at + plane)])
        codes |= kernels.unpack_codes(plane, part.reshape(-1)).reshape(-1, 32) << np.uint8(at)
        at += plane
    return codes.reshape(len(rows), -1)


def _awq(bits: int, rows: Bytes) -> Bytes:
    return kernels.unpack_awq(rows.reshape(-1)).reshape(len(rows), -1)


def _high_first(bits: int, rows: Bytes) -> Bytes:
    return _stream(4, (rows << 4 | rows >> 4).astype(np.uint8))


def _stream(bits: int, rows: Bytes) -> Bytes:
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % bits)))  # a row may end inside a run of eight codes
    return kernels.unpack_codes(bits, np.ascontiguousarray(rows).reshape(-1)).reshape(len(rows), -1)


LAYOUTS: Final[Mapping[str, Callable[[int, Bytes], Bytes]]] = MappingProxyType(
    {"stream": _stream, "padded": _padded, "planar": _planar, "awq": _awq, "high-first": _high_first}
)


def unpack(layout: str, bits: int, rows: Bytes, columns: int) -> Bytes:
    """The codes, U8 [rows, columns], from U8 [rows, row_bytes]. Drops the padding at the end of a row."""
    return LAYOUTS[layout](bits, rows)[:, :columns]


#: Layouts that can be written: the order of the codes in a word. Reordered, they are a stream.
_ORDERS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType({"stream": (0,), "awq": (0, 2, 4, 6, 1, 3, 5, 7)})


def pack(layout: str, bits: int, rows: Bytes) -> Bytes:
    """The inverse of `unpack`: U8 [rows, bytes] of whole 32-bit words, padded with zeros, from U8 [rows, columns]."""
    columns, order = rows.shape[1], _ORDERS[layout]
    padded = np.pad(rows, ((0, 0), (0, -columns % 32)))
    stream = padded.reshape(len(rows), -1, len(order))[:, :, list(order)]
    packed = kernels.pack_codes(bits, np.ascontiguousarray(stream).reshape(-1)).reshape(len(rows), -1)
    return packed[:, : -(-columns * bits // 32) * 4]
