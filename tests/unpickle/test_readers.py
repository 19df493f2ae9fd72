"""Tensors wherever pickles hold them: arrays of NumPy, tensors pickled without torch.save, TorchScript, the tar of
torch 0.1, negated and conjugated views, types that torch only stores. What comes out is what torch or NumPy give."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers.regions import check_regions
from tests.reports.makers import torch_saved

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_BLOB
from weighbridge.containers.base import Index
from weighbridge.containers.torch import bare_pickle as pickles
from weighbridge.containers.torch import tar as torch_tar
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.source import BytesSource
from weighbridge.unpickle.libraries import numpy as numpy_calls

torch = pytest.importorskip("torch")

PROTOCOLS = range(6)


def values(path: Path) -> dict[str, Any]:
    with wb.open(path) as model:
        return {name: np.array(model[name].numpy()) for name in model.source.index.by_name}


def same(path: Path, expected: dict[str, Any]) -> None:
    got = values(path)
    assert list(got) == list(expected)
    for name, want in expected.items():
        want = np.asarray(want)
        assert (got[name].shape, got[name].dtype) == (want.shape, want.dtype.newbyteorder("="))
        np.testing.assert_array_equal(got[name], want)


def dumped(tmp_path: Path, value: Any, protocol: int = 4) -> Path:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def rules(index: Index) -> list[str]:
    return [f.rule for f in index.findings]


# ---- NumPy ----------------------------------------------------------------------------------------------------

CODES = ("?", "i1", "<i2", ">i2", "<i4", "<i8", ">i8", "u1", "<u2", ">u4", "<u8", "<f2", ">f2", "<f4", ">f4", "<f8",
         "<c8", ">c8", "<c16")  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("code", CODES)
def test_arrays(tmp_path: Path, code: str, protocol: int) -> None:
    base = np.random.default_rng(7).integers(0, 2, (3, 4, 5)) if code == "?" else np.arange(60).reshape(3, 4, 5)
    array = base.astype(code)
    arrays = {"whole": array, "fortran": np.asfortranarray(array), "cut": array[1:, ::2], "flat": array[0, 0],
              "none": array[:0], "scalar": array[0, 0, 1:2].reshape(())}  # fmt: skip
    same(dumped(tmp_path, arrays, protocol), arrays)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("code", ["<f4", ">f4"])
def test_long_arrays(tmp_path: Path, code: str, protocol: int) -> None:
    """Those that stay in the file, as bytes or as text; half of them above 127."""
    array = np.random.default_rng(7).standard_normal((PICKLE_BLOB // 64, 40)).astype(code)
    path = dumped(tmp_path, {"a": array, "t": array.T, "again": array}, protocol)
    same(path, {"a": array, "t": array.T, "again": array})
    index = pickles.parse(BytesSource(path.read_bytes(), "x.pkl"))
    assert index["a"].offset == index["again"].offset
    if protocol in (3, 4, 5) and code == "<f4":
        assert {e.file for e in index} == {0}  # in place


def test_numbers_of_numpy_are_plain(tmp_path: Path) -> None:
    numbers = {"f": np.float64(1.5), "h": np.float16(0.5), "i": np.int64(-3), "b": np.bool_(True), "u": np.uint8(9)}
    for protocol in PROTOCOLS:
        with wb.open(dumped(tmp_path, numbers, protocol)) as model:
            assert dict(model.metadata) == {"f": 1.5, "h": 0.5, "i": -3, "b": True, "u": 9}
            assert model.source.index.findings == ()


def test_arrays_of_objects_are_their_objects(tmp_path: Path) -> None:
    inner = np.arange(3.0)
    array = np.empty(2, object)
    array[:] = [inner, "text"]
    path = dumped(tmp_path, {"o": array})
    same(path, {"o.0": inner})
    with wb.open(path) as model:
        assert model.metadata["o.1"] == "text"


@pytest.mark.parametrize("what", ["U3", "M8[s]", [("a", "f4")], "V3"], ids=str)
def test_arrays_of_other_types_are_left_out(tmp_path: Path, what: Any) -> None:
    path = dumped(tmp_path, {"bad": np.zeros(2, what), "good": np.ones(2)})
    same(path, {"good": np.ones(2)})
    with wb.open(path) as model:
        (finding,) = model.source.index.findings
    assert (finding.rule, finding.tensor) == ("pickle.left-out", "bad")


def test_arrays_in_checkpoints_and_random_states(tmp_path: Path) -> None:
    path = tmp_path / "rng.pth"
    torch.save(
        {"numpy": np.random.RandomState(3).get_state(), "torch": torch.get_rng_state(), "lr": np.float32(0.5)}, path
    )
    state = np.random.RandomState(3).get_state()
    same(path, {"numpy.1": state[1], "torch": torch.get_rng_state()})  # type: ignore[index]
    with wb.open(path) as model:
        assert (model.metadata["numpy.0"], model.metadata["lr"]) == ("MT19937", 0.5)
        assert model.source.index.findings == ()


STATE = pickle.dumps(np.arange(3, dtype="<f4"), 4)
BROKEN_ARRAYS = {
    "short data": (b"C\x0c", b"C\x0b", b"\x00\x00\x00@", b"\x00\x00@"),
    "no class of an array": (b"\x07ndarray", b"\x07nothing"),
    "type": (b"\x02f4", b"\x02q9"),
    "order": (b"\x01<", b"\x01!"),
    "shape of text": (b"K\x03\x85", b"N\x85"),
    "shape true": (b"K\x03\x85", b"\x88\x85"),
    "shape negative": (b"K\x03\x85", b"J\xff\xff\xff\xff\x85"),
    "shape long": (b"K\x03\x85", b"K\x04\x85"),
    "not a type": (b"\x05dtype", b"\x05dtypo"),
}


@pytest.mark.parametrize("change", BROKEN_ARRAYS.values(), ids=BROKEN_ARRAYS)
def test_broken_arrays_are_left_out(change: tuple[bytes, ...]) -> None:
    data = STATE[:2] + STATE[11:]  # without the frame, whose length changes
    for old, new in zip(change[::2], change[1::2], strict=True):
        assert old in data
        data = data.replace(old, new)
    index = pickles.parse(BytesSource(data))
    assert (len(index), "pickle.left-out" in rules(index)) == (0, True)


# ---- pickled without torch.save -------------------------------------------------------------------------------

BASE = torch.arange(60.0).reshape(3, 4, 5)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("scale", [1, 400], ids=["short", "long"])
def test_tensors_pickled_whole(tmp_path: Path, protocol: int, scale: int) -> None:
    base = BASE.repeat(1, 1, scale).contiguous()
    tensors = {"a": base, "t": base.mT, "h": base.half(), "p": torch.nn.Parameter(base[0].clone()), "tied": base}
    path = dumped(tmp_path, OrderedDict(tensors), protocol)
    same(path, {name: t.detach() for name, t in tensors.items()})


def test_what_is_embedded_must_be_a_storage() -> None:
    head = b"\x80\x04ctorch._utils\n_rebuild_tensor_v2\n(ctorch.storage\n_load_from_bytes\n"
    tail = b"\x85RK\0))\x89NtR."
    old = {"_use_new_zipfile_serialization": False}
    good = torch_saved(BASE.untyped_storage(), **old)
    assert len(pickles.parse(BytesSource(head + _binary(good) + tail))) == 1
    for data in (b"", b"junk", pickle.dumps([1]), torch_saved(BASE), torch_saved({"a": BASE}, **old), good[:-1]):
        index = pickles.parse(BytesSource(head + _binary(data) + tail))
        assert (len(index), "pickle.left-out" in rules(index)) == (0, True)


def test_one_embedded_storage_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a pickle names it."""
    from weighbridge.unpickle.libraries import torch_legacy as legacy

    count = 0
    read = legacy.read

    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return read(*args)

    monkeypatch.setattr(legacy, "read", counted)
    data = torch_saved(BASE.untyped_storage(), _use_new_zipfile_serialization=False)
    call = b"ctorch.storage\n_load_from_bytes\nq\0" + _binary(data) + b"\x85q\1R"
    index = pickles.parse(BytesSource(b"\x80\x04](" + call + b"h\0h\1R" * 1000 + b"e."))
    assert (count, len(index)) == (1, 1001)


