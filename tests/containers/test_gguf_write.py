"""What we write, three other readers read (llama.cpp, the gguf package, our own), and what they write, we read."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.containers import _ggml
from tests.containers._gguf_models import metadata, model, render, tensors
from tests.examples import examples

from weighbridge.base import dtypes
from weighbridge.base.dtypes import BY_NAME, TABLE
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV
from weighbridge.containers.gguf.values import RANGES
from weighbridge.io.source import BytesSource, FileSource

needs_llama_cpp = pytest.mark.skipif(_ggml.library() is None, reason="xllamacpp isn't installed")
F32, Q8_0 = BY_NAME["F32"], BY_NAME["Q8_0"]
WRITABLE = [t for t in TABLE if t.ggml is not None]

# -- parse(layout(E)) = E ------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.binary(max_size=6).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)
values: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(*bounds) for kind, bounds in RANGES.items()},
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": texts,
}


def scalars(kind: str) -> st.SearchStrategy[KV]:
    return values[kind].map(lambda value: KV(kind, value))


def arrays(kind: str, depth: int = 0) -> st.SearchStrategy[KV]:
    inner = values[kind] if depth == 0 else arrays(kind, depth - 1).map(lambda kv: kv.value)
    name = "arr[" * (depth + 1) + kind + "]" * (depth + 1)
    # an empty array of arrays has no inner type to read back
    return st.lists(inner, min_size=1 if depth else 0, max_size=6).map(lambda v: KV(name, v))


flat = st.one_of(*[scalars(kind) for kind in values], *[arrays(kind) for kind in values])
kvs = st.one_of(
    flat,
    st.sampled_from(sorted(values)).flatmap(lambda kind: arrays(kind, 1)),
)
keys = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.", min_size=1, max_size=20).filter(
    lambda k: k != "general.alignment"
)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    dtype = draw(st.sampled_from(WRITABLE))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    if dtype.block > 1:
        shape = [*shape[:3], dtype.block * draw(st.integers(0, 2))]
    return Spec(tuple(shape), dtype)


directories = st.dictionaries(st.text(max_size=15), specs(), max_size=5).map(lambda d: list(d.items()))


def pattern(name: str, nbytes: int) -> bytes:
    return bytes((i * 7 + len(name)) % 256 for i in range(nbytes))


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, gguf.LazyArray) else value


@pytest.mark.costly
@examples(150)
@given(st.dictionaries(keys, kvs, max_size=6), directories, st.sampled_from([8, 32, 64, 4096]))
def test_what_was_written_is_read_back(pairs: dict[str, KV], slots: list[tuple[str, Spec]], alignment: int) -> None:
    layout = gguf.layout(slots, pairs, alignment=alignment)
    data = render(layout, pattern)
    index = gguf.parse(BytesSource(data))
    assert isinstance(index.metadata, gguf.Metadata)
    read = {key: KV(index.metadata.type(key), plain(index.metadata[key])) for key in index.metadata}
    assert read.pop("general.alignment", KV("u32", 32)) == KV("u32", alignment)
    assert read == pairs
    assert list(read) == list(pairs)  # in the order given
    assert [(e.name, e.spec, e.offset) for e in index.entries] == [(s.name, s.spec, s.offset) for s in layout.slots]
    assert all(index.files[0].read(e.offset, e.nbytes) == pattern(e.name, e.nbytes) for e in index.entries)
    assert {f.rule for f in index.findings if f.severity != "info"} <= {
        "gguf/key-charset",
        "gguf/utf8",
        "gguf/array-nested",
    }
    # Written again from what was read, without decoding: the same bytes.
    again = gguf.layout([(e.name, e.spec) for e in index.entries], index.metadata)
    assert again.pieces == layout.pieces
    assert (again.slots, again.size) == (layout.slots, layout.size)


# -- other readers -------------------------------------------------------------------------------------------------


@needs_llama_cpp
@pytest.mark.oracle
@examples(100)
@given(st.dictionaries(keys, flat), directories, st.sampled_from([8, 32, 4096]))
def test_llama_cpp_reads_it(pairs: dict[str, KV], slots: list[tuple[str, Spec]], alignment: int) -> None:
    layout = gguf.layout(slots, pairs, alignment=alignment)
    data = render(layout, pattern)
    assert _ggml.accepts(data, with_data=True)
    seen = _ggml.described(data)
    start = gguf.header_size(slots, pairs, alignment=alignment)
    assert (seen["version"], seen["alignment"]) == (3, alignment)
    assert [k.decode() for k, _ in seen["keys"]][: len(pairs)] == list(pairs)
    expected = [(s.name.split("\0")[0], s.spec.dtype.ggml, s.offset - start, s.spec.nbytes) for s in layout.slots]
    assert [(n.decode(), t, o, size) for n, t, o, size in seen["tensors"]] == expected
    if slots:
        assert seen["data_start"] == start


@pytest.mark.oracle
def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    reference = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    slots = [
        (name, Spec(s.shape, Q8_0 if s.shape[-1:] == (32,) and len(s.shape) > 1 else s.dtype)) for name, s in tensors()
    ]
    layout = gguf.layout(slots, metadata() | {"a.flags": KV("arr[bool]", [True, False]), "a.large": KV("u64", 1 << 60)})
    path.write_bytes(render(layout, pattern))
    reader = reference.GGUFReader(path)
    index = gguf.parse(FileSource(path))
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert fields == {key: plain(value) for key, value in index.metadata.items()}
    seen = [(t.name, t.tensor_type.name, t.shape.tolist()[::-1], t.data_offset, t.n_bytes) for t in reader.tensors]
    assert seen == [(e.name, e.dtype.name, list(e.shape), e.offset, e.nbytes) for e in index.entries]
    assert all(t.data.tobytes() == pattern(t.name, t.n_bytes) for t in reader.tensors)


@pytest.mark.oracle
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("alignment", [32, 128])
def test_what_the_gguf_package_writes_is_read(tmp_path: Path, order: str, alignment: int) -> None:
    reference = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")
    path = tmp_path / "m.gguf"
    endian = reference.GGUFEndian.BIG if order == ">" else reference.GGUFEndian.LITTLE
    writer = reference.GGUFWriter(path, "llama", endianess=endian)
    expected: dict[str, KV] = {"general.architecture": KV("str", "llama")}
    if alignment != 32:
        writer.add_custom_alignment(alignment)
        expected["general.alignment"] = KV("u32", alignment)
    kinds = {
        "u8": "uint8",
        "i8": "int8",
        "u16": "uint16",
        "i16": "int16",
        "u32": "uint32",
        "i32": "int32",
        "u64": "uint64",
        "i64": "int64",
    }
    for kind, name in kinds.items():
        getattr(writer, f"add_{name}")(f"n.{kind}", RANGES[kind][1])
        expected[f"n.{kind}"] = KV(kind, RANGES[kind][1])
    for key, value, add in [
        ("x.f", 0.5, "float32"),
        ("x.d", 0.1, "float64"),
        ("x.b", True, "bool"),
        ("x.s", "ü", "string"),
    ]:
        getattr(writer, f"add_{add}")(key, value)
        expected[key] = KV({"float32": "f32", "float64": "f64", "bool": "bool", "string": "str"}[add], value)
    for key, items, kind in [
        ("a.i", [1, -2], "i32"),
        ("a.f", [0.5, 2.0], "f32"),
        ("a.s", ["a", "", "ß"], "str"),
        ("a.b", [True, False], "bool"),
    ]:
        writer.add_array(key, items)
        expected[key] = KV(f"arr[{kind}]", items)
    arrays = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "h": np.ones(5, np.float16),
        "i": np.arange(3, dtype=np.int32),
    }
    for name, array in arrays.items():
        writer.add_tensor(name, array.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with FileSource(path) as source:
        index = gguf.parse(source)
        assert isinstance(index.metadata, gguf.Metadata)
        assert {k: KV(index.metadata.type(k), plain(index.metadata[k])) for k in index.metadata} == expected
        assert (index.byte_order, index.alignment) == (order, alignment)
        assert [(e.name, e.shape) for e in index.entries] == [(n, a.shape) for n, a in arrays.items()]
        for entry in index.entries:
            data = bytearray(source.read(entry.offset, entry.nbytes))
            if order == ">":
                dtypes.swap(entry.dtype, data)
            assert bytes(data) == arrays[entry.name].tobytes()
        # The key-values again, little-endian: as the reference itself would have written them.
        if order == "<":
            header = gguf.header_bytes([(e.name, e.spec) for e in index.entries], index.metadata)
            assert source.read(0, len(header)) == header


# -- what is refused, what is inferred -----------------------------------------------------------------------------

W = Spec((2, 32), Q8_0)
REFUSED = [
    ("name of 64 bytes", [("é" * 32, W)], {}, {}, UsageError, "64 bytes"),
    ("two of one name", [("a", W), ("a", W)], {}, {}, UsageError, "two tensors"),
    ("five dims", [("a", Spec((1, 1, 1, 1, 1), F32))], {}, {}, UsageError, "5 dimensions"),
    ("no ggml type", [("a", Spec((1,), BY_NAME["F8_E4M3"]))], {}, {}, UnsupportedError, "F8_E4M3"),
    ("half a block", [("a", Spec((32, 2), Q8_0))], {}, {}, UsageError, "whole blocks"),
    ("alignment 4", [], {}, {"alignment": 4}, UsageError, "aligned to 4"),
    ("alignment 48", [], {}, {"alignment": 48}, UsageError, "aligned to 48"),
    ("alignment 2^17", [], {}, {"alignment": 1 << 17}, UsageError, "aligned to"),
    ("two alignments", [], {"general.alignment": KV("u32", 64)}, {"alignment": 32}, UsageError, "aligned to 32"),
    ("alignment as u64", [], {"general.alignment": KV("u64", 64)}, {}, UsageError, "u64"),
    ("empty key", [], {"": 1}, {}, UsageError, "key"),
    ("long key", [], {"k" * 65536: 1}, {}, UsageError, "65536"),
    ("lone surrogate", [], {"k": "\ud800"}, {}, UsageError, "UTF-8"),
    ("unknown type", [], {"k": KV("u128", 1)}, {}, UsageError, "u128"),
    ("bare arr", [], {"k": KV("arr", [])}, {}, UsageError, "'arr'"),
    ("five levels", [], {"k": KV("arr[" * 5 + "u8" + "]" * 5, [])}, {}, UsageError, "arr"),
    ("u8 of 256", [], {"k": KV("u8", 256)}, {}, UsageError, "u8"),
    ("u32 of text", [], {"k": KV("u32", "1")}, {}, UsageError, "u32"),
    ("f32 overflow", [], {"k": KV("f32", 1e39)}, {}, UsageError, "f32"),
    ("bool of 2", [], {"k": KV("bool", 2)}, {}, UsageError, "bool"),
    ("text as array", [], {"k": KV("arr[str]", "abc")}, {}, UsageError, "isn't a list"),
    ("array of other", [], {"k": KV("arr[i32]", ["a"])}, {}, UsageError, "i32"),
    ("empty list", [], {"k": []}, {}, UsageError, "element type"),
    ("mixed list", [], {"k": [1, "a"]}, {}, UsageError, "no single GGUF type"),
    ("list of both extremes", [], {"k": [-1, 1 << 63]}, {}, UsageError, "no single GGUF type"),
    ("2^64", [], {"k": 1 << 64}, {}, UsageError, "64 bits"),
    ("None", [], {"k": None}, {}, UsageError, "NoneType"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "pairs", "more", "error", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused(slots: Any, pairs: Any, more: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        gguf.layout(slots, pairs, **more)


INFERRED = [
    (True, "bool"), (0, "u32"), ((1 << 32) - 1, "u32"), (1 << 32, "i64"), (-1, "i32"), (-(1 << 31) - 1, "i64"),
    ((1 << 64) - 1, "u64"), (0.5, "f32"), ("", "str"), ([1, 2], "arr[i32]"), ([1, 1 << 31], "arr[u32]"),
    ([-1, 1 << 31], "arr[i64]"), ([1 << 63], "arr[u64]"), ([1, 0.5], "arr[f32]"), (["a"], "arr[str]"),
    ([True], "arr[bool]"), (b"\1", "arr[u8]"), ([[1], [2]], "arr[arr[i32]]"), ([["a"], [1]], "arr[arr]"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), INFERRED, ids=lambda x: str(x)[:20])
def test_types_of_plain_values(value: Any, kind: str) -> None:
    assert gguf.infer(value) == KV(kind, value)
    read = gguf.parse(BytesSource(render(gguf.layout([], {"k": value})))).metadata
    assert plain(read["k"]) == (list(value) if isinstance(value, bytes) else value)


def test_arrays_of_different_arrays() -> None:
    mixed = KV("arr[arr]", [KV("arr[u8]", [1]), KV("arr[str]", ["a"]), [1, 2]])
    first = render(gguf.layout([], {"k": mixed}))
    index = gguf.parse(BytesSource(first))
    assert [a.type for a in index.metadata["k"]] == ["u8", "str", "i32"]
    assert render(gguf.layout([], index.metadata)) == first


def test_bytes_that_mean_nothing_survive() -> None:
    """Odd bools and NaN payloads of arrays are copied, not decoded."""
    raw = b"\0\1\2\xff"
    source = BytesSource(raw)
    flags = gguf.LazyArray("bool", 4, source, 0, 4)
    nan = gguf.LazyArray("f32", 1, BytesSource(b"\1\0\xa0\x7f"), 0, 4)
    out = render(gguf.layout([], {"a": KV("arr[bool]", flags), "b": KV("arr[f32]", nan)}))
    assert raw in out
    assert b"\1\0\xa0\x7f" in out


def test_header_size_tells_whether_an_edit_fits_in_place() -> None:
    before = gguf.header_size(tensors(), metadata())
    keys = metadata()
    keys["general.name"] = KV("str", "tiny!")
    assert gguf.header_size(tensors(), keys) == len(gguf.header_bytes(tensors(), keys))
    assert (gguf.header_size(tensors(), keys) == before) == (before % 32 == 0 and len(_unpadded(keys)) <= before)
    keys["general.name"] = KV("str", "tiny" * 99)
    assert gguf.header_size(tensors(), keys) > before


def _unpadded(keys: dict[str, KV]) -> bytes:
    return gguf.layout(tensors(), keys).pieces[0][1]


def test_the_layout_is_the_formats() -> None:
    """Checked by hand, byte for byte."""
    data = render(gguf.layout([("t", Spec((2, 1), F32))], {"k": KV("u8", 7)}), lambda name, n: b"\xaa" * n)
    out = io.BytesIO()
    out.write(b"GGUF" + struct.pack("<IQQ", 3, 1, 1))
    out.write(struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 7))
    out.write(struct.pack("<Q", 1) + b"t" + struct.pack("<IQQIQ", 2, 1, 2, 0, 0))
    out.write(bytes(-out.tell() % 32) + b"\xaa" * 8 + bytes(24))
    assert data == out.getvalue()


def test_the_tiny_model_is_free_of_findings() -> None:
    assert gguf.check(gguf.parse(BytesSource(model())), deep=True) == ()
