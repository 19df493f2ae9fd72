"""A low-rank change of a tensor: the numbers of a product in F64, the same bits however it is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory

from weighbridge.base.dtypes import BF16, F16, F32
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.tensors import kernels, nodes
from weighbridge.tensors.nodes.reduced import row_lengths
from weighbridge.tensors.slicing import take


@given(seed=st.integers(0, 2**32), rank=st.integers(1, 9), experts=st.integers(0, 3), data=st.data())
def test_a_change_is_the_product_and_streams(seed: int, rank: int, experts: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    lead = (experts,) if experts else ()
    rows, columns = int(rng.integers(1, 12)), int(rng.integers(1, 20))
    w, a, b = (rng.normal(size=(*lead, *s)).astype("f4") for s in ((rows, columns), (rank, columns), (rows, rank)))
    node = nodes.low_rank(nodes.const(w, F32), nodes.const(a, F32), nodes.const(b, F32), 0.75)
    want = w.astype("f8") + 0.75 * (b.astype("f8") @ a.astype("f8"))
    whole = node.read_all()
    assert np.allclose(whole.view("f4").reshape(w.shape), want, rtol=1e-5, atol=1e-5)
    lo, mid, hi = sorted(data.draw(st.lists(st.integers(0, node.spec.rows), min_size=3, max_size=3)))
    width = node.spec.row_bytes
    parts = b"".join(node.read(x, y).tobytes() for x, y in ((lo, mid), (mid, hi)))
    assert parts == whole[lo * width : hi * width].tobytes()


@pytest.mark.parametrize("band", [1, 40, 100])
def test_bands_do_not_change_the_bits(band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows, b, a = (rng.normal(size=size).astype("f4") for size in ((7, 20), (7, 3), (3, 20)))
    whole, parts = rows.copy(), rows.copy()
    kernels.add_low_rank(whole, b, a, 0.75)
    monkeypatch.setattr(kernels, "_BAND", band)
    kernels.add_low_rank(parts, b, a, 0.75)
    assert np.allclose(whole, rows + 0.75 * (b @ a), atol=1e-5)
    np.testing.assert_array_equal(parts, whole)


def test_a_change_of_narrow_types_is_computed_in_f32() -> None:
    w, a, b = (np.full(s, 1.0, "f2") for s in ((2, 8), (1, 8), (2, 1)))
    node = nodes.low_rank(nodes.const(w, F16), nodes.const(a, F16), nodes.const(b, F16), 2.0**-13)
    assert (node.read_all().view("f4") == 1 + 2.0**-13).all()
    assert (
        nodes.low_rank(nodes.const(w.view("u2"), BF16), nodes.const(a, F16), nodes.const(b, F16), 1).spec.dtype is F32
    )


@pytest.mark.parametrize(
    ("a", "b"), [((2, 4), (3, 1)), ((1, 4), (2, 1)), ((1, 3), (3, 1)), ((1, 1, 4), (3, 1)), ((0, 4), (3, 0))]
)
def test_a_change_of_another_shape_is_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    weight, left, right = (nodes.const(np.ones(s, "f4"), F32) for s in ((3, 4), a, b))
    with pytest.raises(UsageError, match="doesn't fit"):
        nodes.low_rank(weight, left, right, 1.0)


@given(data=st.data(), seed=st.integers(0, 2**32))
def test_entries_of_any_axis_are_numpys(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    picked = data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=6))
    values = rng.integers(0, 256, shape, np.uint8).astype("f4")
    node = take(nodes.const(values, F32), axis, [(i, i + 1) for i in picked])
    want = np.take(values, picked, axis)
    assert node.spec.shape == want.shape
    assert node.read_all().tobytes() == want.tobytes()


def test_blocks_are_cut_between_and_never_inside() -> None:
    from weighbridge.base.dtypes import dtype
    from weighbridge.io.source import BytesSource

    spec = Spec((4, 3, 64), dtype("Q8_0"))
    raw = np.random.default_rng(1).integers(0, 256, spec.nbytes, np.uint8).tobytes()
    node = nodes.Stored(spec, BytesSource(raw), 0)
    assert take(node, 0, [(1, 2), (2, 4)]).read_all().tobytes() == raw[len(raw) // 4 :]
    blocks = np.frombuffer(raw, np.uint8).reshape(4, 3, 2, -1)
    assert take(node, 1, [(2, 3), (0, 1)]).read_all().tobytes() == blocks[:, [2, 0]].tobytes()
    half = take(node, 2, [(32, 64)])
    assert half.spec.shape == (4, 3, 32)
    assert half.read(5, 9).tobytes() == blocks[:, :, 1].reshape(12, -1)[5:9].tobytes()
    with pytest.raises(UnsupportedError, match="can't be cut"):
        take(node, 2, [(16, 48)])
    for runs in ([(3, 5)], [(2, 1)], [(-1, 2)]):
        with pytest.raises(UsageError):
            take(node, 0, runs)


@given(seed=st.integers(0, 2**32), data=st.data())
def test_rows_get_their_lengths_however_they_are_read(seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(1, 12)), int(rng.integers(1, 20))
    w, lengths = rng.normal(size=(rows, columns)).astype("f4"), rng.normal(size=(rows, 1)).astype("f4")
    node = nodes.rescale_rows(nodes.const(w, F32), nodes.const(lengths, F32))
    whole = node.read_all()
    want = w.astype("f8") * (lengths / np.linalg.norm(w.astype("f8"), axis=1, keepdims=True))
    assert np.allclose(whole.view("f4").reshape(w.shape), want, rtol=1e-6, atol=1e-7)
    lo, mid, hi = sorted(data.draw(st.lists(st.integers(0, rows), min_size=3, max_size=3)))
    width = node.spec.row_bytes
    assert (
        b"".join(node.read(x, y).tobytes() for x, y in ((lo, mid), (mid, hi)))
        == whole[lo * width : hi * width].tobytes()
    )


@given(seed=st.integers(0, 2**32), columns=st.sampled_from([1, 3, 5000]), data=st.data())
def test_lengths_of_rows_are_numpy_s_however_they_are_read(seed: int, columns: int, data: st.DataObject) -> None:
    w = np.random.default_rng(seed).normal(size=(7, columns)).astype("f4")
    node = row_lengths(nodes.const(w, F32))
    node.read_all()  # the next read allocates the buffer that a thread keeps
    whole = node.read_all()
    lo, hi = sorted(data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=2)))
    out = np.empty((hi - lo) * 4, np.uint8)
    with traced_memory() as memory:
        node.read(lo, hi, out)
    assert node.spec.shape == (7, 1)
    assert np.allclose(whole.view("f4"), np.linalg.norm(w.astype("f8"), axis=1), rtol=1e-7)
    assert out.tobytes() == whole[4 * lo : 4 * hi].tobytes()
    assert memory.peak <= node.scratch(lo, hi) + 64_000


@given(seed=st.integers(0, 2**32), data=st.data())
def test_rows_are_divided_by_their_numbers_however_they_are_read(seed: int, data: st.DataObject) -> None:
    """As torch divides, element by element; a number below the least counts as the least."""
    import torch

    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(1, 12)), int(rng.integers(1, 20))
    w, numbers = rng.normal(size=(rows, columns)).astype("f4"), rng.integers(0, 3, rows).astype("f4")
    node = nodes.divide_rows(nodes.const(w, F32), nodes.const(numbers, F32), 1e-5)
    whole = node.read_all()
    want = torch.from_numpy(w) / torch.from_numpy(numbers).clamp_min(1e-5).unsqueeze(-1)
    assert whole.tobytes() == want.numpy().tobytes()
    lo, hi = sorted(data.draw(st.lists(st.integers(0, rows), min_size=2, max_size=2)))
    out = np.empty((hi - lo) * node.spec.row_bytes, np.uint8)
    with traced_memory() as memory:
        node.read(lo, hi, out)
    assert out.tobytes() == whole[lo * node.spec.row_bytes : hi * node.spec.row_bytes].tobytes()
    assert memory.peak <= node.scratch(lo, hi) + 64_000
    with pytest.raises(UsageError, match="for the rows of"):
        nodes.divide_rows(nodes.const(w, F32), nodes.const(np.ones(rows + 1, "f4"), F32), 1e-5)


def test_lengths_that_no_row_has_are_refused() -> None:
    rows = nodes.const(np.array([[1, 2], [0, 0]], "f4"), F32)
    with pytest.raises(UsageError, match="for the rows of"):
        nodes.rescale_rows(rows, nodes.const(np.ones((3, 1), "f4"), F32))
    with pytest.raises(FormatError, match="row 1 is all zeros"):
        nodes.rescale_rows(rows, nodes.const(np.ones((2, 1), "f4"), F32)).read(1, 2)
