"""Matrices in the forms of ComfyUI (`schema/comfy.py` has them), rounded by comfy-kitchen's rules in F32. Packers:

    RoundToFloat    8-bit floats with one scale, amax / the largest number
    RoundToRows     I8 with a scale per row, amax / 127; rows may be rotated first
    RoundToMxfp8    F8_E4M3 with a power of two per 32 columns, the first one that isn't below amax / 448
    RoundToNvfp4    E2M1 with an F8_E4M3 per 16 columns, relative to a scale of the whole matrix, amax / 2688

A weight of -0 becomes 0. Source: comfy-kitchen (backends/eager/quantization.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Final

import numpy as np

from weighbridge.base.dtypes import BY_NAME, E4M3, F32, MXFP8, NVFP4, U8, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings import canonical, hadamard
from weighbridge.packings.canonical import IntQuantMatrix, SubtractModulo
from weighbridge.packings.read.comfy import Adjusted, SwapNibbles, swapped, tiled
from weighbridge.packings.read.microscaled import Microscaled
from weighbridge.packings.read.scaled_float import ScaledFloat
from weighbridge.packings.schema.base import FLOATS
from weighbridge.packings.schema.comfy import TILE
from weighbridge.packings.write.packers import as_bytes, finite, peaks
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes

_I8: Final = BY_NAME["I8"]
_LEAST: Final = np.float32(1e-30)  # scale of a row of zeros
_POWERS: Final = (-127, 127)  # exponents of scales
_ONE: Final = np.ones(1, np.float32).view(np.uint8)
#: The largest scale of the whole matrix times this one is the largest number of E2M1 and E4M3.
NVFP4_LARGEST: Final = NVFP4.largest * MXFP8.largest


@dataclass(frozen=True)
class RoundToRows:
    """Codes and scales of rows of `columns`, which are rotated in groups of `rotated` (0: not)."""

    columns: int
    rotated: int = 0
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"weight": source.with_dtype(_I8), "scales": Spec((source.shape[0], 1), F32)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        values = finite(self.name, source)
        if self.rotated:
            values = values.copy()
            hadamard.rotate(values, self.rotated)
        scales = np.maximum(peaks(values, self.columns) / np.float32(127), _LEAST)
        if "scales" in outs:
            outs["scales"][:] = scales.view(np.uint8)
        if "weight" in outs:
            codes = kernels.round_codes("int", values, scales, self.columns, self.columns)
            np.bitwise_xor(codes, 128, out=outs["weight"])


@dataclass(frozen=True)
class RoundToFloat:
    """Codes of 8-bit floats, relative to the scale of the whole matrix."""

    dtype: DType
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"weight": source.with_dtype(self.dtype)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        self.make_with(source, _ONE, outs)

    def make_with(self, source: Bytes, global_scale: Bytes, outs: Mapping[str, Bytes]) -> None:
        factor = np.float32(1) / global_scale.view(np.float32)
        outs["weight"][:] = as_bytes(self.dtype, finite(self.name, source) * factor)


@dataclass(frozen=True)
class RoundToMxfp8:
    """Codes in rows of `columns`, and their scales: a row has those of a row of tiles."""

    columns: int
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"weight": source.with_dtype(E4M3), "scales": _tiles(source, MXFP8.group, U8)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        values = finite(self.name, source)
        largest = peaks(values, MXFP8.group)
        with np.errstate(all="ignore"):
            logarithm = np.log2((largest / np.float32(MXFP8.largest)).astype(np.float64)).astype(np.float32)
        exponents = np.clip(np.ceil(logarithm), *_POWERS)
        empty = largest == 0
        if "scales" in outs:
            stored = np.where(empty, 0, exponents + 127).astype(np.uint8)
            outs["scales"][:] = _in_tiles(stored, self.columns // MXFP8.group)
        if "weight" in outs:
            scales = np.where(empty, 0, np.exp2(exponents)).astype(np.float32)
            outs["weight"][:] = kernels.round_codes("e4m3", values, scales, MXFP8.group, MXFP8.group)


@dataclass(frozen=True)
class RoundToNvfp4:
    """Codes in rows of `columns`, the first of a byte in its high nibble, and scales as those of `RoundToMxfp8`."""

    columns: int
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        rows, columns = source.shape
        return {"weight": Spec((rows, columns // 2), U8), "scales": _tiles(source, NVFP4.group, E4M3)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        self.make_with(source, _ONE, outs)

    def make_with(self, source: Bytes, global_scale: Bytes, outs: Mapping[str, Bytes]) -> None:
        values, overall = finite(self.name, source), global_scale.view(np.float32)[0]
        scales = peaks(values, NVFP4.group) / np.float32(NVFP4.largest) / overall
        stored = as_bytes(E4M3, np.minimum(scales, np.float32(MXFP8.largest)))
        if "scales" in outs:
            outs["scales"][:] = _in_tiles(stored, self.columns // NVFP4.group)
        if "weight" in outs:
            total = overall * kernels.widened(E4M3, stored)
            codes = kernels.round_codes("e2m1", values, total, NVFP4.group, NVFP4.group)
            SwapNibbles().make(codes, {"bytes": outs["weight"]})


def _tiles(source: Spec, group: int, dtype: DType) -> Spec:
    """The spec of scales in tiles, a row of tiles per row."""
    rows, columns = source.shape
    down, across = (-(-size // each) for size, each in zip((rows, columns // group), TILE, strict=True))
    return Spec((down, across * TILE[0] * TILE[1]), dtype)


def _in_tiles(scales: Bytes, groups: int) -> Bytes:
    """The scales of rows of `groups` in whole tiles, padded with zeros."""
    (height, width), rows = TILE, scales.size // groups
    down, across = -(-rows // height), -(-groups // width)
    padded = np.zeros((down * height, across * width), np.uint8)
    padded[:rows, :groups] = scales.reshape(rows, groups)
    tiles = padded.reshape(down, 4, height // 4, across, width).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(-1)


# ------------------------------------------------------------------------------------------------ stored forms

#: Role -> node, as `packings.schema.comfy` names the roles.
Parts = dict[str, Node]


def rows(node: Node, name: str, rotated: int = 0) -> Parts:
    """A matrix as int8_tensorwise."""
    return {**nodes.pack(node, RoundToRows(node.spec.shape[1], rotated, name))}


def floats(node: Node, name: str, dtype: DType, overall: Node) -> Parts:
    """A matrix as 8-bit floats. `overall`: its scale."""
    codes = nodes.pack_with_global(node, RoundToFloat(dtype, name), overall)["weight"]
    return {"weight": codes, "scales": nodes.reshape(overall, ())}


def mxfp8(node: Node, name: str) -> Parts:
    packer = RoundToMxfp8(node.spec.shape[1], name)
    scales = nodes.pack(node, packer, TILE[0])["scales"]
    return {"weight": nodes.pack(node, packer)["weight"], "scales": _as_matrix(scales)}


def nvfp4(node: Node, name: str, overall: Node) -> Parts:
    """`overall`: the scale of the whole matrix."""
    packer = RoundToNvfp4(node.spec.shape[1], name)
    codes = nodes.pack_with_global(node, packer, overall)["weight"]
    scales = nodes.pack_with_global(node, packer, overall, TILE[0])["scales"]
    return {"weight": codes, "scales": _as_matrix(scales), "global": nodes.reshape(overall, ())}


def _as_matrix(scales: Node) -> Node:
    """Tiles in the shape in which comfy-kitchen stores them."""
    down, size = scales.spec.shape
    return nodes.reshape(scales, (down * TILE[0], size // TILE[0]))


def kept_rows(node: LogicalTensor, rotated: int = 0) -> Parts | None:
    """The codes and scales of a quantized matrix as int8_tensorwise; None if it doesn't have this form."""
    if rotated:
        packing = node.packing if isinstance(node, QuantizedTensor) else None
        if not isinstance(packing, Adjusted) or (packing.rotated, packing.smoothed) != (rotated, False):
            return None
        assert isinstance(node, QuantizedTensor)
        node = QuantizedTensor(node.spec, packing.inner, node.members)
    form = canonical.int_quant(node)
    if not isinstance(form, IntQuantMatrix) or (form.bits, form.group) != (8, node.spec.shape[-1]) or form.zeros:
        return None
    codes = nodes.pack(form.codes, SubtractModulo(128, 8, _I8))["bytes"]
    return {"weight": codes, "scales": nodes.cast(form.scales, F32)}


