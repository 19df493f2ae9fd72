"""Packers for MLX: they compute the stored tensors of a logical one. Parts of one file are computed together; a part
computed by itself costs only its share.

    AffineOf    F32 values -> MLX affine, quantized by the rule of its CPU kernel
    FloatOf     F32 values -> MLX mxfp4, mxfp8, nvfp4, by the rule of its CPU kernel
    BlocksOf    a ggml block type -> MLX with the same codes and parameters, without requantizing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_BLOCK, BY_NAME, E4M3, F32, MICROSCALED, U8, U32, DType, MicroscaledType
from weighbridge.base.errors import RefusedError, UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.schema.affine import AFFINE
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes.base import Bytes, Node
from weighbridge.tensors.reference.regroup import FORMS, RegroupForm

Floats = NDArray[np.float32]
#: The members of an affine tensor in MLX.
PARTS: Final = tuple(AFFINE.members)


def _rows(source: Spec, columns: int) -> tuple[int, ...]:
    return (*source.shape[:-1], columns)


# ------------------------------------------------------------------------------------------------ quantizing


def finite(name: str, source: Bytes) -> Floats:
    """The bytes as F32 values. RefusedError for NaN or Inf, which would invalidate the scale of a whole group."""
    values = source.view(np.float32)
    if kernels.nonfinite(values):
        raise RefusedError(
            f"{name} has values that aren't finite (NaN or Inf), so it can't be quantized",
            hint="repair the checkpoint (wb verify --values lists them)",
        )
    return values


@dataclass(frozen=True)
class AffineOf:
    """F32 values as MLX affine. `scale_dtype`: the type of scales and biases, which is the weights' own."""

    bits: int
    group: int
    scale_dtype: DType
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        columns = source.shape[-1]
        parameters = Spec(_rows(source, columns // self.group), self.scale_dtype)
        return {
            "weight": Spec(_rows(source, columns * self.bits // 32), U32),
            "scales": parameters,
            "biases": parameters,
        }

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        values = finite(self.name, source)
        encoded = kernels.affine_encode(self.bits, self.group, self.scale_dtype, values, "weight" in outs)
        for part, data in zip(PARTS, encoded, strict=True):
            if part in outs:
                outs[part][:] = data


#: MLX's float modes.
MODES: Final[Mapping[str, MicroscaledType]] = MappingProxyType({m: row for m, row in MICROSCALED.items() if row.mlx})
# Bits of a code -> MLX's rounding rule.
_RULES: Final[Mapping[int, str]] = MappingProxyType({4: "e2m1-down", 8: "e4m3"})


@dataclass(frozen=True)
class FloatOf:
    """F32 values in a float mode of MLX. `dtype`: the type of the weights, in which MLX computes amax / largest.

    The scale of mxfp4 and mxfp8 is the smallest power of two that is not below this quotient (mlx 0.32.4: pull request
    4353), that of nvfp4 the nearest E4M3. In 4 bits, ties round to the smaller magnitude, and small negative values
    become +0."""

    mode: str
    dtype: DType
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        columns, mode = source.shape[-1], MODES[self.mode]
        return {
            "weight": Spec(_rows(source, columns * mode.bits // 32), U32),
            "scales": Spec(_rows(source, columns // mode.group), U8),
        }

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        mode, values = MODES[self.mode], finite(self.name, source)
        with np.errstate(all="ignore"):
            scales = self._scales(values, mode)
        if "scales" in outs:
            outs["scales"][:] = scales
        if "weight" in outs:
            wide = kernels.widened(mode.scale, scales)
            outs["weight"][:] = kernels.round_codes(_RULES[mode.bits], values, wide, mode.group, mode.group)

    def _scales(self, values: Floats, mode: MicroscaledType) -> Bytes:
        """U8 [groups]."""
        ratio = rounded(self.dtype, peaks(values, mode.group) / np.float32(mode.largest))
        if mode.scale is E4M3:
            return as_bytes(E4M3, ratio)
        fraction, exponent = np.frexp(ratio)  # 0.5 <= fraction < 1: a power of two has 0.5
        up = exponent - (fraction == 0.5)
        return np.where(ratio == 0, 127, up + 127).astype(np.uint8)


def as_bytes(dtype: DType, x: Floats) -> Bytes:
    """The bytes of values as `dtype`, rounded to nearest even."""
    out = np.empty(x.size * dtype.size, np.uint8)
    kernels.cast(F32, dtype, np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint8), out)
    return out


def rounded(dtype: DType, x: Floats) -> Floats:
    """Values rounded to `dtype`."""
    return x if dtype is F32 else kernels.widened(dtype, as_bytes(dtype, x)).reshape(x.shape)


def peaks(values: Floats, group: int) -> Floats:
    """The largest magnitude of each `group` values, F32 [groups]."""
    low, high = kernels.extremes(values, group, group)
    largest: Floats = np.maximum(np.abs(low), np.abs(high))
    return largest


# ------------------------------------------------------------------------------------------------ repacking


#: Block types that MLX can store with the same values.
EXACT: Final = tuple(BY_NAME[name] for name in FORMS)
# FP4 scales from here on are NaN in MLX but numbers in ggml; so are negative E4M3.
_NAN_IN_MLX: Final = MappingProxyType({"F8_E8M0": 0xFF, "F8_E4M3": 0x7F})
_HINT: Final = "convert with --dtype f32"


@dataclass(frozen=True)
class BlocksOf:
    """A ggml block type in MLX's format with the same codes and parameters: affine, or a 4-bit float mode."""

    dtype: DType

    @property
    def form(self) -> RegroupForm:
        return FORMS[self.dtype.name]

    @property
    def mode(self) -> str:
        return BY_BLOCK[self.dtype].name if self.dtype in BY_BLOCK else "affine"

    @property
    def bits(self) -> int:
        return self.form.bits

    @property
    def group(self) -> int:
        return self.form.group

    quantizes: ClassVar[bool] = False

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        if self.mode != "affine":
            return FloatOf(self.mode, F32).specs(source)
        return AffineOf(self.bits, self.group, BY_NAME[self.form.parameter]).specs(source)

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        absent, parameter = np.empty(0, np.uint8), self.form.parameter
        kernels.split_blocks(self.dtype, source, *(outs.get(part, absent) for part in PARTS))
        for data in (outs[part] for part in PARTS[1:] if part in outs):
            if self.mode != "affine":
                if (data >= _NAN_IN_MLX[parameter]).any():
                    raise UnsupportedError(f"a scale of {self.dtype} has another meaning outside of ggml", hint=_HINT)
            elif (stats := kernels.stats(BY_NAME[parameter], data)).nan or stats.inf:
                raise UnsupportedError(f"a scale of {self.dtype} or its bias isn't finite in {parameter}", hint=_HINT)


def gpt_oss_members(node: Node) -> tuple[Node, Node]:
    """MXFP4 blocks as gpt-oss stores them: codes U8 [.., in / 32, 16] and scales U8 [.., in / 32]."""
    parts = nodes.pack(node, BlocksOf(node.spec.dtype))
    *lead, groups = parts["scales"].spec.shape
    codes = nodes.bitcast(parts["weight"], U8, groups * 16)
    return nodes.reshape(codes, (*lead, groups, 16)), parts["scales"]
