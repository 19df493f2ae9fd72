"""MLX affine quantization: a module P is stored as three tensors.

    P.weight  U32 [..., out, in*bits/32]   codes, a little-endian bit stream along the row
    P.scales  T   [..., out, in/group]     T is F16, BF16 or F32
    P.biases  T   [..., out, in/group]     (not to be confused with P.bias, an ordinary linear bias)

    value = scale * code + bias            the scale may be negative

Source: mlx/backend/cpu/quantized.cpp (0.32), mlx.nn.QuantizedLinear. MLX computes the value in T; here it is computed
in F32, which rounds less. Bits and group follow from the shapes up to their product; the config settles the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, F16, F32, U8, U32, DType
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.packings import ggml_blocks as blocks
from weighbridge.packings.base import Config, Found, Nodes, need
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes

NAME: Final = "mlx-affine"
KEYS: Final = (".scales",)
BITS: Final = (1, 2, 3, 4, 5, 6, 8)
GROUPS: Final = (32, 64, 128)
_SCALES: Final = (F16, BF16, F32)
_ROWS: Final = MappingProxyType({"weight": 1, "scales": 1, "biases": 1})


@dataclass(frozen=True)
class Affine:
    """The parameters of one tensor's affine quantization. Two tensors join only where these are equal."""

    bits: int
    group: int
    scale_dtype: DType
    name: str = field(default=NAME, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return _ROWS

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        kernels.affine_decode(
            self.bits, self.group, self.scale_dtype, parts["weight"], parts["scales"], parts["biases"], False, out
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("scales", "biases")

    @property
    def blocks(self) -> tuple[DType, ...]:
        signs = (blocks.Q1_0,) if self.bits == 1 and not self.group % blocks.Q1_0.block else ()
        return signs + blocks.fitting(0, (1 << self.bits) - 1, True, self.group)

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        if dtype is blocks.Q1_0:
            return _no_signs(self.scale_dtype, members["scales"], members["biases"])
        wrong = [m for m in ("scales", "biases") if not blocks.fits_f16(members[m])]
        return f"its {self.scale_dtype} {' and '.join(wrong)} are not f16 numbers" if wrong else ""

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        """The same codes in ggml's order, scale and bias once a block of 32."""
        if dtype is blocks.Q1_0:
            d = blocks.halves(F32, _half(self.scale_dtype, parts["scales"]).view(np.uint8))
            blocks.of_stream(dtype, d, self.group, parts["weight"], out)
            return
        d, m = (blocks.halves(self.scale_dtype, parts[p]) for p in ("scales", "biases"))
        kernels.join_blocks(dtype, self.bits, self.group, parts["weight"], d, m, out)


def _half(dtype: DType, scales: Bytes) -> NDArray[np.float32]:
    """d of blocks whose codes are signs: value = 2 * d * code - d."""
    found: NDArray[np.float32] = kernels.widened(dtype, scales) / np.float32(2)
    return found


def _no_signs(dtype: DType, scales: Node, biases: Node) -> str:
    """Why codes of one bit aren't d and -d; empty where they are."""
    step = max(1, (8 << 20) // max(scales.spec.row_bytes, 1))
    for lo in range(0, scales.spec.rows, step):
        hi = min(lo + step, scales.spec.rows)
        d = _half(dtype, scales.read(lo, hi))
        if not np.array_equal(-d, kernels.widened(dtype, biases.read(lo, hi))):
            return "its two values are not d and -d"
        if not np.array_equal(d, kernels.widened(F16, blocks.halves(F32, d.view(np.uint8)))):
            return f"half its {dtype} scales are not f16 numbers"
    return ""


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    weight = tensors.get(f"{module}.weight")
    biases = f"{module}.biases" in tensors
    if weight is None or weight.spec.dtype is not U32 or (tensors[module + key].spec.dtype is U8 and not biases):
        return None
    need(biases, module, "weight and scales without biases", f"{module}.biases", "no such tensor")
    return Found(f"{module}.weight", _packed(module, tensors, config), frozenset(f"{module}.{m}" for m in _ROWS))


def _packed(module: str, tensors: Mapping[str, Node], config: Config) -> QuantizedTensor:
    members = {m: tensors[f"{module}.{m}"] for m in _ROWS}
    weight, scales, biases = (members[m].spec for m in _ROWS)
    same = scales.shape == biases.shape and scales.dtype == biases.dtype and scales.shape[:-1] == weight.shape[:-1]
    if not same or len(weight.shape) < 2 or scales.dtype not in _SCALES or 0 in scales.shape:
        raise FormatError(
            "weight, scales and biases don't belong together", field=module,
            expected=f"scales and biases [{', '.join(map(str, weight.shape[:-1]))}, groups] of {_SCALES}",
            found=f"{weight}, {scales}, {biases}",
        )  # fmt: skip
    bits, group = _parameters(module, weight.shape[-1], scales.shape[-1], config)
    spec = Spec((*weight.shape[:-1], weight.shape[-1] * 32 // bits), F32)
    return QuantizedTensor(spec, Affine(bits, group, scales.dtype), members)


def _parameters(module: str, words: int, groups: int, config: Config) -> tuple[int, int]:
    """Bits and group of a row of `words` u32 words in `groups` groups: bits * group = 32 * words / groups."""
    fits = [(b, g) for b in BITS for g in GROUPS if b * g * groups == 32 * words]
    told = _told(module, config)
    if told in fits:
        return told
    if len(fits) == 1:
        return fits[0]
    raise FormatError(
        f"bits and group size can't be told from {words} words in {groups} groups a row",
        field=module,
        expected=f"one of {fits} in config.json's quantization" if fits else "a whole number of groups",
        found=told if told != (0, 0) else "nothing",
        hint="say the right ones in config.json's quantization: group_size and bits",
    )


def _told(module: str, config: Config) -> tuple[int, int]:
    """What config.json says of a module; an override's null group size means MLX's default of 64."""
    top = config.get("quantization") or config.get("quantization_config") or {}
    own = top.get(module) if isinstance(top, Mapping) else None
    table = own if isinstance(own, Mapping) else top
    if not isinstance(table, Mapping):
        return 0, 0
    bits, group = table.get("bits", top.get("bits")), table.get("group_size", top.get("group_size"))
    return (bits if isinstance(bits, int) else 0), (group if isinstance(group, int) else 64 if bits else 0)
