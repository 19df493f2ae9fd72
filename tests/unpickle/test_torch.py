"""Checkpoints that torch writes, read without torch: every type, layout and save option gives what
`torch.load(weights_only=True)` gives. Hostile ones run nothing, say what was left out, and still give their tensors."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.containers.regions import check_regions

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.cli.main import main
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.torch import entries as torch_entries
from weighbridge.containers.torch import legacy as torch_legacy
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.source import BytesSource

torch = pytest.importorskip("torch")
safe_load = pytest.importorskip("safetensors.torch").load_file
pytestmark = pytest.mark.oracle

TYPES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"),
    *("complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "float8_e8m0fnu"),
)
NEW = pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])


def of(name: str, *shape: int) -> Any:
    """A tensor of random bytes that are valid values of its type."""
    dtype = getattr(torch, name)
    raw = torch.randint(0, 2 if name == "bool" else 120, (*shape, dtype.itemsize), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def saved(value: Any, new: bool = True, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=new, **options)
    return out.getvalue()


def opened(tmp_path: Path, data: bytes) -> wb.api.Model:
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    return wb.open(path, all_parts=True)


def raw(tensor: Any) -> bytes:
    """A tensor's bytes in C order."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).tolist())


def same(model: wb.api.Model, expected: dict[str, Any]) -> None:
    assert set(model) == set(expected)
    for name, tensor in expected.items():
        got = model[name]
        assert (got.shape, got.raw()) == (tuple(tensor.shape), raw(tensor)), name
        assert raw(got.torch()) == raw(tensor), name
    for entry in model.source.index:
        model.source.index.files[entry.file].check(entry.offset, entry.nbytes)


@NEW
@pytest.mark.parametrize("name", TYPES)
def test_every_type(tmp_path: Path, name: str, new: bool) -> None:
    torch.manual_seed(1)
    base = of(name, 4, 6)
    value = {"w": base, "t": base.t(), "s": of(name), "part": base[1:3, 1:4], "e": of(name, 0, 3)}
    data = saved(value, new)
    model = opened(tmp_path, data)
    # torch can't read the newer types back from its own older files.
    same(model, torch.load(io.BytesIO(data), weights_only=True) if new or name in TYPES[:12] else value)
    assert model["w"].dtype == model["t"].dtype
    assert model.source.index.findings == ()


BASE = torch.arange(60.0).reshape(3, 4, 5)
VIEWS: dict[str, Any] = {
    "whole": BASE,
    "slice": BASE[1:],
    "columns": BASE[..., 2],
    "steps": BASE[::2, 1::2, ::3],
    "permuted": BASE.permute(2, 0, 1),
    "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 7),
    "expanded scalar": torch.tensor(3.0).expand(2, 3),
    "window": BASE.reshape(-1).unfold(0, 4, 1),
    "ones": BASE[:1, :, 2:3],
    "last": BASE[2, 3, 4],
    "none of a part": BASE[3:, 1:],
    "channels last": torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
}


@NEW
@pytest.mark.parametrize("view", VIEWS)
def test_every_view(tmp_path: Path, view: str, new: bool) -> None:
    data = saved({"v": VIEWS[view], "base": BASE}, new)
    same(opened(tmp_path, data), torch.load(io.BytesIO(data), weights_only=True))


@NEW
def test_ties_are_two_names_of_one_storage(tmp_path: Path, new: bool) -> None:
    model = opened(tmp_path, saved({"a": BASE, "b": BASE, "c": BASE[1:]}, new))
    a, b, c = model.source.index
    assert (a.offset, a.nbytes) == (b.offset, b.nbytes)
    assert c.offset == a.offset + 80


NESTED = {
    "model": OrderedDict(w=BASE, b=torch.nn.Parameter(BASE[0])),
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": BASE * 2}},
                  "param_groups": [{"lr": 0.5, "betas": (0.9, 0.99), "params": [0, 1], "fused": None}]},
    "list": [BASE[1], (BASE[2],)],
    "epoch": 3, "name": "run", "best": 1.5, "done": True, "bytes": b"\xff", "size": torch.Size([1, 2]),
    "device": torch.device("cuda:1"), "dtype": torch.bfloat16, "none": None, "set": {1},
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"new": False}, {"pickle_protocol": 4}, {"pickle_protocol": 5}], ids=str)
def test_nested_checkpoints(tmp_path: Path, options: dict[str, Any]) -> None:
    model = opened(tmp_path, saved(NESTED, **options))
    same(model, {
        "model.w": BASE, "model.b": BASE[0], "optimizer.state.0.step": torch.tensor(3.0),
        "optimizer.state.0.exp_avg": BASE * 2, "list.0": BASE[1], "list.1.0": BASE[2],
    })  # fmt: skip
    assert dict(model.metadata) == {
        "optimizer.param_groups.0.lr": 0.5, "optimizer.param_groups.0.betas": [0.9, 0.99],
        "optimizer.param_groups.0.params": [0, 1], "epoch": 3, "name": "run", "best": 1.5, "done": True,
        "size": [1, 2], "device": "cuda:1", "dtype": "torch.bfloat16", "set": [1],
    }  # fmt: skip
    assert model.source.index.findings == ()


