"""The packer for int8 models of CTranslate2: a code for each value, and a scale for each row, by which codes are
divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Final

import numpy as np

from weighbridge.base.dtypes import BY_NAME, F32
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings.write.packers import finite, peaks
from weighbridge.tensors.nodes.base import Bytes

_LARGEST: Final = np.float32(127)
#: Below this magnitude a scale would overflow F32.
_LEAST: Final = _LARGEST / np.finfo(np.float32).max


@dataclass(frozen=True)
class Int8RowsOf:
    """An F32 matrix as codes and scales by CTranslate2's own rule (`LayerSpec._quantize` of 4.8): a scale is
    127 / max |row|, that of a row of zeros is 1, and products are rounded half to even."""

    columns: int
    name: str = field(default="a tensor", compare=False)  # in errors; tensors are packed alike

    quantizes: ClassVar[bool] = True

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        return {"": source.with_dtype(BY_NAME["I8"]), "_scale": Spec((source.rows,), F32)}

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        values = finite(self.name, source)
        largest = peaks(values, self.columns)
        scales = _LARGEST / np.maximum(np.where(largest == 0, _LARGEST, largest), _LEAST)
        if "_scale" in outs:
            outs["_scale"][:] = scales.view(np.uint8)
        if "" in outs:
            codes = values.reshape(-1, self.columns) * scales[:, None]
            outs[""][:] = np.rint(codes, out=codes).astype(np.int8).reshape(-1).view(np.uint8)