def kept_mxfp8(node: LogicalTensor) -> Parts | None:
    form = canonical.microscaled(node)
    if isinstance(form, str) or form.bits != MXFP8.bits:
        return None
    return {"weight": form.codes, "scales": tiled(form.scales)}


def kept_nvfp4(node: LogicalTensor) -> Parts | None:
    """The codes and scales of an NVFP4 matrix of any tool."""
    overall = np.ones(1, np.float32)
    if isinstance(node, QuantizedTensor):
        packing, members = node.packing, dict(node.members)
        if not isinstance(packing, Microscaled) or packing.type != NVFP4:
            return None
        if packing.overall:  # canonical form has its inverse, which may be rounded
            overall = packing.factor(members.pop("global").read_all())
            node = QuantizedTensor(node.spec, Microscaled(NVFP4), members)
    form = canonical.microscaled(node)
    if isinstance(form, str) or form.overall is None or overall.size != 1:
        return None
    scale = nodes.const(overall.reshape(()), F32)
    return {"weight": swapped(form.codes), "scales": tiled(form.scales), "global": scale}


def kept_float(node: LogicalTensor, dtype: DType) -> Parts | None:
    """The codes of a matrix of 8-bit floats with one scale."""
    packing = node.packing if isinstance(node, QuantizedTensor) else None
    if not isinstance(packing, ScaledFloat) or packing.dtype is not dtype or packing.scale_dtype not in FLOATS:
        return None
    assert isinstance(node, QuantizedTensor)
    scales = node.members["scales"]
    if scales.spec.elements != 1:
        return None
    return {"weight": node.members["weight"], "scales": nodes.reshape(nodes.cast(scales, F32), ())}
