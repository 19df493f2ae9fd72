"""How what a packing stores of a matrix [.., out, in] lies along it: which of its axes run along the matrix's rows or
columns, and how many of those share an entry. A cut of the matrix that falls between entries of every part is a cut of
each, and no code changes.

    MLX, 4 bits     P.weight [out, in / 8]     8 columns a word         P.scales [out, in / 64]   64 columns a scale
    GPTQ, 4 bits    P.qweight [in / 8, out]    the other way round      P.qzeros [in / 128, out / 8]
    FP8             P.weight [out, in]         as it is                 P.weight_scale_inv [out / 128, in / 128]

Leading axes (experts) are the matrix's own in every part that has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import U32, DType, Kind
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.packings.base import Found
from weighbridge.packings.read import scaled
from weighbridge.tensors.nodes import QuantizedTensor

ROWS, COLUMNS = 0, 1


class AxisUse(NamedTuple):
    """An axis of a stored tensor that runs along `side` of the matrix: `each` of that are `entries` of it, which share
    `what`."""

    side: int
    each: int = 1
    entries: int = 1
    what: str = "an entry"


#: One for each of a tensor's last axes; None: it has nothing of either side.
StorageAxes = tuple[AxisUse | None, ...]
_ROW, _COLUMN = AxisUse(ROWS), AxisUse(COLUMNS)
_SHAPES: Final = ".weight_shape"
#: Tensors of numbers that follow from the matrix's sizes: its shape, the group of each column.
SHAPE: Final = (_SHAPES,)
ORDER: Final = (".g_idx", ".weight_g_idx")


def lies(found: Found, stored: Mapping[str, Spec]) -> dict[str, StorageAxes]:
    """How each of a group's stored tensors lies. UnsupportedError for a packing whose parts don't lie along the
    matrix."""
    node = found.node
    form = _FORMS.get(node.packing.name) if isinstance(node, QuantizedTensor) else None
    if form is None or not isinstance(node, QuantizedTensor):
        kind = node.packing.name if isinstance(node, QuantizedTensor) else "a form that is decoded"
        raise UnsupportedError(f"{found.name} is in {kind}, whose parts don't lie along its rows and columns")
    known = form(node.packing, node.spec, stored)
    return {name: _lie(found, name, known) for name in found.stored}


def _lie(found: Found, name: str, known: Mapping[str, StorageAxes]) -> StorageAxes:
    if name == found.name and "" in known:
        return known[""]
    ending = max((key for key in known if key and name.endswith(key)), key=len, default=None)
    if ending is None:
        raise UnsupportedError(f"{name}: how it lies along {found.name} isn't known")
    return known[ending]


def of_blocks(dtype: DType) -> StorageAxes:
    """A tensor of a block type as it is: rows one by one, columns in whole blocks."""
    return (_ROW, AxisUse(COLUMNS, dtype.block, dtype.block, "a block"))


def _words(side: int, bits: int, of: int, words: int) -> AxisUse:
    """Codes in words of 32 bits: dense (as many as come out even), or padded, whole ones in each."""
    if words == -(-of * bits // 32):
        even = math.gcd(bits, 32)
        return AxisUse(side, 32 // even, bits // even, "a word" if 32 // even * bits == 32 else "words")
    return AxisUse(side, 32 // bits, 1, "a word")


def _group(size: int, of: int) -> AxisUse | None:
    """Columns under one scale; None where that is all of them."""
    return None if size >= of else AxisUse(COLUMNS, size, 1, "a scale")


def _affine(how: Any, spec: Spec, stored: Mapping[str, Spec]) -> dict[str, StorageAxes]:
    # Never all columns: MLX knows its groups by their size.
    scales = (_ROW, AxisUse(COLUMNS, how.group, 1, "a scale"))
    even = math.gcd(how.bits, 32)
    return {".weight": (_ROW, AxisUse(COLUMNS, 32 // even, how.bits // even, "words")), ".scales": scales,
            ".biases": scales}  # fmt: skip


def _gptq(how: Any, spec: Spec, stored: Mapping[str, Spec]) -> dict[str, StorageAxes]:
    outer, inner = spec.shape
    if how.bits != how.width:  # in planes of 32 columns
        down, across = (AxisUse(side, 32, how.width, "words") for side in (COLUMNS, ROWS))
    else:
        down, across = (_words(side, how.width, of, of * how.width // 32) for side, of in ((1, inner), (0, outer)))
    group = _group(how.group, inner)
    return {".qweight": (down, _ROW), ".qzeros": (group, across), ".scales": (group, _ROW), ".g_idx": (_COLUMN,)}


def _awq(how: Any, spec: Spec, stored: Mapping[str, Spec]) -> dict[str, StorageAxes]:
    group, words = _group(how.group, spec.shape[-1]), AxisUse(ROWS, 8, 1, "a word")
    return {".qweight": (_COLUMN, words), ".qzeros": (group, words), ".scales": (group, _ROW)}


def _compressed(how: Any, spec: Spec, stored: Mapping[str, Spec]) -> dict[str, StorageAxes]:
    outer, inner = spec.shape
    group = _group(how.group, inner)
    shapes = {name.rpartition(".")[2]: s.shape for name, s in stored.items()}
    out: dict[str, StorageAxes] = {
        ".weight": (_ROW, _COLUMN), ".weight_g_idx": (_COLUMN,), _SHAPES: (None,),
        ".weight_scale": _scales(shapes["weight_scale"], group), **dict.fromkeys(_BESIDE, ()),
    }  # fmt: skip
    if "weight_packed" in shapes:
        out[".weight_packed"] = (_ROW, _words(COLUMNS, how.width, inner, shapes["weight_packed"][1]))
    if "weight_zero_point" in shapes:
        zeros = shapes["weight_zero_point"]
        packed = "weight_packed" in shapes
        out[".weight_zero_point"] = (
            (_words(ROWS, how.width, outer, zeros[0]), group) if packed else _scales(zeros, group)
        )
    return out


def _scales(shape: tuple[int, ...], group: AxisUse | None) -> StorageAxes:
    """[out, groups], [out], or one for all."""
    if math.prod(shape) == 1:
        return (None,) * len(shape)
    return (_ROW, group)[: len(shape)]


# Scales of activations and caches: one number, or nothing along the matrix.
_BESIDE: Final = (*scaled.BESIDE, ".input_zero_point", ".output_scale", ".input_global_scale")


def _fp8(how: Any, spec: Spec, stored: Mapping[str, Spec]) -> dict[str, StorageAxes]:
    *lead, outer, inner = spec.shape
    height, width = how.block
    down = _ROW if height == 1 else None if height >= outer else AxisUse(ROWS, height, 1, "a scale")
    across = None if width >= inner else AxisUse(COLUMNS, width, 1, "a scale")
    both: StorageAxes = (down, across)
    out: dict[str, StorageAxes] = {"": (_ROW, _COLUMN), **dict.fromkeys(_BESIDE, ())}
    for name, s in stored.items():
        if name.endswith(scaled.KEYS):
            flat = len(s.shape) < 2 or s.elements == 1
            out[next(k for k in scaled.KEYS if name.endswith(k))] = (
                ((down,) if s.elements > 1 and not lead else (None,)) * len(s.shape) if flat else both
            )
        elif s.dtype is U32:  # MLX's words of four
            out[""] = (_ROW, AxisUse(COLUMNS, 4, 1, "a word"))
    return out


def _micro(how: Any, spec: Spec, stored: Mapping[str, Spec]) -> dict[str, StorageAxes]:
    out: dict[str, StorageAxes] = dict.fromkeys((*_BESIDE, ".weight_global_scale", ".weight_scale_2", ".scale"), ())
    scales = (_ROW, AxisUse(COLUMNS, how.group, 1, "a scale"))
    out |= dict.fromkeys((".scales", "_scales", ".weight_scale"), scales)
    out |= dict.fromkeys(("_blocks", ".blocks"), (_ROW, AxisUse(COLUMNS, 32, 1, "a block"), None))
    for name, s in stored.items():
        if name.endswith((".weight", ".weight_packed")):
            ending = name[name.rindex(".") :]
            each = s.row_bytes * 8 // how.bits // s.shape[-1] if how.bits == 4 else 4
            out[ending] = (_ROW, AxisUse(COLUMNS, each, 1 if how.bits == 4 else 3, "a word"))
            if s.dtype.kind is Kind.BLOCK:
                out[ending] = of_blocks(s.dtype)
    return out


_FORMS: Final[Mapping[str, Callable[[Any, Spec, Mapping[str, Spec]], dict[str, StorageAxes]]]] = MappingProxyType(
    {"mlx-affine": _affine, "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed, "fp8": _fp8}
    | dict.fromkeys(("mxfp4", "mxfp6", "nvfp4"), _micro)
)


def members(node: QuantizedTensor, found: Found, stored: Mapping[str, Spec]) -> dict[str, str] | None:
    """Stored tensor -> the member of the node that it is, row for row, so that the node's rows may be moved and stored
    again; None of a packing whose parts lie otherwise, or are more than its members."""
    kinds = _MEMBERS.get(node.packing.name, {})
    out = {}
    for name, spec in stored.items():
        member = kinds.get("" if name == found.name else name.removeprefix(_module_of(found.name)))
        if member is None or member not in node.members or len(spec.shape) < 2:
            return None
        out[name] = member
    return out if set(out.values()) == set(node.members) else None


def _module_of(name: str) -> str:
    return name.removesuffix(".weight")


_MEMBERS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "mlx-affine": {"": "weight", ".scales": "scales", ".biases": "biases"},
        "fp8": {
            "": "weight",
            **dict.fromkeys((".weight_scale_inv", "_scale_inv", ".weight_scale", ".scales"), "scales"),
        },
        **{kind: {"": "codes", ".scales": "scales"} for kind in ("mxfp4", "mxfp6", "nvfp4")},
    }
)
