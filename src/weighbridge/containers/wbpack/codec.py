"""Packs and unpacks chunks: by the extension. Without it numpy unpacks them, about a hundred times slower."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.native import native, reason

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Transform(IntEnum):
    """How words are changed before they are split into bytes (docs/wbpack.md)."""

    PLAIN = 0
    ROTATED = 1
    DELTA = 2
    FLOAT_DELTA = 3


def words_of(dtype: DType | None) -> tuple[int, Transform, Transform]:
    """The bytes of a word, its transform, and its transform with a base. Blocks and unknown bytes are single bytes."""
    if dtype is None or not dtype.plain or dtype.word not in (1, 2, 4, 8) or dtype.size != dtype.word:
        return 1, Transform.PLAIN, Transform.DELTA
    if dtype.is_float and dtype.word > 1:
        return dtype.word, Transform.ROTATED, Transform.FLOAT_DELTA
    return dtype.word, Transform.PLAIN, Transform.DELTA


def pack_chunk(width: int, transform: Transform, data: Buffer, base: Buffer, out: memoryview) -> int:
    """Packs a chunk into `out`, which has room for 64 bytes more; returns the size. `base`: for a delta, else empty."""
    return int(native.pack_chunk(width, int(transform), data, base, out))


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
    return len(packed) > 9 and packed[9] >= Transform.DELTA