def test_several_pickles_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(b"".join(pickle.dumps({"w": np.full(2, i)}) for i in range(3)))
    same(path, {"w": np.full(2, 0), "1.w": np.full(2, 1), "2.w": np.full(2, 2)})
    with pytest.raises(FormatError):
        pickles.parse(BytesSource(path.read_bytes() + b"\xff"))
    with pytest.raises(UnsupportedError, match="pickles"):
        pickles.parse(BytesSource(b"N." * 2000))


def _binary(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


# ---- TorchScript ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("frozen", [False, True])
def test_programs_give_their_tensors(tmp_path: Path, frozen: bool) -> None:
    from tests.unpickle._scripted import Scripted

    module = Scripted().eval()
    script = torch.jit.script(module)
    script = torch.jit.freeze(script) if frozen else script
    path = tmp_path / "x.pt"
    torch.jit.save(script, str(path))
    got = values(path)
    wanted = {name: t.numpy() for name, t in module.state_dict().items()}
    if frozen:  # names are gone: parameters are constants
        assert sorted(v.tolist() for v in got.values() if v.ndim == 2) == [wanted["linear.weight"].tolist()]
        assert all(name.startswith("constants.") for name in got)
    else:
        assert {name: v.tolist() for name, v in got.items()} == {name: v.tolist() for name, v in wanted.items()}
    with wb.open(path) as model:
        assert "pickle.program" in rules(model.source.index)
        assert not {"pickle.unknown-call"} & set(rules(model.source.index))
    check_regions(torch_zip.regions(BytesSource(path.read_bytes())), path.stat().st_size)


# ---- torch 0.1 ------------------------------------------------------------------------------------------------


class _Key:
    """Pickled as a persistent id."""

    def __init__(self, key: Any) -> None:
        self.key = key


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.key if isinstance(value, _Key) else None


def tarred(**change: bytes) -> bytes:
    """A checkpoint as torch 0.1 wrote it: two storages, a view of the first, three tensors."""

    def row(*values: Any) -> bytes:
        out = io.BytesIO()
        pickle.Pickler(out, 2).dump(values if len(values) > 1 else values[0])
        return out.getvalue()

    floats, longs = np.arange(12, dtype="<f4"), np.arange(4, dtype="<i8")
    storages = row(2)
    for key, kind, data in ((101, torch.FloatStorage, floats), (102, torch.LongStorage, longs)):
        storages += row(key, "cpu", kind) + struct.pack("<q", data.size) + data.tobytes()
    storages += change.get("views", row([(103, 101, 4, 6)]))
    tensors = row(3)
    for key, storage, shape, strides, offset in (
        (1, 101, (3, 4), (4, 1), 0),
        (2, 102, (2,), (2,), 1),
        (3, 103, (2, 3), (1, 2), 0),
    ):
        tensors += row(key, storage, torch.FloatTensor) + struct.pack("<ii", len(shape), 0)
        tensors += struct.pack(f"<{2 * len(shape) + 1}q", *shape, *strides, offset)
    out = io.BytesIO()
    _Pickler(out, 2).dump({"a": _Key(1), "nested": [_Key(2), _Key(3)], "epoch": 7, "tie": _Key(1)})
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        parts = {
            "sys_info": row({"little_endian": True}),
            "pickle": out.getvalue(),
            "tensors": tensors,
            "storages": storages,
        }
        for name, member in (parts | {k: v for k, v in change.items() if k != "views"}).items():
            info = tarfile.TarInfo(name)
            info.size = len(member)
            tar.addfile(info, io.BytesIO(member))
    return archive.getvalue()


def test_tars_of_torch_0_1(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tarred())
    theirs = torch.load(path, weights_only=False, encoding="latin1")  # ours: no harm
    same(path, {"a": theirs["a"], "nested.0": theirs["nested"][0], "nested.1": theirs["nested"][1], "tie": theirs["a"]})
    assert theirs["nested"][1].tolist() == [[4, 6, 8], [5, 7, 9]]
    with wb.open(path) as model:
        assert (model.metadata["epoch"], model.source.index.findings) == (7, ())
    check_regions(torch_tar.regions(BytesSource(tarred())), len(tarred()))


def _one(rank: int, *numbers: int) -> bytes:
    """A member `tensors` of one."""
    head = pickle.dumps(1, 2) + pickle.dumps((1, 101, 0), 2) + struct.pack("<ii", rank, 0)
    return head + struct.pack(f"<{len(numbers)}q", *numbers)


TARS = {
    "cut": lambda: tarred()[:1500],
    "views outside": lambda: tarred(views=pickle.dumps([(103, 101, 8, 6)], 2)),
    "views of nothing": lambda: tarred(views=pickle.dumps([(103, 999, 0, 1)], 2)),
    "no storages": lambda: tarred(storages=b""),
    "count": lambda: tarred(tensors=pickle.dumps(1 << 40, 2)),
    "many dimensions": lambda: tarred(tensors=_one(65)),
    "negative": lambda: tarred(tensors=_one(1, 2, -1, 3)),
    "past the end": lambda: tarred(tensors=_one(1, 13, 1, 0)),
    "checksum": lambda: tarred().replace(b"sys_info", b"sys_inf0", 1),
}  # fmt: skip


@pytest.mark.parametrize("make", TARS.values(), ids=TARS)
def test_broken_tars_are_refused(make: Any) -> None:
    data = make()
    with pytest.raises(FormatError):
        torch_tar.parse(BytesSource(data))
    check_regions(torch_tar.regions(BytesSource(data)), len(data))


def test_what_a_tar_would_call_is_told() -> None:
    evil = b"cos\nsystem\n(U\2lstR."
    index = torch_tar.parse(BytesSource(tarred(pickle=evil)))
    assert rules(index) == ["pickle.unknown-call", "pickle.left-out"] or rules(index) == ["pickle.unknown-call"]
    with pytest.raises(FormatError):
        torch_tar.parse(BytesSource(tarred(tensors=evil)))


# ---- views whose bytes are not their values -------------------------------------------------------------------

COMPLEX = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
FLAGGED = {
    "conj": COMPLEX.conj(),
    "conj, cut": COMPLEX.conj()[1:, ::2],
    "conj, turned": COMPLEX.conj().T,
    "neg": COMPLEX.conj().imag,
    "both": torch._neg_view(COMPLEX.conj()),
    "neg of half": torch._neg_view(torch.randn(5).half()),
    "neg of bfloat16": torch._neg_view(torch.randn(5).bfloat16()),
    "neg of double": torch._neg_view(torch.randn(5).double()),
    "double": torch.complex(torch.randn(3).double(), torch.randn(3).double()).conj(),
}


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", FLAGGED)
def test_negated_and_conjugated_views(tmp_path: Path, name: str, new: bool) -> None:
    tensor = FLAGGED[name]
    assert tensor.is_conj() or tensor.is_neg()
    plain = COMPLEX if tensor.is_complex() else BASE  # of the same storage, mostly
    path = tmp_path / "x.pt"
    path.write_bytes(torch_saved({"x": tensor, "plain": plain}, _use_new_zipfile_serialization=new))
    theirs = torch.load(path, weights_only=True)["x"].resolve_conj().resolve_neg()
    with wb.open(path) as model:
        assert torch.equal(model["x"].torch(), theirs)
        assert torch.equal(model["plain"].torch(), plain)


def test_a_big_endian_archive_with_arrays_and_views(tmp_path: Path) -> None:
    """The data members are big-endian; arrays in the pickle say themselves how they lie."""
    data = torch_saved({"x": COMPLEX.conj(), "n": np.arange(4.0), "b": np.arange(4, dtype=">i2")})
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            raw = old.read(name)
            raw = b"big" if name.endswith("byteorder") else raw
            raw = np.frombuffer(raw, "<f4").astype(">f4").tobytes() if "/data/" in name else raw
            new.writestr(name, raw)
    path = tmp_path / "x.pt"
    path.write_bytes(out.getvalue())
    same(path, {"x": COMPLEX.conj().resolve_conj(), "n": np.arange(4.0), "b": np.arange(4, dtype=">i2")})


@pytest.mark.parametrize("flag", [b"X\3\0\0\0neg", b"X\4\0\0\0conj", b"X\4\0\0\0what"])
def test_flags_that_a_type_cannot_have(flag: bytes) -> None:
    data = torch_saved({"x": torch.arange(4)})
    old, new = b")Rq\x0btq\x0cRq\rs.", b")Rq\x0b}" + flag + b"\x88stRs."
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, archive.read(name).replace(old, new))
    index = torch_zip.parse(BytesSource(out.getvalue()))
    assert (len(index), rules(index)) == (0, ["pickle.left-out"])


