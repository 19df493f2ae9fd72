"""Packs and unpacks chunks: by the extension. Without it numpy unpacks them, about a hundred times slower."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, E4M3, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.native import native, reason

if TYPE_CHECKING:
    from typing_extensions import Buffer


E4M3_FNUZ: Final = BY_NAME["F8_E4M3FNUZ"]


class Transform(IntEnum):
    """How words are changed before they are split into bytes (docs/wbpack.md)."""

    PLAIN = 0
    ROTATED = 1
    DELTA = 2
    FLOAT_DELTA = 3
    PAIRS = 4


#: The transforms that need a base.
DELTAS: Final = frozenset({Transform.DELTA, Transform.FLOAT_DELTA})


class Words(NamedTuple):
    """The bytes of a word, and how it is changed."""

    width: int
    transform: Transform


def words_of(dtype: DType | None) -> tuple[Words, Words]:
    """The words of a type without and with a base. Blocks and unknown bytes are single bytes. Floats with 4 bits of
    exponent and 3 of mantissa go in pairs, whose exponents fill a byte: coding each float by itself saves a percent
    more and is unpacked at half the speed."""
    if dtype is None or not dtype.plain or dtype.word not in (1, 2, 4, 8) or dtype.size != dtype.word:
        return Words(1, Transform.PLAIN), Words(1, Transform.DELTA)
    if dtype.is_float and dtype.word > 1:
        return Words(dtype.word, Transform.ROTATED), Words(dtype.word, Transform.FLOAT_DELTA)
    alone = Words(2, Transform.PAIRS) if dtype in (E4M3, E4M3_FNUZ) else Words(dtype.word, Transform.PLAIN)
    return alone, Words(dtype.word, Transform.DELTA)


def pack_chunk(words: Words, data: Buffer, base: Buffer, out: memoryview) -> int:
    """Packs a chunk into `out`, which has room for 64 bytes more; returns the size. `base`: for a delta, else empty."""
    return int(native.pack_chunk(words.width, int(words.transform), data, base, out))


def check_can_pack() -> None:
    """UnsupportedError without the extension: only it packs."""
    if not hasattr(native, "pack_chunk"):
        raise UnsupportedError(f"packing needs the compiled extension: {reason or 'it is of an older version'}",
                               hint="unpacking works without it")  # fmt: skip


def unpack_chunk(packed: Buffer, base: Buffer, out: memoryview) -> None:
    """Fills `out` with a chunk. ValueError if it is damaged."""
    if (unpack := getattr(native, "unpack_chunk", None)) is not None:
        unpack(packed, base, out)
        return
    from weighbridge.tensors.reference import planes

    planes.unpack_chunk(memoryview(packed), memoryview(base), out)


def is_delta(packed: memoryview) -> bool:
    """Whether a packed chunk needs its base."""
    return len(packed) > 9 and packed[9] in DELTAS
