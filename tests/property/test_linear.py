"""Rows through a layer: numpy's, and the same bits whichever rows are read together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.base.dtypes import F16, F32
from weighbridge.base.errors import FormatError
from weighbridge.tensors import nodes

_ACTIVATIONS = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@given(data=st.data(), seed=st.integers(0, 2**32), name=st.sampled_from(sorted(_ACTIVATIONS)), biased=st.booleans())
def test_rows_through_a_layer_are_numpys(data: st.DataObject, seed: int, name: str, biased: bool) -> None:
    rng = np.random.default_rng(seed)
    rows, inputs, outputs = int(rng.integers(1, 200)), int(rng.integers(1, 20)), int(rng.integers(1, 12))
    x, w, b = (rng.normal(size=s).astype("f4") for s in ((rows, inputs), (outputs, inputs), (outputs,)))
    bias = nodes.const(b, F32) if biased else None
    node = nodes.linear(nodes.const(x, F32), nodes.const(w, F32), bias, activation=name)
    whole = node.read_all()
    want = _ACTIVATIONS[name](x.astype("f8") @ w.astype("f8").T + (b if biased else 0))
    assert np.allclose(whole.view("f4").reshape(rows, outputs), want, rtol=1e-5, atol=1e-6)
    lo, mid, hi = sorted(data.draw(st.lists(st.integers(0, rows), min_size=3, max_size=3)))
    width = node.spec.row_bytes
    parts = b"".join(node.read(x, y).tobytes() for x, y in ((lo, mid), (mid, hi)))
    assert parts == whole[lo * width : hi * width].tobytes()


def test_narrow_types_are_computed_in_f32() -> None:
    x, w = np.full((2, 8), 1.0, "f2"), np.full((3, 8), 2.0**-12, "f2")
    node = nodes.linear(nodes.const(x, F16), nodes.const(w, F16))
    assert (node.spec.dtype, node.spec.shape) == (F32, (2, 3))
    assert (node.read_all().view("f4") == 8 * 2.0**-12).all()


@pytest.mark.parametrize(("weight", "bias"), [((2, 4), None), ((2, 3), (3,))])
def test_a_layer_of_another_shape_is_refused(weight: tuple[int, ...], bias: tuple[int, ...] | None) -> None:
    rows, matrix = (nodes.const(np.ones(s, "f4"), F32) for s in ((5, 3), weight))
    added = None if bias is None else nodes.const(np.ones(bias, "f4"), F32)
    with pytest.raises(FormatError, match="doesn't fit"):
        nodes.linear(rows, matrix, added)
