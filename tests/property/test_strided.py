"""Strided views: any shape and strides, any slab, any band, what numpy's as_strided gives; memory as the plan says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.examples import examples

from weighbridge.base.dtypes import dtype
from weighbridge.base.spec import Spec
from weighbridge.conversion.plan.contents import slab_cost, slab_rows
from weighbridge.io.source import BytesSource
from weighbridge.tensors.nodes import Stored, strided
from weighbridge.tensors.nodes import base as kinds


@examples(300)
@given(st.data(), st.sampled_from(["U8", "I16", "F32", "F64"]), st.sampled_from([8, 64, 1 << 17]))
def test_every_slab_is_numpys(data: st.DataObject, name: str, band: int) -> None:
    kind = dtype(name)
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=4)))
    steps = tuple(data.draw(st.integers(-7, 7)) for _ in shape)
    low = sum(min((n - 1) * s, 0) for n, s in zip(shape, steps, strict=True))
    high = sum(max((n - 1) * s, 0) for n, s in zip(shape, steps, strict=True))
    start = -low + data.draw(st.integers(0, 3))
    flat = np.random.default_rng(1).integers(0, 256, (start + high + 1) * kind.size, np.uint8)
    node = strided(Stored(Spec((start + high + 1,), kind), BytesSource(flat.tobytes()), 0), start, shape, steps)
    atoms = flat.view(f"V{kind.size}")
    wanted = np.lib.stride_tricks.as_strided(atoms[start:], shape, [s * kind.size for s in steps])
    wanted = np.ascontiguousarray(wanted).reshape(-1).view(np.uint8)
    lo = data.draw(st.integers(0, node.spec.rows))
    hi = data.draw(st.integers(lo, node.spec.rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds, "BAND", band)
        got = node.read(lo, hi)
    assert got.tobytes() == wanted[lo * node.spec.row_bytes : hi * node.spec.row_bytes].tobytes()


def test_a_large_transposed_view_streams_in_passes() -> None:
    """The source is never held: reading a slab takes what the plan says."""
    side = 2048
    flat = np.arange(side * side, dtype=np.float32)
    stored = Stored(Spec((side * side,), dtype("F32")), BytesSource(flat.tobytes()), 0)
    node = strided(stored, 0, (side, side), (1, side))
    assert node.stripes
    assert not strided(stored, 0, (side, side // 2), (side, 2)).stripes
    rows = slab_rows([node], 4 << 20)
    assert 1 < rows < side
    out = np.empty(rows * node.spec.row_bytes, np.uint8)
    with traced_memory() as memory:
        node.read(0, rows, out)
    assert memory.peak < node.scratch(0, rows) + (64 << 10)
    assert slab_cost([node], rows) <= 4 << 20
    np.testing.assert_array_equal(out.view(np.float32).reshape(rows, side), flat.reshape(side, side).T[:rows])