@NEW
def test_a_module_saved_whole_has_the_names_of_its_state(tmp_path: Path, new: bool) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.BatchNorm1d(4)))
    model = opened(tmp_path, saved(net, new))
    same(model, dict(net.state_dict()))
    classes = {f.message.split()[0] for f in model.source.index.findings if f.rule == "pickle.unknown-class"}
    assert "torch.nn.modules.linear.Linear" in classes


@NEW
def test_one_tensor_alone_and_none(tmp_path: Path, new: bool) -> None:
    same(opened(tmp_path, saved(BASE, new)), {"tensor": BASE})
    assert len(opened(tmp_path, saved({"a": 1}, new))) == 0


def test_names_that_meet_are_both_kept(tmp_path: Path) -> None:
    model = opened(tmp_path, saved({"a.b": BASE, "a": {"b": BASE[0]}, 1: BASE[1], "1": BASE[2]}))
    same(model, {"a.b": BASE, "a.b#2": BASE[0], "1": BASE[1], "1#2": BASE[2]})
    assert [f.rule for f in model.source.index.findings] == ["pickle.name-twice"] * 2


def test_subclasses_and_attributes(tmp_path: Path) -> None:
    marked = torch.nn.Parameter(BASE.clone())
    marked.note = "x"
    same(opened(tmp_path, saved({"p": marked})), {"p": BASE})


@NEW
@pytest.mark.filterwarnings("ignore:torch.quantize_per|Sparse CSR|TypedStorage")
def test_quantized_and_sparse_tensors_are_their_parts(tmp_path: Path, new: bool) -> None:
    one = torch.quantize_per_tensor(BASE[0], 0.5, 3, torch.qint8)
    scales, zeros = torch.tensor([0.5, 0.25], dtype=torch.float64), torch.tensor([1, 2])
    many = torch.quantize_per_channel(BASE[0, :2], scales, zeros, 0, torch.quint8)
    sparse = (BASE[0] * (BASE[0] > 10)).to_sparse()
    model = opened(tmp_path, saved({"one": one, "many": many, "sparse": sparse, "csr": BASE[0].to_sparse_csr()}, new))
    same(model, {
        "one.int_repr": one.int_repr(), "many.int_repr": many.int_repr(), "many.scales": scales,
        "many.zero_points": zeros, "sparse.indices": sparse.indices(), "sparse.values": sparse.values(),
        "csr.compressed": BASE[0].to_sparse_csr().crow_indices(), "csr.plain": BASE[0].to_sparse_csr().col_indices(),
        "csr.values": BASE[0].to_sparse_csr().values(),
    })  # fmt: skip
    assert (model.metadata["one.scale"], model.metadata["one.zero_point"]) == (0.5, 3)
    assert model.metadata["sparse.size"] == [4, 5]


def test_what_cannot_be_had_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    model = opened(tmp_path, saved({"bad": torch.ones(2, device="meta"), "good": BASE}))
    same(model, {"good": BASE})
    (finding,) = [f for f in model.source.index.findings if f.rule == "pickle.left-out"]
    assert finding.tensor == "bad"


# ---- expanded views -------------------------------------------------------------------------------------------


def capped(model: wb.api.Model) -> list[str | None]:
    return [f.tensor for f in model.source.index.findings if f.rule == "pickle.expanded"]


@NEW
def test_what_would_become_far_larger_is_left_out_unless_asked_for(tmp_path: Path, new: bool) -> None:
    tera = torch.tensor(3, dtype=torch.uint8).expand(1 << 20, 1 << 20)
    data = saved({"tera": tera, "good": BASE}, new)
    model = opened(tmp_path, data)
    same(model, {"good": BASE})
    assert capped(model) == ["tera"]
    assert "1 bytes are expanded to 1099511627776" in model.source.index.findings[0].message
    with wb.open(tmp_path / "x.pt", allow_expand=True) as whole:
        assert (set(whole), capped(whole)) == ({"tera", "good"}, [])
        assert whole["tera"].shape == (1 << 20, 1 << 20)
        assert whole["tera"][7, 5:9].tolist() == [3] * 4  # one row of a terabyte


