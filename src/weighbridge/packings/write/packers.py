"""Packers for MLX: the stored tensors of a logical one. Each computes only the requested parts: all of them if they go
to one file; a single part costs only what it needs.

    AffineOf    F32 values -> MLX affine, quantized by the rule of its CPU kernel
    FloatOf     F32 values -> MLX mxfp4, mxfp8, nvfp4, by the rule of its CPU kernel
    BlocksOf    a ggml block type -> MLX with the same codes and parameters: nothing is quantized again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, F32, U8, U32, DType
from weighbridge.base.errors import RefusedError, UnsupportedError
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
    """The values. RefusedError for NaN or Inf: the scale would be invalid too, which loses a whole group."""
    values = source.view(np.float32)
    if kernels.nonfinite(values):
        raise RefusedError(
            f"{name} has values that aren't finite (NaN or Inf), so it can't be quantized",
            hint="repair the checkpoint (wb verify --values lists them)",
        )
    return values


@dataclass(frozen=True)
class AffineOf:
    """F32 values as MLX affine; `scale_dtype`: of scales and biases, that of the weights."""

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
        codes_too = "weight" in outs
        values = finite(self.name, source)
        found = kernels.affine_encode(self.bits, self.group, self.scale_dtype, values, codes_too)
        for part, data in zip(PARTS, found, strict=True):
            if part in outs:
                outs[part][:] = data


class _Mode(NamedTuple):
    """A float mode of MLX: elements per scale, bits of a code, the largest value, the scale's dtype, and the
    rounding rule."""

    group: int
    bits: int
    largest: float
    scale: str
    rule: str


MODES: Final[Mapping[str, _Mode]] = MappingProxyType(
    {
        "mxfp4": _Mode(32, 4, 6.0, "F8_E8M0", "e2m1-down"),
        "mxfp8": _Mode(32, 8, 448.0, "F8_E8M0", "e4m3"),
        "nvfp4": _Mode(16, 4, 6.0, "F8_E4M3", "e2m1-down"),
    }
)


@dataclass(frozen=True)
class FloatOf:
    """F32 values in a float mode of MLX. `dtype`: of the weights, in which MLX computes amax / largest.

    The scale of mxfp4 and mxfp8 is the smallest power of two that is not below it (mlx 0.32.4: pull request 4353), that
    of nvfp4 the nearest E4M3. Ties go to the smaller magnitude in 4 bits, and small negative values become +0."""

    mode: str
    dtype: DType
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        columns, how = source.shape[-1], MODES[self.mode]
        return {
            "weight": Spec(_rows(source, columns * how.bits // 32), U32),
            "scales": Spec(_rows(source, columns // how.group), U8),
        }

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        how, values = MODES[self.mode], finite(self.name, source)
        with np.errstate(all="ignore"):
            scales = self._scales(values, how)
        if "scales" in outs:
            outs["scales"][:] = scales
        if "weight" in outs:
            wide = kernels.widened(BY_NAME[how.scale], scales)
            outs["weight"][:] = kernels.round_codes(how.rule, values, wide, how.group, how.group)

    def _scales(self, values: Floats, how: _Mode) -> Bytes:
        low, high = kernels.extremes(values, how.group, how.group)
        peaks: Floats = np.maximum(np.abs(low), np.abs(high))
        ratio = self._rounded(peaks / np.float32(how.largest))
        if how.scale == "F8_E4M3":
            return _bytes_of("F8_E4M3", ratio)
        fraction, exponent = np.frexp(ratio)  # 0.5 <= fraction < 1: a power of two has 0.5
        up = exponent - (fraction == 0.5)
        return np.where(ratio == 0, 127, up + 127).astype(np.uint8)

    def _rounded(self, x: Floats) -> Floats:
        return x if self.dtype is F32 else kernels.widened(self.dtype, _bytes_of(self.dtype.name, x))


def _bytes_of(name: str, x: Floats) -> Bytes:
    out = np.empty(x.size * BY_NAME[name].size, np.uint8)
    kernels.cast(F32, BY_NAME[name], np.ascontiguousarray(x).view(np.uint8), out)
    return out


# ------------------------------------------------------------------------------------------------ repacking


#: Block types that MLX can store with the same values.
EXACT: Final = tuple(BY_NAME[name] for name in FORMS)
# FP4 scales from here on are NaN in MLX but numbers in ggml; for E4M3 negative ones too.
_STRANGE: Final = MappingProxyType({"F8_E8M0": 0xFF, "F8_E4M3": 0x7F})
_DECODED: Final = "convert with --dtype f32"
_MODES_OF: Final = MappingProxyType({"F8_E8M0": "mxfp4", "F8_E4M3": "nvfp4"})


@dataclass(frozen=True)
class BlocksOf:
    """A ggml block type in MLX's format with the same codes and parameters: affine, or a mode of 4-bit floats."""

    dtype: DType

    @property
    def form(self) -> RegroupForm:
        return FORMS[self.dtype.name]

    @property
    def mode(self) -> str:
        return _MODES_OF.get(self.form.parameter, "affine")

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
        none = np.empty(0, np.uint8)
        kernels.split_blocks(self.dtype, source, *(outs.get(part, none) for part in PARTS))
        for part in PARTS[1:]:
            self._check(outs.get(part, none))

    def _check(self, parameters: Bytes) -> None:
        if self.mode != "affine":
            if (parameters >= _STRANGE[self.form.parameter]).any():
                raise UnsupportedError(f"a scale of {self.dtype} has another meaning outside of ggml", hint=_DECODED)
            return
        found = kernels.stats(BY_NAME[self.form.parameter], parameters)
        if found.nan or found.inf:
            raise UnsupportedError(
                f"a scale of {self.dtype} or its bias isn't finite in {self.form.parameter}", hint=_DECODED
            )


def gpt_oss_members(node: Node) -> tuple[Node, Node]:
    """MXFP4 blocks as gpt-oss stores them: codes U8 [.., in / 32, 16] and scales U8 [.., in / 32]."""
    parts = nodes.pack(node, BlocksOf(node.spec.dtype))
    *lead, groups = parts["scales"].spec.shape
    codes = nodes.bitcast(parts["weight"], U8, groups * 16)
    return nodes.reshape(codes, (*lead, groups, 16)), parts["scales"]
