"""NumPy's .npy, both ways, against numpy: what it writes we read, what we write equals its bytes."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.containers.regions import check_regions

from weighbridge.base.dtypes import BY_NAME, dtype
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.numpy import npy
from weighbridge.io.source import BytesSource

NAMES = [BY_NAME[n] for n in npy._NAMES]
BAD = (FormatError, UnsupportedError, RefusedError)


def saved(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def with_header(text: str, data: bytes = bytes(range(24)), version: tuple[int, int] = (1, 0)) -> bytes:
    raw = text.encode("utf-8" if version == (3, 0) else "latin-1")
    return npy.MAGIC + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(raw)) + raw + data


def swapped(name: str | None, order: Any) -> Any:
    return np.dtype(name).newbyteorder(order)


def loaded(data: bytes) -> Any:
    index = npy.parse(BytesSource(data))
    (e,) = index
    raw = index.files[0].read(e.offset, e.nbytes)
    array = np.frombuffer(raw, swapped(e.dtype.numpy, index.byte_order))
    if e.strides is None:
        return array.reshape(e.shape)
    return np.lib.stride_tricks.as_strided(array, e.shape, [n * array.itemsize for n in e.strides])


arrays = st.tuples(
    st.sampled_from([t.numpy for t in NAMES]), st.lists(st.integers(0, 4), max_size=4), st.sampled_from("<>")
).map(lambda t: (np.arange(int(np.prod(t[1]))) % 3).astype(swapped(t[0], t[2])).reshape(t[1]))


@given(arrays)
def test_what_numpy_writes_is_read(array: Any) -> None:
    data = saved(array)
    np.testing.assert_array_equal(loaded(data), array)
    check_regions(npy.regions(BytesSource(data)), len(data))


@given(st.sampled_from(NAMES), st.lists(st.sampled_from([0, 1, 2, 10, 999, 10**9]), max_size=8))
@example(dtype("F32"), [1] * 64)
def test_what_is_written_has_numpys_bytes(t: Any, shape: list[int]) -> None:
    head = npy.header_bytes("a", Spec(tuple(shape), t))
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": np.lib.format.dtype_to_descr(np.dtype(t.numpy)), "fortran_order": False, "shape": tuple(shape)}
    )
    assert head == out.getvalue()
    assert len(head) % 64 == 0


@pytest.mark.parametrize("length", range(20, 100))
def test_padding_is_never_zero_as_in_numpy(length: int) -> None:
    shape = (1,) + (10 ** (length % 9),) * (length // 9)
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
    assert npy.header_bytes("a", Spec(shape, dtype("F32"))) == out.getvalue()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions(version: tuple[int, int]) -> None:
    data = with_header("{'descr': '<i2', 'fortran_order': False, 'shape': (12,)}", bytes(range(24)), version)
    index = npy.parse(BytesSource(data, "dir/some.npy"))
    assert index.version == version[0]
    assert [e.name for e in index] == ["some"]
    np.testing.assert_array_equal(loaded(data), np.load(io.BytesIO(data)))
    check_regions(npy.regions(BytesSource(data)), len(data))


F32 = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"


def shaped(text: str) -> str:
    return F32.replace("(2, 3)", text)


def typed(text: str) -> str:
    return F32.replace("<f4", text)


def fortran(order: str, shape: str = "(6,)") -> str:
    return shaped(shape).replace("False", order)


HEADERS = [
    # What several writers put there.
    *(F32, F32 + " " * 20 + "\n", F32.replace("'", '"'), F32.replace(" ", ""), F32.replace(", }", "}"), "\n" + F32),
    *(shaped("(2, 3,)"), shaped("(6,)"), shaped("()"), shaped("((((6,))))")),
    "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}",
    *map(typed, ("|u1", "<c8", "|b1", ">f4", "<u1", "?")),
    *(fortran("True"), fortran("True", "(1, 6, 1)"), fortran("True", "(0, 6, 2)"), fortran("True", "(3, 2)")),
    *(fortran("True", "(1, 3, 2, 1)"), fortran("True", "(3, 1, 2)").replace("<f4", ">f4")),
    # Wrong.
    *("", "{", "{}", "[]", "1", F32 + "x", F32 + F32, "__import__('os').system('true')"),
    *map(shaped, ("[2, 3]", "6", "(6)", "(2.0, 3)", "(,)", "(2 3)", "('2', 3)", "(02, 3)", "(2, 3", "None", "(2, 4)")),
    *(shaped(f"({2**62}, 8)"), fortran("0"), fortran("None"), fortran("'False'")),
    *(F32.replace("descr", "desc"), F32.replace(", }", ", 'x': 1}"), F32.replace("'shape'", "shape")),
    *(F32.replace(":", "="), F32.replace("'<f4'", "4")),
    *map(typed, ("", "<f3", "xx", "<f4<f4")),
]


@pytest.mark.oracle
@pytest.mark.parametrize("text", HEADERS)
def test_headers_get_numpys_verdict(text: str) -> None:
    data = with_header(text)
    try:
        expected = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception:
        with pytest.raises(BAD):
            npy.parse(BytesSource(data))
    else:
        np.testing.assert_array_equal(loaded(data), expected)
    check_regions(npy.regions(BytesSource(data)), len(data))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (F32.replace("'<f4'", "'|O'"), RefusedError, "pickle"),
        (F32.replace("'<f4'", "[('a', '<f4')]"), UnsupportedError, "records"),
        (F32.replace("<f4", "<U3"), UnsupportedError, "unknown number type"),
        (F32.replace("<f4", "<M8[s]"), UnsupportedError, "unknown number type"),
        (F32.replace("<f4", "|V2"), UnsupportedError, "unknown number type"),
        (F32.replace("<f4", ">V2"), UnsupportedError, "unknown number type"),
        (F32.replace("<f4", "<V1"), UnsupportedError, "float8"),
        (F32.replace("<f4", "<f1"), UnsupportedError, "float8"),
        (F32.replace("<f4", "<f16"), UnsupportedError, "unknown number type"),
        (F32.replace("<f4", "=f4"), FormatError, "byte order"),
        (F32.replace("<f4", "f4"), FormatError, "byte order"),
        (F32.replace("(2, 3)", "(2, 4)"), FormatError, "cut off"),
        (F32.replace("(2, 3)", "(" * 5000 + ")" * 3), FormatError, "can't be read"),
        (F32.replace("(2, 3)", f"(0, {2**63})"), FormatError, "impossible"),
        (F32.replace("(2, 3)", f"({'1, ' * 65})"), FormatError, "impossible"),
        (F32.replace("(2, 3)", f"({'9' * 5000},)"), FormatError, "can't be read"),
        (F32 + " " * 10_000, FormatError, "too long"),
    ],
)  # fmt: skip
def test_what_is_refused_and_why(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        npy.parse(BytesSource(with_header(text)))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"\x93NUMPX" + with_header(F32)[6:], FormatError, "not a NumPy array"),
        (with_header(F32, version=(1, 1)), UnsupportedError, r"version 1\.1"),
        (with_header(F32, version=(4, 0)), UnsupportedError, r"version 4\.0"),
        # Python would take the last one.
        (with_header(F32.replace("{", "{'shape': (6,), ")), FormatError, "can't be read"),
        (with_header(F32.replace("{", "{(): (6,), ")), FormatError, "can't be read"),
    ],
)  # fmt: skip
def test_what_is_no_array_file(data: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        npy.parse(BytesSource(data))


def test_python_2_wrote_long_numbers() -> None:
    assert loaded(with_header(F32.replace("(2, 3)", "(2L, 3L)"))).shape == (2, 3)


def test_truncated_anywhere() -> None:
    data = saved(np.arange(6, dtype="<f4"))
    for size in range(len(data)):
        with pytest.raises((FormatError, UnsupportedError)):
            npy.parse(BytesSource(data[:size]))
        check_regions(npy.regions(BytesSource(data[:size])), size)


def test_what_follows_is_told() -> None:
    index = npy.parse(BytesSource(saved(np.zeros(3)) + b"more"))
    assert [f.rule for f in index.findings] == ["npy/trailing-bytes"]


@given(st.sampled_from(NAMES), st.lists(st.integers(0, 5), max_size=3))
def test_what_is_written_is_read(t: Any, shape: list[int]) -> None:
    spec = Spec(tuple(shape), t)
    layout = npy.layout([("x", spec)])
    data = layout.pieces[0][1].ljust(layout.size, b"\1")
    (e,) = npy.parse(BytesSource(data))
    assert (e.spec, e.offset) == (spec, layout.slots[0].offset)
    array = np.load(io.BytesIO(data))
    assert (array.shape, array.dtype) == (tuple(shape), np.dtype(t.numpy))


def test_types_without_a_name() -> None:
    for name in ("BF16", "F8_E4M3", "F4", "Q8_0"):
        with pytest.raises(UnsupportedError, match=r"dtype=.f32."):
            npy.layout([("x", Spec((64,), dtype(name)))])
    ml_dtypes = pytest.importorskip("ml_dtypes")
    layout = npy.layout([("x", Spec((4,), dtype("BF16")))], raw=True)
    data = layout.pieces[0][1] + np.arange(4).astype(ml_dtypes.bfloat16).tobytes()
    np.testing.assert_array_equal(np.load(io.BytesIO(data)).view(ml_dtypes.bfloat16), np.arange(4))
    with pytest.raises(UnsupportedError):
        npy.layout([("x", Spec((4,), dtype("F4")))], raw=True)


def test_one_array_a_file() -> None:
    spec = Spec((1,), dtype("F32"))
    for tensors in ([], [("a", spec), ("b", spec)]):
        with pytest.raises(UsageError):
            npy.layout(tensors)
    assert npy.layout([("a", spec)], {"k": "v"}).notes == ("the format has no metadata: 1 key is left out",)
