"""Codes whose first rows lie in the high (or low) bits of the rows of the packed matrix, the next rows in the next
bits.

    HQQ      P.W_q       U8 or I32 [rows / k, columns]; P.scale, P.zero: floats [rows, 1] on axis 1, [1, columns] on 0
             P.nbits, P.group_size, P.shape, P.axis, P.packing ...: settings, each a tensor of its own
             4 bits: rows 0.. in the high nibbles, rows n/2.. in the low ones; 2 bits: quarters; 1 bit: eighths; 3 bits:
             ten parts in an I32, from bit 27 down, rows padded to tens; 5, 6 and 8 bits: a byte each
             value = (code - zero) * scale, zero no integer; rows of one group (axis 1) or columns (axis 0), reshaped
    BitNet   P.weight    U8 [out / 4, in]: the code of output row r + k * out / 4 in bits 2k of row r; value code - 1
             P.weight_scale [1]: divided by (multiplied where the config's linear_class is autobitlinear)

hqq's own loader evaluates the bytes of `compute_dtype` as Python. Here they are never looked at.
Source: hqq/core/bitpack.py, hqq/core/quantize.py (0.2); transformers/integrations/bitnet.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, F16, F32, I32, U8, DType
from weighbridge.base.spec import Spec
from weighbridge.packings.base import (
    Config,
    Found,
    NoBlockForm,
    Nodes,
    described,
    members,
    need,
    settings,
    stored,
)
from weighbridge.packings.int_quant import IntQuant
from weighbridge.tensors import kernels
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node

NAME: Final = "planes"
KEYS: Final = (".W_q", ".weight_scale")
_FLOATS: Final = (F16, BF16, F32)
# What hqq saves beside the codes, as tensors of their own.
_SETTINGS: Final = (
    "nbits", "group_size", "shape", "axis", "packing", "view_as_float", "compute_dtype", "unpack_view_dtype",
    "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize", "round_zero",
)  # fmt: skip
# Why such a tensor is decoded wherever it goes, for the plan.
_WHY: Final = "no other form has its codes in planes"
_KINDS: Final = MappingProxyType({"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"})
# bits -> the shifts of the parts, first rows first.
_SHIFTS: Final[Mapping[int, tuple[int, ...]]] = MappingProxyType(
    {1: tuple(range(7, -1, -1)), 2: (6, 4, 2, 0), 3: tuple(range(27, -1, -3)), 4: (4, 0), 5: (0,), 6: (0,), 8: (0,)}
)


@dataclass(frozen=True)
class Plane(NoBlockForm):
    """One part: (code - zero) * scale. `shared`: scale and zero are one row for all rows (HQQ's axis 0), or one
    number."""

    name: str
    bits: int
    shift: int
    word: DType
    scale_dtype: DType
    shared: bool

    @property
    def row_map(self) -> Mapping[str, int]:
        each = 0 if self.shared else 1
        return MappingProxyType({"codes": 1, "scale": each, "zero": each})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        words: NDArray[Any] = parts["codes"].view("u1" if self.word is U8 else "<u4")
        rows = out.reshape(hi - lo, -1)
        rows[:] = ((words >> self.shift) & ((1 << self.bits) - 1)).reshape(rows.shape)
        scale, zero = (kernels.widened(self.scale_dtype, parts[m]) for m in ("scale", "zero"))
        across = (1, -1) if self.shared else (-1, 1)
        rows -= zero.reshape(across)
        rows *= scale.reshape(across)


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    return _hqq(module, tensors) if key == ".W_q" else _bitnet(module, tensors, config)


# ------------------------------------------------------------------------------------------------ HQQ


def _hqq(module: str, tensors: Nodes) -> Found:
    wanted = {m: f".{m}" for m in ("W_q", "scale", "zero", "nbits", "shape", "axis", "group_size")}
    nodes = members(module, tensors, wanted)
    need({"W_q", "scale", "zero", "nbits", "shape"} <= set(nodes), module, "an HQQ weight lacks its settings",
         "scale, zero, nbits and shape", described(nodes))  # fmt: skip
    bits, shape = _integers(module, nodes["nbits"])[0], _integers(module, nodes["shape"])
    axis = _integers(module, nodes["axis"])[0] if "axis" in nodes else 1
    need(bits in _SHIFTS and axis in (0, 1) and len(shape) >= 1 and min(shape) > 0, module, "HQQ settings out of range",
         f"bits of {sorted(_SHIFTS)}, axis 0 or 1", f"{bits} bits, axis {axis}, shape {shape}")  # fmt: skip
    names = stored(module, tensors, (".W_q", ".scale", ".zero", *(f".{s}" for s in _SETTINGS)))
    return Found(f"{module}.weight", _parts_joined(module, nodes, bits, axis, tuple(shape)), names)


def _integers(module: str, node: Node) -> list[int]:
    """The values of a small tensor of integers."""
    kind = _KINDS.get(node.spec.dtype.name, "")
    need(bool(kind) and 0 < node.spec.elements <= 8, module, "a setting is no integer", "integers", node.spec)
    return [int(x) for x in node.read_all().view(kind)]


def _parts_joined(module: str, nodes: Mapping[str, Node], bits: int, axis: int, shape: tuple[int, ...]) -> Node:
    shifts, word = _SHIFTS[bits], I32 if bits == 3 else U8
    elements = math.prod(shape)
    count = nodes["scale"].spec.elements  # of groups
    scale, zero = nodes["scale"].spec, nodes["zero"].spec
    fits = count > 0 and elements % count == 0 and zero.elements == count and scale.dtype in _FLOATS
    need(fits and zero.dtype is scale.dtype, module, "scale and zero don't belong to the weight",
         f"a divisor of {elements} floats each", described(nodes))  # fmt: skip
    rows, columns = (count, elements // count) if axis == 1 else (elements // count, count)
    packed_rows = -(-rows // len(shifts))
    size = packed_rows * columns * word.size
    need(nodes["W_q"].spec.nbytes == size, module, "W_q doesn't hold the codes", f"{size} bytes", nodes["W_q"].spec)
    codes = n.reshape(n.retyped(n.as_bytes(nodes["W_q"]), U8, 1), (packed_rows, columns * word.size))
    codes = n.retyped(codes, word, columns)
    parts = []
    for i, shift in enumerate(shifts):
        lo, hi = i * packed_rows, min((i + 1) * packed_rows, rows)
        if lo < hi:
            parts.append(_plane(nodes, codes, bits, shift, axis, lo, hi, columns))
    return n.reshape(n.concat(parts), shape)


def _plane(
    nodes: Mapping[str, Node], codes: Node, bits: int, shift: int, axis: int, lo: int, hi: int, columns: int
) -> Node:
    held: dict[str, Node] = {"codes": n.slice_rows(codes, 0, (hi - lo, columns))}
    for m in ("scale", "zero"):
        if axis == 0:
            held[m] = n.reshape(nodes[m], (1, columns))
        else:
            held[m] = n.slice_rows(n.reshape(nodes[m], (nodes[m].spec.elements, 1)), lo, (hi - lo, 1))
    packing = Plane("hqq", bits, shift, codes.spec.dtype, nodes["scale"].spec.dtype, axis == 0)
    return n.decode(QuantizedTensor(Spec((hi - lo, columns), F32), packing, held), _WHY)


# ------------------------------------------------------------------------------------------------ BitNet


def _bitnet(module: str, tensors: Nodes, config: Config) -> Found | None:
    told = settings(config)
    weight, scale = tensors.get(f"{module}.weight"), tensors[f"{module}.weight_scale"]
    if told.get("quant_method") != "bitnet" or weight is None or weight.spec.dtype is not U8:
        return None
    need(len(weight.spec.shape) == 2 and scale.spec.elements == 1 and scale.spec.dtype in _FLOATS, module,
         "weight and weight_scale don't belong together", "U8 [out / 4, in], one float",
         f"{weight.spec}, {scale.spec}")  # fmt: skip
    value = np.float32(kernels.widened(scale.spec.dtype, scale.read_all())[0])
    if told.get("linear_class") != "autobitlinear":
        with np.errstate(all="ignore"):
            value = np.float32(1) / value
    rows, columns = weight.spec.shape
    codes = n.concat([n.made(weight, Field(shift))["codes"] for shift in _FIELDS])
    each = n.strided(n.const(np.array([value]), F32), 0, (len(_FIELDS) * rows, 1), (0, 1))
    grid = IntQuant("bitnet", 8, 2, columns, F32, 1)
    held = {"codes": codes, "scales": each}
    names = stored(module, tensors, (".weight", ".weight_scale"))
    return Found(f"{module}.weight", QuantizedTensor(Spec(codes.spec.shape, F32), grid, held), names)


# Where BitNet's codes lie in a byte, first rows first.
_FIELDS: Final = (0, 2, 4, 6)


@dataclass(frozen=True)
class Field:
    """Two bits of each byte, from `shift` on."""

    shift: int

    @property
    def quantizes(self) -> bool:
        return False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"codes": source}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        out = outs["codes"]
        np.right_shift(source, self.shift, out=out)
        np.bitwise_and(out, 3, out=out)