def test_many_expanded_views_are_capped_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would be small enough."""
    monkeypatch.setattr(torch_entries, "EXPANDED", 3 * 4 * 99)
    views = {f"v{i}": torch.tensor([float(i)]).expand(100) for i in range(5)}
    model = opened(tmp_path, saved({**views, "good": BASE, "turned": BASE.transpose(0, 2)}))
    assert set(model) == {"v0", "v1", "v2", "good", "turned"}
    assert capped(model) == ["v3", "v4"]


ASKED: dict[str, Callable[[Path, Path], Any]] = {
    "convert": lambda src, dst: wb.convert(src, dst, allow_expand=True),
    "strip": lambda src, dst: wb.strip(src, dst, allow_expand=True),
    "wb convert": lambda src, dst: main(["convert", str(src), str(dst), "--allow-expand"]),
    "wb strip": lambda src, dst: main(["strip", str(src), str(dst), "--allow-expand"]),
}


@pytest.mark.parametrize("way", ASKED)
def test_expansion_is_asked_for(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_entries, "EXPANDED", 100)
    wide = torch.tensor([[1.5], [2.5]]).expand(2, 50)
    source, target = tmp_path / "x.pt", tmp_path / "x.safetensors"
    source.write_bytes(saved({"wide": wide, "good": BASE}))
    plan = wb.plan_convert(source, target)
    assert any("--allow-expand" in loss.message for loss in plan.losses)
    assert not wb.plan_convert(source, target, allow_expand=True).losses
    wb.convert(source, tmp_path / "less.safetensors")
    assert set(safe_load(tmp_path / "less.safetensors")) == {"good"}
    ASKED[way](source, target)
    got = safe_load(target)
    assert got.keys() == {"wide", "good"}
    assert torch.equal(got["wide"], wide)
    assert torch.equal(got["good"], BASE)


# ---- archives -------------------------------------------------------------------------------------------------


def rezipped(
    data: bytes, change: Callable[[str, bytes], tuple[str, bytes] | None], method: int = zipfile.ZIP_STORED
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", method) as new:
        for name in old.namelist():
            changed = change(name, old.read(name))
            if changed:
                new.writestr(*changed)
    return out.getvalue()


def keep(name: str, data: bytes) -> tuple[str, bytes]:
    return name, data


def test_deflated_members(tmp_path: Path) -> None:
    data = rezipped(saved({"a": BASE, "t": BASE[0].t()}), keep, zipfile.ZIP_DEFLATED)
    same(opened(tmp_path, data), {"a": BASE, "t": BASE[0].t()})


def test_big_endian(tmp_path: Path) -> None:
    def big(name: str, data: bytes) -> tuple[str, bytes]:
        if name.endswith("byteorder"):
            return name, b"big"
        return name, struct.pack(">60f", *struct.unpack("<60f", data)) if "/data/" in name else data

    data = rezipped(saved({"a": BASE, "t": BASE[0].t()}), big)
    assert torch.equal(torch.load(io.BytesIO(data), weights_only=True)["a"], BASE)
    same(opened(tmp_path, data), {"a": BASE, "t": BASE[0].t()})


def test_old_zips_without_byteorder(tmp_path: Path) -> None:
    data = rezipped(saved({"a": BASE}), lambda n, d: None if "/." in n or "byteorder" in n else (n, d))
    same(opened(tmp_path, data), {"a": BASE})


def without(part: str) -> Callable[[str, bytes], tuple[str, bytes] | None]:
    return lambda name, data: None if part in name else (name, data)


def cased(data: bytes) -> bytes:
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("archive/DATA.PKL", b"N.")
    return out.getvalue()


def second_root(data: bytes) -> bytes:
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("other/data.pkl", b"N.")
    return out.getvalue()


GOOD = saved({"a": BASE})
REFUSED: dict[str, tuple[bytes, str]] = {
    "names that differ in case": (cased(GOOD), "only in case"),
    "two folders": (second_root(GOOD), "one folder"),
    "byte order": (rezipped(GOOD, lambda n, d: (n, b"middle" if "byteorder" in n else d)), "byte order"),
    "no pickle": (rezipped(GOOD, without("data.pkl")), "without data.pkl"),
    "cut pickle": (rezipped(GOOD, lambda n, d: (n, d[:-9] if "pkl" in n else d)), "too early"),
    "cut file": (GOOD[:-30], "end of a zip"),
}


@pytest.mark.parametrize(("data", "why"), REFUSED.values(), ids=REFUSED)
def test_ambiguous_archives_are_refused(data: bytes, why: str) -> None:
    with pytest.raises((FormatError, UnsupportedError), match=why):
        torch_zip.parse(BytesSource(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [(rezipped(GOOD, without("data/0")), "no storage"),
     (rezipped(GOOD, lambda n, d: (n, d[:-4] if "/data/" in n else d)), "another length")],
    ids=["missing", "short"],
)  # fmt: skip
def test_a_storage_that_is_not_as_told_leaves_its_tensors_out(data: bytes, why: str) -> None:
    index = torch_zip.parse(BytesSource(data))
    assert (len(index), [f.rule for f in index.findings]) == (0, ["pickle.left-out"])
    assert why in index.findings[0].message


LEGACY = saved({"a": BASE, "b": BASE[0].clone()}, False)


@pytest.mark.parametrize("size", range(0, len(LEGACY), 7))
def test_a_cut_legacy_file_is_a_format_error(size: int) -> None:
    with pytest.raises(FormatError):
        torch_legacy.parse(BytesSource(LEGACY[:size]))


@pytest.mark.parametrize("data", [GOOD, LEGACY, LEGACY + b"more", GOOD[:-9], LEGACY[:300], saved(NESTED), b""])
def test_every_byte_is_named(data: bytes) -> None:
    for module in (torch_zip, torch_legacy):
        check_regions(module.regions(BytesSource(data)), len(data))


# ---- hostile --------------------------------------------------------------------------------------------------


def pickled(tree: bytes) -> bytes:
    """A checkpoint whose pickle is `tree`."""
    return rezipped(GOOD, lambda n, d: (n, tree if n.endswith(".pkl") else d))


TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK<tQ"
    b"K\0(K\3K\4K\5t(K\x14K\5K\1t\x89ccollections\nOrderedDict\n)RtR"
)


def checkpoint(before: bytes, value: bytes = b"N") -> bytes:
    return pickled(b"\x80\x02" + before + b"}(X\1\0\0\0a" + TENSOR + b"X\1\0\0\0b" + value + b"u.")


SYSTEM = b"cos\nsystem\n(X\5\0\0\0touchtR"
HOSTILE: dict[str, tuple[bytes, str, str]] = {
    "a call as a value": (checkpoint(b"", SYSTEM), "unknown-call", "os.system('touch')"),
    "a call that is popped": (checkpoint(SYSTEM + b"0"), "unknown-call", "os.system"),
    "a name alone": (checkpoint(b"", b"cos\nsystem\n"), "unknown-name", "os.system"),
    "a dotted walk": (checkpoint(b"", b"ctorch\nserialization.os.system\n)R"), "unknown-call", "serialization.os"),
    "INST": (checkpoint(b"", b"(X\1\0\0\0xios\nsystem\n"), "unknown-call", "os.system"),
    "OBJ": (checkpoint(b"", b"(cos\nsystem\nX\1\0\0\0xo"), "unknown-call", "os.system"),
    "NEWOBJ": (checkpoint(b"", b"cevil\nThing\n)\x81"), "unknown-class", "evil.Thing"),
    "BUILD": (checkpoint(b"", b"cevil\nThing\n)\x81}b"), "unknown-class", "evil.Thing"),
    "a call of a call": (checkpoint(b"", b"cm\nf\n)R)R"), "unknown-call", "m.f"),
    "an extension": (checkpoint(b"", b"\x82\1"), "extension", "file doesn't contain"),
    "sys.modules": (checkpoint(b"ccollections\n_sys.modules\n0"), "unknown-name", "_sys.modules"),
    "an item of a tensor": (checkpoint(b"", TENSOR + b"K\1K\2s"), "left-out", "changed"),
    "a storage's class": (checkpoint(b"", b"(X\7\0\0\0storagecos\nFakeStorage\nX\1\0\0\x000X\3\0\0\0cpuK<tQ"),
                          "unknown-name", "os.FakeStorage"),
    "more pickles": (pickled(b"\x80\x02}X\1\0\0\0a" + TENSOR + b"s.cos\nsystem\n."), "trailing-bytes", "follow"),
    "leftover": (checkpoint(b"N"), "leftover", "unused value"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "rule", "words"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_checkpoints_are_disarmed(tmp_path: Path, data: bytes, rule: str, words: str) -> None:
    model = opened(tmp_path, data)
    assert model["a"].numpy().tolist() == BASE.tolist()
    found = [f for f in model.source.index.findings if f.rule == f"pickle.{rule}"]
    assert found
    assert any(words in f.message for f in found)
    model.close()
    target = tmp_path / "out.safetensors"
    plan = wb.plan_convert(tmp_path / "x.pt", target)
    assert any(words in loss.message for loss in plan.losses)
    wb.convert(tmp_path / "x.pt", target)
    with wb.open(target) as safe:
        assert safe["a"].numpy().tolist() == BASE.tolist()


def bad(**change: bytes) -> bytes:
    """The tensor with parts of its pickle replaced."""
    text = TENSOR
    for old, new in ((b"(K\3K\4K\5t", change.get("shape")), (b"(K\x14K\5K\1t", change.get("strides")),
                     (b"tQK\0", change.get("offset")), (b"K<tQ", change.get("numel")),
                     (b"X\1\0\0\x000", change.get("key")), (b"\x89c", change.get("grad"))):  # fmt: skip
        text = text.replace(old, new) if new is not None else text
    return text


WRONG = {
    "past the end": bad(shape=b"(K\4K\4K\5t"),
    "offset": bad(offset=b"tQK\1"),
    "negative offset": bad(offset=b"tQJ\xff\xff\xff\xff"),
    "negative stride": bad(strides=b"(J\xec\xff\xff\xffK\5K\1t"),
    "negative size": bad(shape=b"(J\xff\xff\xff\xffK\4K\5t"),
    "true size": bad(shape=b"(\x88K\4K\5t"),
    "text size": bad(shape=b"(X\1\0\0\x003K\4K\5t"),
    "ranks": bad(shape=b"(K\3K\4t"),
    "many dims": bad(shape=b"(" + b"K\1" * 65 + b"t", strides=b"(" + b"K\1" * 65 + b"t"),
    "overflow": bad(shape=b"(" + b"\x8a\x08" + b"\xff" * 7 + b"\x7f" + b"K\4K\5t"),
    "numel": bad(numel=b"K;tQ"),
    "longer numel": bad(numel=b"K=tQ"),
    "no such key": bad(key=b"X\1\0\0\x009"),
    "key elsewhere": bad(key=b"X\x0a\0\0\x00../version"),
    "key a number": bad(key=b"K\0"),
    "parameters of parameters": b"ctorch._utils\n_rebuild_parameter\nq\1" + b"h\1" * 2000 + b"N" + b"\x88N\x87R" * 2001,
    "too few arguments": b"ctorch._utils\n_rebuild_tensor_v2\n)R",
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_wrong_tensors_are_left_out(tmp_path: Path, value: bytes) -> None:
    model = opened(tmp_path, checkpoint(b"", value))
    same(model, {"a": BASE})
    assert "b" in {f.tensor for f in model.source.index.findings if f.rule == "pickle.left-out"}


def test_laughs_and_cycles_end() -> None:
    laughs = b"]q\0" + b"".join(b"(" + b"h\0" * 9 + b"lq\0" for _ in range(50))
    with pytest.raises(UnsupportedError, match="without end"):
        torch_zip.parse(BytesSource(pickled(b"\x80\x02" + laughs + b".")))
    cycle = torch_zip.parse(BytesSource(pickled(b"\x80\x02]q\0h\0a" + TENSOR + b"a.")))
    assert [e.name for e in cycle] == ["1"]
    deep = torch_zip.parse(BytesSource(pickled(b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".")))
    assert [f.rule for f in deep.findings] == ["pickle.too-deep"]


# ---- where they lie -------------------------------------------------------------------------------------------


def test_sets_and_folders(tmp_path: Path) -> None:
    torch.save({"a": BASE}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": BASE[0].t()}, tmp_path / "pytorch_model-00002-of-00002.bin")
    torch.save({"args": 1}, tmp_path / "training_args.bin")
    torch.save({"state": BASE}, tmp_path / "optimizer.pt")
    where = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    for path in (tmp_path, index):
        if path == index:
            index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
        with wb.open(path) as model:
            same(model, {"a": BASE, "b": BASE[0].t()})
    wb.convert(tmp_path, tmp_path / "out.safetensors")
    with wb.open(tmp_path / "out.safetensors") as model:
        same(model, {"a": BASE, "b": BASE[0].t()})


def test_they_are_known_by_their_bytes() -> None:
    assert [sniff(BytesSource(d)).readable for d in (GOOD, LEGACY, pickle.dumps([1]))] == [True] * 3
