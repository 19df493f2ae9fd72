"""ComfyUI's quantized layers as tensors (`schema/comfy.py` has their form in a file)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import E4M3, F32, MXFP8, NVFP4, U8, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings import hadamard
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.canonical import SubtractModulo
from weighbridge.packings.int_quant import IntQuant
from weighbridge.packings.read import compressed, scaled_float
from weighbridge.packings.read.microscaled import Microscaled
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.comfy import TILE, ComfyLayout
from weighbridge.packings.schema.scaled_float import ScaledFloatLayout
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes
from weighbridge.tensors.nodes.quantized import Packing

_SMOOTHING: Final = "smoothing"


def build(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    layout = match.layout
    tensor = _BUILDERS.get(layout.format, _floats)(match, stored)
    if not layout.rotated and not layout.smoothed:
        return tensor
    members = dict(tensor.members)
    if layout.smoothed:
        members[_SMOOTHING] = nodes.cast(nodes.reshape(stored["smoothing"], (match.shape[1],)), F32)
    return QuantizedTensor(match.spec, Adjusted(tensor.packing, layout.rotated, layout.smoothed), members)


@dataclass(frozen=True)
class _Derived(NoBlockForm):
    """A packing whose values are computed from those of another."""

    inner: Packing

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def code_bits(self) -> int:
        return self.inner.code_bits


@dataclass(frozen=True)
class Adjusted(_Derived):
    """Another packing whose rows are rotated back, in groups of `rotated` columns (0: they aren't), and whose columns
    are then multiplied by the scales of inputs, F32 [in], if it has them."""

    rotated: int
    smoothed: bool

    @cached_property
    def row_map(self) -> Mapping[str, int]:
        return {**self.inner.row_map, **({_SMOOTHING: 0} if self.smoothed else {})}

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        self.inner.decode(spec, parts, lo, hi, out)
        if self.rotated:
            hadamard.rotate(out, self.rotated)
        if self.smoothed:
            rows = out.reshape(hi - lo, -1)
            rows *= parts[_SMOOTHING].view(np.float32)


@dataclass(frozen=True)
class SmoothedSum(_Derived):
    """value = inner / smooth + up @ down. Members: those of `inner`; smooth F32 [in]; with a `rank`, up F32 [out, rank]
    and down F32 [rank, in]."""

    rank: int

    @cached_property
    def row_map(self) -> Mapping[str, int]:
        return {**self.inner.row_map, "smooth": 0, **({"up": 1, "down": 0} if self.rank else {})}

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        self.inner.decode(spec, parts, lo, hi, out)
        smooth = parts["smooth"].view(np.float32)
        rows = out.reshape(-1, smooth.size)
        with np.errstate(divide="ignore", invalid="ignore"):  # not finite then: counted where F32 is rounded
            rows /= smooth
        if self.rank:
            up, down = (parts[role].view(np.float32) for role in ("up", "down"))
            kernels.add_low_rank(rows, up.reshape(-1, self.rank), down.reshape(self.rank, -1))


# ------------------------------------------------------------------------------------------------ floats


def _floats(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    return scaled_float.build_scaled(match.spec, match.layout.inner, stored["weight"], stored["scales"])


def _mxfp8(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    rows, columns = match.shape
    layout = ScaledFloatLayout(E4M3, (1, MXFP8.group), (rows, columns // MXFP8.group))
    return scaled_float.build_scaled(match.spec, layout, stored["weight"], untiled(stored["scales"], *layout[2]))


def _nvfp4(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    rows, columns = match.shape
    members = {
        "codes": swapped(stored["weight"]),
        "scales": nodes.bitcast(
            untiled(stored["scales"], rows, columns // NVFP4.group), NVFP4.scale, columns // NVFP4.group
        ),
        "global": nodes.reshape(stored["global"], (1,)),
    }
    return QuantizedTensor(match.spec, Microscaled(NVFP4, overall=True), members)


@dataclass(frozen=True)
class SwapNibbles:
    """Bytes with their two halves in the other order."""

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"bytes": source}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        np.bitwise_or(source << 4, source >> 4, out=outs["bytes"])


def swapped(codes: Node) -> Node:
    """Pairs of codes with the first one in the other half of the byte."""
    return nodes.pack(codes, SwapNibbles())["bytes"]


def untiled(scales: Node, rows: int, groups: int) -> Node:
    """Scales in tiles of cuBLAS as rows of bytes, without padding."""
    height, width = TILE
    down, across = -(-rows // height), -(-groups // width)
    flat = nodes.reshape(nodes.bitcast(scales, U8, scales.spec.shape[-1]), (scales.spec.elements,))
    tile, part = height * width, height // 4
    shape = (down, 4, part, across, width)
    grid = nodes.strided(flat, 0, shape, (across * tile, width, 4 * width, tile, 1))
    return nodes.strided(nodes.reshape(grid, (flat.spec.elements,)), 0, (rows, groups), (across * width, 1))


def tiled(scales: Node) -> Node:
    """Scales [rows, groups] in tiles of cuBLAS, padded with zeros to whole tiles."""
    (rows, groups), dtype, (height, width) = scales.spec.shape, scales.spec.dtype, TILE
    down, across = -(-rows // height), -(-groups // width)
    for axis, missing in ((1, across * width - groups), (0, down * height - rows)):
        shape = (rows, missing) if axis else (missing, across * width)
        scales = nodes.concat([scales, nodes.zeros(shape, dtype)], axis) if missing else scales
    row = across * width
    flat = nodes.reshape(scales, (scales.spec.elements,))
    part = height // 4
    tiles = nodes.strided(flat, 0, (down, across, part, 4, width), (height * row, width, row, part * row, 1))
    return nodes.reshape(tiles, (down * height, row))


# ------------------------------------------------------------------------------------------------ integers


def _int8(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    if len(match.shape) != 2:
        return _kernels(match, stored)
    return compressed.build_bytes(match, {"codes": stored["weight"], "scales": stored["scales"]})


def _kernels(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    """Convolutions and stacks of matrices: each row along the last axis has the scale of the axes before it."""
    rows, count = match.spec.rows, stored["scales"].spec.elements
    by_row = nodes.strided(nodes.reshape(stored["scales"], (count,)), 0, (count, rows // count), (1, 0))
    packing = IntQuant("comfy", 8, 8, match.shape[-1], by_row.spec.dtype, 128, shift=128, signed=True)
    members = {"codes": stored["weight"], "scales": nodes.reshape(by_row, (rows, 1))}
    return QuantizedTensor(match.spec, packing, members)


def _blocks(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    down, across = stored["scales"].spec.shape
    flat, height = nodes.reshape(stored["scales"], (down * across,)), match.shape[0] // down
    by_row = nodes.reshape(nodes.strided(flat, 0, (down, height, across), (across, 0, 1)), (match.shape[0], across))
    return compressed.build_bytes(match, {"codes": stored["weight"], "scales": by_row})


def _codes(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> Node:
    """Codes of 4 bits, one per byte."""
    weight = stored["weight"]
    return nodes.codes(nodes.bitcast(weight, U8, weight.spec.shape[1]), "stream", 4, match.shape[1])


def _signed(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    """Signed codes with scales [out, groups]."""
    codes, scales = nodes.pack(_codes(match, stored), SubtractModulo(8, 4, U8))["bytes"], stored["scales"]
    packing = IntQuant("comfy", 8, 4, match.group or 0, scales.spec.dtype, 8)
    return QuantizedTensor(match.spec, packing, {"codes": codes, "scales": scales})


def _w4a4(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    return _signed(match, {**stored, "scales": nodes.reshape(stored["scales"], (match.shape[0], 1))})


def _svdquant(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    rank = stored["proj_down"].spec.shape[1]
    weight, scales, up = (stored[role] for role in ("weight", "scales", "proj_up"))
    if len(weight.spec.shape) == 4:
        (tiles, groups), (rows, columns) = weight.spec.shape[:2], match.shape
        weight = _tile_rows(weight, (tiles, rows // tiles, groups, columns // groups // 2))
        scales, up = (_tile_rows(node, (tiles, rows // tiles, node.spec.shape[1], 1)) for node in (scales, up))
    else:
        scales = nodes.transpose(scales)
    tensor = _signed(match, {"weight": weight, "scales": scales})
    members = {**tensor.members, "smooth": nodes.cast(stored["smooth_factor"], F32)}
    if rank:
        members |= {"up": nodes.cast(up, F32), "down": nodes.cast(nodes.transpose(stored["proj_down"]), F32)}
    return QuantizedTensor(match.spec, SmoothedSum(tensor.packing, rank), members)


def _tile_rows(node: Node, shape: tuple[int, int, int, int]) -> Node:
    """Rows [tiles * height, across * width] of a tensor whose tiles are [tiles, across, height, width]."""
    tiles, height, across, width = shape
    flat = nodes.reshape(node, (node.spec.elements,))
    strides = (across * height * width, width, height * width, 1)
    return nodes.reshape(nodes.strided(flat, 0, shape, strides), (tiles * height, across * width))


@dataclass(frozen=True)
class CenteredCodes(NoBlockForm):
    """value = (code - 8) * scale + zero, for groups of columns. Members: codes U8 [out, in], one per byte; scales and
    zeros, F32 [out, groups]."""

    group: int
    name: str = field(default="comfy", init=False)
    code_bits: int = field(default=4, init=False)
    row_map: ClassVar[Mapping[str, int]] = MappingProxyType({"codes": 1, "scales": 1, "zeros": 1})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        groups = out.reshape(-1, self.group)
        np.subtract(parts["codes"].reshape(groups.shape), np.float32(8), out=groups)
        groups *= parts["scales"].view(np.float32)[:, None]
        groups += parts["zeros"].view(np.float32)[:, None]


def _w4a16(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    parameters = {role: nodes.cast(nodes.transpose(stored[role]), F32) for role in ("scales", "zeros")}
    return QuantizedTensor(match.spec, CenteredCodes(match.group or 0), {"codes": _codes(match, stored), **parameters})


@dataclass(frozen=True)
class CodebookBytes(NoBlockForm):
    """value = round(codebook[code] * scale), at most 127, * channel. Members: codes U8 [out, in], one per byte; scales
    of `scale_dtype` [out, groups]; channel F32 [out, 1]; codebook F32 [16]."""

    group: int
    scale_dtype: DType
    name: str = field(default="comfy", init=False)
    code_bits: int = field(default=4, init=False)
    row_map: ClassVar[Mapping[str, int]] = MappingProxyType({"codes": 1, "scales": 1, "channel": 1, "codebook": 0})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        np.take(parts["codebook"].view(np.float32), parts["codes"], out=out, mode="clip")
        groups, rows = out.reshape(-1, self.group), out.reshape(hi - lo, -1)
        groups *= kernels.widened(self.scale_dtype, parts["scales"])[:, None]
        np.clip(np.rint(out, out=out), -127, 127, out=out)
        rows *= parts["channel"].view(np.float32)[:, None]


#: The values of codes without a codebook.
_EVEN: Final = np.arange(-8, 8, dtype=np.float32)


def _w4a8(match: Match[ComfyLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    scales = stored["scales"]
    if scales.spec.dtype is U8:
        scales = nodes.bitcast(scales, E4M3, scales.spec.shape[1])
    members = {
        "codes": _codes(match, stored), "scales": scales,
        "channel": nodes.reshape(stored["channel"], (match.shape[0], 1)),
        "codebook": stored["codebook"] if "codebook" in stored else nodes.const(_EVEN, F32),
    }  # fmt: skip
    return QuantizedTensor(match.spec, CodebookBytes(match.group or 0, scales.spec.dtype), members)


_Builder = Callable[[Match[ComfyLayout], Mapping[str, Node]], QuantizedTensor]
#: The other formats are floats with one scale, or one per row or block.
_BUILDERS: Final[Mapping[str, _Builder]] = MappingProxyType(
    {
        "mxfp8": _mxfp8,
        "nvfp4": _nvfp4,
        "int8_tensorwise": _int8,
        "int8_blockwise": _blocks,
        "convrot_w4a4": _w4a4,
        "svdquant_w4a4": _svdquant,
        "awq_w4a16": _w4a16,
        "asym_w4a8_int8": _w4a8,
    }
)