# ---- types that torch stores and hardly computes with ---------------------------------------------------------

STORED = {
    "bits8": (torch.uint8, 1), "bits1x8": (torch.uint8, 1), "bits2x4": (torch.uint8, 1), "bits4x2": (torch.uint8, 1),
    "bits16": (torch.uint16, 1), "complex32": (torch.float16, 2), "uint16": (torch.uint16, 1),
    "uint32": (torch.uint32, 1), "uint64": (torch.uint64, 1),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", STORED)
def test_stored_types(tmp_path: Path, name: str) -> None:
    kind, parts = STORED[name]
    plain = torch.arange(12 * parts, dtype=torch.int32).to(kind).reshape(3, 4 * parts)
    tensor = plain.view(getattr(torch, name))
    path = tmp_path / "x.pt"
    torch.save({"x": tensor, "t": tensor.T}, path)
    wanted = plain.reshape(3, 4, 2) if parts == 2 else plain
    with wb.open(path) as model:
        assert torch.equal(model["x"].torch(), wanted)
        assert torch.equal(model["t"].torch(), wanted.transpose(0, 1))
        assert model.source.index.findings == ()


def test_a_save_without_data_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with torch.serialization.skip_data():
        torch.save({"a": BASE}, path)
    assert "pickle.no-data" in rules(torch_zip.parse(BytesSource(path.read_bytes())))
    torch.save({"a": torch.zeros(9)}, path)  # zeros that are meant
    assert rules(torch_zip.parse(BytesSource(path.read_bytes()))) == []
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.zeros(9)}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert rules(torch_zip.parse(BytesSource(path.read_bytes()))) == []


def test_the_names_of_numpy_are_exact() -> None:
    assert {name.partition(".")[0] for name, _ in numpy_calls.NAMES} == {"numpy"}
