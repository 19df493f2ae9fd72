"""Codes that ggml's simple blocks can store: the targets of every exact conversion from another integer scheme.

Source: ggml/src/ggml-common.h, ggml-quants.c (b11549).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, F16, Q4_0, Q4_1, Q8_0, DType
from weighbridge.packings.base import row_ranges
from weighbridge.tensors import kernels, np
from weighbridge.tensors.nodes import cast
from weighbridge.tensors.nodes.base import Bytes, Node

Q5_0: Final = BY_NAME["Q5_0"]
Q5_1: Final = BY_NAME["Q5_1"]
Q1_0: Final = BY_NAME["Q1_0"]
Q2_0: Final = BY_NAME["Q2_0"]


class CodeRange(NamedTuple):
    """The codes of a block type, from `low` to `high`. value = d * code + m with a minimum, d * code without."""

    low: int
    high: int
    minimum: bool


#: Block types by their codes, smallest first.
CODE_RANGES: Final[Mapping[DType, CodeRange]] = MappingProxyType(
    {
        Q2_0: CodeRange(-1, 2, False),
        Q4_0: CodeRange(-8, 7, False),
        Q4_1: CodeRange(0, 15, True),
        Q5_0: CodeRange(-16, 15, False),
        Q5_1: CodeRange(0, 31, True),
        Q8_0: CodeRange(-128, 127, False),
    }
)


def types_that_fit(low: int, high: int, minimum: bool, group: int) -> tuple[DType, ...]:
    """The types for codes from `low` to `high` whose blocks divide groups of `group`."""
    return tuple(
        d
        for d, r in CODE_RANGES.items()
        if r.minimum is minimum and r.low <= low and high <= r.high and not group % d.block
    )


def of_stream(dtype: DType, d: Bytes, group: int, codes: Bytes, out: Bytes) -> None:
    """Fills blocks of Q1_0 or Q2_0 from a bit stream of codes: an f16 d per `group` and 16 bytes of codes."""
    rows = out.reshape(-1, dtype.size)
    rows[:, :2] = np.repeat(d.reshape(-1, 2), group // dtype.block, axis=0)
    rows[:, 2:] = codes.reshape(len(rows), -1)


def to_f16_bytes(dtype: DType, part: Bytes) -> Bytes:
    """Parameters as the bytes of f16."""
    if dtype is F16:
        return part
    out = np.empty(len(part) // dtype.size * 2, np.uint8)
    kernels.cast(dtype, F16, part, out)
    return out


def fits_f16(node: Node) -> bool:
    """Whether f16 can store every value of a small tensor (scales, biases) exactly."""
    if node.spec.dtype is F16:
        return True
    there_and_back = cast(cast(node, F16), node.spec.dtype)
    return all(np.array_equal(node.read(lo, hi), there_and_back.read(lo, hi)) for lo, hi in row_ranges(node))
