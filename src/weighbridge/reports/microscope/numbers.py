"""How the bits of a plain number and the codes of a group in a packed tensor give values: the parts and the formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from weighbridge.base.dtypes import DType, Kind

if TYPE_CHECKING:
    from weighbridge.packings.int_quant import IntQuant
    from weighbridge.packings.read.affine import Affine
    from weighbridge.tensors.nodes.quantized import Packing
    from weighbridge.tensors.reference.codec import Unpacking


# ---- plain floats ----


def unpacking(dtype: DType) -> Unpacking | None:
    """Sign, exponent and fraction of a plain float, with the formula of finite ones; None of what has no such parts."""
    from weighbridge.tensors.reference.codec import Unpacking

    if dtype.kind is not Kind.FLOAT or dtype.numpy is None or dtype.block > 1:
        return None
    layout = _layout(dtype)
    if layout.fraction == 0:  # F8_E8M0: an exponent alone
        return Unpacking(f"2 ** (exponent - {layout.bias})", partial(_exponent, layout))
    normal = f"(1 + fraction / {1 << layout.fraction}) * 2.0 ** (exponent - {layout.bias})"
    subnormal = f"fraction / {1 << layout.fraction} * 2.0 ** {1 - layout.bias}"
    return Unpacking(f"sign * ({normal} if exponent else {subnormal})", partial(_float_parts, layout))


class _FloatLayout(NamedTuple):
    """Bits of a float's exponent and fraction, and the exponent's bias."""

    size: int
    exponent: int
    fraction: int
    bias: int


def _layout(dtype: DType) -> _FloatLayout:
    import ml_dtypes
    import numpy as np

    if dtype.name == "F8_E8M0":
        return _FloatLayout(1, 8, 0, 127)
    info: Any = ml_dtypes.finfo(np.dtype(dtype.numpy))  # type: ignore[no-untyped-call]
    return _FloatLayout(dtype.size, int(info.nexp), int(info.nmant), 1 - int(info.minexp))


def _bits(layout: _FloatLayout, data: Any) -> Any:
    return data.view(f"<u{layout.size}").astype("<u8").reshape(-1, 1)


def _exponent(layout: _FloatLayout, data: Any) -> Mapping[str, Any]:
    return {"exponent": _bits(layout, data)}


def _float_parts(layout: _FloatLayout, data: Any) -> Mapping[str, Any]:
    bits = _bits(layout, data)
    return {
        "sign": 1 - 2 * (bits >> (layout.exponent + layout.fraction)).astype("<i8"),
        "exponent": bits >> layout.fraction & ((1 << layout.exponent) - 1),
        "fraction": bits & ((1 << layout.fraction) - 1),
    }


# ---- groups of packed tensors ----


class GroupParts(NamedTuple):
    """A group's stored bytes by member, each with its scalars (type, values), and the numbers in them."""

    raw: Mapping[str, Any]
    scalars: Mapping[str, tuple[str, Any]]
    unpacked: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grouping:
    """A packing by groups of `group` columns. `parts(row, columns, n)`: of group n of a row's members' bytes."""

    name: str
    group: int
    formula: str
    parts: Callable[[Mapping[str, Any], int, int], GroupParts]


def grouping(packing: Packing) -> Grouping | None:
    """How a packing's groups decode; None of one whose values depend on more than their group."""
    from weighbridge.packings.int_quant import IntQuant
    from weighbridge.packings.read.affine import Affine

    if isinstance(packing, Affine):
        name = f"{packing.name}-{packing.bits}"
        return Grouping(name, packing.group, "scale * q + bias", partial(_affine, packing))
    if isinstance(packing, IntQuant) and not packing.ordered:
        name = f"{packing.name}-{packing.width}"
        return Grouping(name, packing.group, "(q - zero) * scale", partial(_int_quant, packing))
    return None


def _affine(packing: Affine, row: Mapping[str, Any], columns: int, at: int) -> GroupParts:
    from weighbridge.tensors import kernels

    size, wide = packing.group * packing.bits // 8, packing.scale_dtype.size
    words = row["weight"][at * size : (at + 1) * size]
    scale, bias = (row[m][at * wide : (at + 1) * wide] for m in ("scales", "biases"))
    numbers = {m: kernels.widened(packing.scale_dtype, raw) for m, raw in (("scales", scale), ("biases", bias))}
    codes = kernels.unpack_codes(packing.bits, words)
    return GroupParts(
        {"weight": words, "scales": scale, "biases": bias},
        {"weight": ("u32", words.view("<u4")), **{m: (packing.scale_dtype.name, n) for m, n in numbers.items()}},
        {"scale": numbers["scales"], "bias": numbers["biases"], "q": codes},
    )


def _int_quant(packing: IntQuant, row: Mapping[str, Any], columns: int, at: int) -> GroupParts:
    """Codes as they lie in rows of outputs: the words of GPTQ and AWQ run along another axis."""
    from weighbridge.tensors import kernels

    codes = packing.codes(row)
    codes = (codes if packing.bits == 8 else kernels.unpack_codes(packing.bits, codes))[:columns]
    own = codes[at * packing.group : (at + 1) * packing.group].astype("<i4")
    wide = packing.scale_dtype.size
    scale = row["scales"][at * wide : (at + 1) * wide]
    number, zeros = kernels.widened(packing.scale_dtype, scale), packing.zeros(row)[at : at + 1].astype("<i4")
    if packing.signed:
        own, zeros = own - 128, zeros - 128
    return GroupParts(
        {"scales": scale},
        {"scales": (packing.scale_dtype.name, number)},
        {"scale": number, "zero": zeros, "q": own},
    )
