"""FP8 with a scale per rectangle as a tensor (`schema/scaled_float.py` has its forms in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import E8M0, U8, DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.schema.base import Match
from weighbridge.packings.schema.scaled_float import NAME, ScaledFloatLayout
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes


@dataclass(frozen=True)
class ScaledFloat(NoBlockForm):
    """The parameters of one tensor: `block` rows and columns share a scale."""

    dtype: DType
    scale_dtype: DType
    block: tuple[int, int]
    name: str = field(default=NAME, init=False)

    @property
    def code_bits(self) -> int:
        return 8

    @cached_property
    def row_map(self) -> Mapping[str, int]:
        return {"weight": 1, "scales": self.block[0]}

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        columns, (height, width) = spec.shape[-1], self.block
        scales = kernels.widened(self.scale_dtype, parts["scales"]).reshape(-1, -(-columns // width))
        row_scales = scales[np.arange(lo, hi) // height - lo // height].reshape(-1)
        kernels.scaled_decode(self.dtype, parts["weight"], row_scales, columns, width, out)


def build(match: Match[ScaledFloatLayout], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    weight, scales, dtype = stored["weight"], stored["scales"], match.layout.dtype
    if weight.spec.dtype is not dtype:  # MLX stores words
        weight = nodes.bitcast(weight, dtype, match.shape[-1])
    return build_scaled(match.spec, match.layout, weight, scales)


def build_scaled(spec: Spec, layout: ScaledFloatLayout, weight: Node, scales: Node) -> QuantizedTensor:
    """8-bit floats and their scales, in bytes or floats, as one tensor."""
    if scales.spec.dtype is U8:
        scales = nodes.bitcast(scales, E8M0, scales.spec.shape[-1])
    packing = _shared(layout.dtype, scales.spec.dtype, layout.block)
    members = {"weight": weight, "scales": nodes.reshape(scales, layout.scale_shape)}
    return QuantizedTensor(spec, packing, members)


#: Equal parameters are one object: a model of 100,000 tensors has a few.
_shared = lru_cache(maxsize=64)(ScaledFloat)
