"""Codes in bit planes: the first rows are in the high (or low) bits of the packed rows, the next rows in the next bits.

    HQQ      P.W_q       U8 or I32 [rows / k, columns]; P.scale, P.zero: floats [rows, 1] on axis 1, [1, columns] on 0
             P.nbits, P.group_size, P.shape, P.axis, P.packing ...: settings, one tensor each
             4 bits: rows 0.. in the high nibbles, rows n/2.. in the low ones; 2 bits: quarters; 1 bit: eighths; 3 bits:
             ten parts in an I32, from bit 27 down, rows padded to tens; 5, 6 and 8 bits: a byte each
             value = (code - zero) * scale, zero a float; rows of one group (axis 1) or columns (axis 0), reshaped
    BitNet   P.weight    U8 [out / 4, in]: the code of output row r + k * out / 4 in bits 2k of row r; value code - 1
             P.weight_scale [1]: divided by (multiplied if the config's linear_class is autobitlinear)

hqq's own loader evaluates the bytes of `compute_dtype` as Python. Here they are never read.
Source: hqq/core/bitpack.py, hqq/core/quantize.py (0.2); transformers/integrations/bitnet.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import I32, U8, DType
from weighbridge.base.limits import PROBE_SETTING
from weighbridge.packings.schema.base import (
    FLOATS,
    Evidence,
    Group,
    Member,
    PackingSchema,
    Solution,
    integers,
    settings,
)

NAME: Final = "planes"
#: Settings that hqq's loader evaluates as Python code.
EVALUATED: Final = (".compute_dtype", ".unpack_view_dtype")
# Settings that hqq saves as tensors; reading the codes doesn't need them.
_SETTINGS: Final = (
    ".packing", ".view_as_float", *EVALUATED, ".offload_meta", ".encoded_state_dict", ".stores_quant_config",
    ".channel_wise", ".optimize", ".round_zero", ".group_size",
)  # fmt: skip
#: bits -> the shifts of the parts, first rows first.
SHIFTS: Final[Mapping[int, tuple[int, ...]]] = MappingProxyType(
    {1: tuple(range(7, -1, -1)), 2: (6, 4, 2, 0), 3: tuple(range(27, -1, -3)), 4: (4, 0), 5: (0,), 6: (0,), 8: (0,)}
)
#: The positions of BitNet's codes in a byte, first rows first.
FIELDS: Final = (0, 2, 4, 6)


class HqqLayout(NamedTuple):
    """Codes as [rows, columns] in words of type `word`. `axis`: the axis that a group has one entry of."""

    axis: int
    word: DType
    rows: int
    columns: int


def _solve_hqq(group: Group) -> Solution:
    bits, shape = integers(group, "bits")[0], tuple(integers(group, "shape"))
    axis = integers(group, "axis")[0] if "axis" in group.specs else 1
    group.need(bits in SHIFTS and axis in (0, 1) and shape and min(shape) > 0, "HQQ settings out of range",
               f"bits of {sorted(SHIFTS)}, axis 0 or 1", f"{bits} bits, axis {axis}, shape {list(shape)}")  # fmt: skip
    elements, scale, zero = math.prod(shape), group.specs["scale"], group.specs["zero"]
    count = scale.elements  # of groups
    group.need(count > 0 and elements % count == 0 and zero.elements == count and zero.dtype is scale.dtype,
               "scale and zero don't belong to the weight", f"a divisor of {elements} floats each")  # fmt: skip
    rows, columns = (count, elements // count) if axis == 1 else (elements // count, count)
    word = I32 if bits == 3 else U8
    size = -(-rows // len(SHIFTS[bits])) * columns * word.size
    group.need(
        group.specs["codes"].nbytes == size, "W_q doesn't contain the codes", f"{size} bytes", group.specs["codes"]
    )
    return Solution(shape, bits, elements // count, HqqLayout(axis, word, rows, columns))


def _solve_bitnet(group: Group) -> Solution:
    weight, scale = group.specs["codes"], group.specs["scale"]
    group.need(len(weight.shape) == 2 and scale.elements == 1, "weight and weight_scale don't belong together",
               "U8 [out / 4, in], one float")  # fmt: skip
    multiplied = settings(group.config).get("linear_class") == "autobitlinear"
    return Solution((weight.shape[0] * len(FIELDS), weight.shape[1]), layout=multiplied)


HQQ: Final = PackingSchema(
    "hqq", NAME, "hqq",
    {
        "codes": Member(".W_q"),
        "scale": Member(".scale", FLOATS),
        "zero": Member(".zero", FLOATS),
        "bits": Member(".nbits", probe=PROBE_SETTING),
        "shape": Member(".shape", probe=PROBE_SETTING),
        "axis": Member(".axis", required=False, probe=PROBE_SETTING),
    },
    key="codes", solve=_solve_hqq, reader="weighbridge.packings.read.bitplanes", ignored=_SETTINGS,
    evidence=Evidence("hqq", "HQQ W_q tensors"),
)  # fmt: skip
BITNET: Final = PackingSchema(
    "bitnet", NAME, "bitnet",
    {
        "codes": Member(".weight", (U8,), selects=True),
        "scale": Member(".weight_scale", FLOATS, probe=PROBE_SETTING),
    },
    key="scale", solve=_solve_bitnet, reader="weighbridge.packings.read.bitplanes", bits=2,
    applies=lambda group: settings(group.config).get("quant_method") == "bitnet",
)  # fmt: skip
