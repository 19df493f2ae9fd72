"""A block's formula over its parts gives the very values that its decoder gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.kernels.test_blocks import decode, stored

from weighbridge.base.dtypes import BY_NAME, OLD, DType
from weighbridge.tensors.reference import legacy_blocks
from weighbridge.tensors.reference import registry as codecs
from weighbridge.tensors.reference.codec import Unpacking


class Table:
    """A constant table in a formula: `table[q]`."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, np.float32)

    def __getitem__(self, codes: Any) -> Any:
        return self.values[codes.astype(np.int64)]


def evaluated(dtype: DType, how: Unpacking, data: Any) -> Any:
    """The formula as Python reads it, each part repeated for the elements that it is for."""
    names: dict[str, Any] = {}
    for name, part in how.parts(data).items():
        assert name == "table" or part.ndim == 2, name
        flat = np.asarray(part, np.float32)
        names[name] = Table(part) if name == "table" else np.repeat(flat, dtype.block // flat.shape[1], axis=1)
    with np.errstate(all="ignore"):
        return np.asarray(eval(how.formula, {"__builtins__": {}}, names)).reshape(-1)


@pytest.mark.parametrize("name", [name for name, codec in codecs.BLOCKS.items() if codec.unpacking])
def test_a_formula_gives_the_decoded_values(name: str) -> None:
    dtype, data = BY_NAME[name], stored(BY_NAME[name], 300)
    how = codecs.BLOCKS[name].unpacking
    assert how is not None
    got = evaluated(dtype, how, data)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, decode(dtype, data))


@pytest.mark.parametrize("name", OLD)
def test_formulas_of_types_before_gguf(name: str) -> None:
    dtype, data = OLD[name], stored(OLD[name], 60)
    out = np.empty(data.size // dtype.size * dtype.block, np.float32)
    with np.errstate(all="ignore"):
        legacy_blocks.decode(dtype, data, out)
    np.testing.assert_array_equal(evaluated(dtype, legacy_blocks.unpacking(dtype), data), out)


def test_every_shipped_type_has_a_formula() -> None:
    shipped = [t.name for t in BY_NAME.values() if t.name in codecs.BLOCKS]
    assert [name for name in shipped if codecs.BLOCKS[name].unpacking is None] == []
