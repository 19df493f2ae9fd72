"""The parts and the formula of a plain float, and of a group in a packed tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from weighbridge.base.dtypes import DType, Kind
from weighbridge.base.records import dataclass

if TYPE_CHECKING:
    from weighbridge.packings.int_quant import IntQuant
    from weighbridge.packings.read.affine import Affine
    from weighbridge.tensors.nodes.quantized import Packing
    from weighbridge.tensors.reference.codec import Unpacking


# ---- plain floats ----


def unpacking(dtype: DType) -> Unpacking | None:
    """Returns sign, exponent and fraction of a plain float, with the formula for finite values; None for other
    types."""
    if dtype.kind is not Kind.FLOAT or dtype.numpy is None or dtype.block > 1:
        return None
    import ml_dtypes
    import numpy as np

    from weighbridge.tensors.reference.codec import Unpacking

    if dtype.name == "F8_E8M0":  # only an exponent
        return Unpacking("2 ** (exponent - 127)", lambda data: {"exponent": _bits(dtype.size, data)})
    info: Any = ml_dtypes.finfo(np.dtype(dtype.numpy))  # type: ignore[no-untyped-call]
    exponent, fraction, bias = int(info.nexp), int(info.nmant), 1 - int(info.minexp)
    normal = f"(1 + fraction / {1 << fraction}) * 2.0 ** (exponent - {bias})"
    subnormal = f"fraction / {1 << fraction} * 2.0 ** {1 - bias}"
    parts = partial(_float_parts, dtype.size, exponent, fraction)
    return Unpacking(f"sign * ({normal} if exponent else {subnormal})", parts)


def _bits(size: int, data: Any) -> Any:
    return data.view(f"<u{size}").astype("<u8").reshape(-1, 1)


def _float_parts(size: int, exponent: int, fraction: int, data: Any) -> Mapping[str, Any]:
    bits = _bits(size, data)
    return {
        "sign": 1 - 2 * (bits >> (exponent + fraction)).astype("<i8"),
        "exponent": bits >> fraction & ((1 << exponent) - 1),
        "fraction": bits & ((1 << fraction) - 1),
    }


# ---- groups of packed tensors ----


class GroupParts(NamedTuple):
    """A group's stored bytes by member, the type and values of their scalars, and the numbers in them."""

    raw: Mapping[str, Any]
    scalars: Mapping[str, tuple[str, Any]]
    unpacked: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grouping:
    """A packing with groups of `group` columns. `parts(row, columns, n)`: group n of a row, given its members'
    bytes."""

    name: str
    group: int
    formula: str
    parts: Callable[[Mapping[str, Any], int, int], GroupParts]


def grouping(packing: Packing) -> Grouping | None:
    """Returns the groups of a packing; None if values depend on more than their group."""
    from weighbridge.packings.int_quant import IntQuant
    from weighbridge.packings.read.affine import Affine

    if isinstance(packing, Affine):
        name = f"{packing.name}-{packing.code_bits}"
        return Grouping(name, packing.group, "scale * q + bias", partial(_affine_parts, packing))
    if isinstance(packing, IntQuant) and not packing.ordered:
        name = f"{packing.name}-{packing.code_bits}"
        return Grouping(name, packing.group, "(q - zero) * scale", partial(_int_quant_parts, packing))
    return None


def _affine_parts(packing: Affine, row: Mapping[str, Any], columns: int, at: int) -> GroupParts:
    from weighbridge.tensors import kernels

    size, wide = packing.group * packing.code_bits // 8, packing.scale_dtype.size
    codes = row["weight"][at * size : (at + 1) * size]
    scale, bias = (row[m][at * wide : (at + 1) * wide] for m in ("scales", "biases"))
    numbers = {m: kernels.widened(packing.scale_dtype, raw) for m, raw in (("scales", scale), ("biases", bias))}
    return GroupParts(
        {"weight": codes, "scales": scale, "biases": bias},
        {"weight": ("u32", codes.view("<u4")), **{m: (packing.scale_dtype.name, n) for m, n in numbers.items()}},
        {"scale": numbers["scales"], "bias": numbers["biases"], "q": kernels.unpack_codes(packing.code_bits, codes)},
    )


def _int_quant_parts(packing: IntQuant, row: Mapping[str, Any], columns: int, at: int) -> GroupParts:
    """Returns the codes in rows of outputs, whereas GPTQ and AWQ pack them along the other axis."""
    from weighbridge.tensors import kernels

    codes = packing.codes(row)
    codes = (codes if packing.storage_bits == 8 else kernels.unpack_codes(packing.storage_bits, codes))[:columns]
    group = codes[at * packing.group : (at + 1) * packing.group].astype("<i4")
    wide = packing.scale_dtype.size
    scale = row["scales"][at * wide : (at + 1) * wide]
    number, zeros = kernels.widened(packing.scale_dtype, scale), packing.zeros(row)[at : at + 1].astype("<i4")
    if packing.signed:
        group, zeros = group - 128, zeros - 128
    return GroupParts(
        {"scales": scale},
        {"scales": (packing.scale_dtype.name, number)},
        {"scale": number, "zero": zeros, "q": group},
    )
