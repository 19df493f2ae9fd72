"""Byte order of tensor data."""

from __future__ import annotations

import struct

import pytest

from weighbridge.base import dtypes
from weighbridge.base.dtypes import BY_NAME, TABLE
from weighbridge.base.errors import UnsupportedError

REFUSED = {"F4", "F6_E2M3", "F6_E3M2", "IQ2_XXS"}  # IQ2_XXS: its codes are read bytewise and as words
DESCRIBED = [t for t in TABLE if t.name not in REFUSED]


@pytest.mark.parametrize("dtype", DESCRIBED, ids=str)
def test_a_swap_is_a_permutation_and_its_own_inverse(dtype: object) -> None:
    plan = dtypes.swap_plan(dtype)  # type: ignore[arg-type]
    size = dtype.size  # type: ignore[attr-defined]
    assert sorted(plan) == list(range(size))
    data = bytearray(i % 256 for i in range(3 * size))
    dtypes.swap(dtype, data)  # type: ignore[arg-type]
    assert data == bytes((k * size + j) % 256 for k in range(3) for j in plan)
    dtypes.swap(dtype, data)  # type: ignore[arg-type]
    assert data == bytes(i % 256 for i in range(3 * size))


@pytest.mark.parametrize(
    ("name", "form", "values"),
    [
        ("F32", "f", (1.5,)), ("F64", "d", (0.1,)), ("I16", "h", (-2,)), ("I8", "b", (-2,)), ("C64", "ff", (1.5, -2.0)),
        ("Q8_0", "e32b", (0.5, *range(-16, 16))), ("Q4_1", "ee16B", (0.5, 2.0, *range(16))),
        ("Q4_K", "ee140B", (0.5, 2.0, *range(140))), ("Q6_K", "208Be", (*range(208), 0.5)),
        ("MXFP4", "17B", tuple(range(17))), ("Q5_0", "eI16B", (0.5, 1 << 9, *range(16))),
        ("Q5_1", "eeI16B", (0.5, 2.0, 1 << 9, *range(16))), ("Q8_K", "f256B16h", (0.1, *range(256), *range(16))),
        ("IQ1_S", "e32B8H", (0.5, *range(32), *range(8))), ("IQ1_M", "48B4H", (*range(48), *range(4))),
        ("IQ2_XS", "e32H8B", (0.5, *range(32), *range(8))), ("IQ2_S", "e80B", (0.5, *range(80))),
        ("IQ3_XXS", "e64B8I", (0.5, *range(64), *range(8))), ("IQ3_S", "e108B", (0.5, *range(108))),
        ("IQ4_XS", "eH132B", (0.5, 300, *range(132))),
    ],
    ids=str,
)  # fmt: skip
def test_against_struct(name: str, form: str, values: tuple[float, ...]) -> None:
    """By the structures of ggml-common.h, packed in the two orders."""
    data = bytearray(struct.pack(f">{form}", *values) * 2)
    dtypes.swap(BY_NAME[name], data)
    assert data == struct.pack(f"<{form}", *values) * 2


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_others_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        dtypes.swap_plan(BY_NAME[name])
