"""PyTorch's zip as it is written here: the bytes of torch.save, taken by `torch.load(weights_only=True)`."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.makers import torch_saved

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME, TABLE, U8
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout
from weighbridge.containers.torch import write as torch_write
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.source import BytesSource, FileSource
from weighbridge.unpickle.libraries import torch_types
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.write import dumps

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle
HELD = [t for t in TABLE if t.torch]


def filled(layout: Layout, data: dict[str, bytes]) -> bytes:
    """The file of a layout, its checks included."""
    assert layout.fixups is not None
    out = bytearray(layout.size)
    pieces = [*layout.pieces, *((s.offset, data[s.name]) for s in layout.slots)]
    for at, piece in (*pieces, *layout.fixups({n: zlib.crc32(d) for n, d in data.items()})):
        out[at : at + len(piece)] = piece
    return bytes(out)


def of_torch(state: dict[str, Any]) -> bytes:
    """The same state dict, written here."""
    tensors, data = [], {}
    for name, tensor in state.items():
        dtype = next(t for t in HELD if t.torch == str(tensor.dtype).removeprefix("torch."))
        shape = tuple(tensor.shape)
        shape = (*shape[:-1], shape[-1] * dtype.block) if dtype.block > 1 else shape
        tensors.append((name, Spec(shape, dtype)))
        data[name] = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return filled(torch_write.layout(tensors), data)


def every_type() -> OrderedDict[str, Any]:
    torch.manual_seed(3)
    state = OrderedDict()
    for t in HELD:
        raw = torch.randint(0, 2 if t.name == "BOOL" else 256, (3, 5, t.size), dtype=torch.uint8)
        state[f"x.{t.name}"] = raw.view(getattr(torch, str(t.torch))).reshape(3, 5)
    return state


def masked(data: bytes) -> bytes:
    """Without the half of the serialization id that torch takes from a hash table's order, and the checksum of it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.getinfo("archive/.data/serialization_id")
        digits = archive.read(info)
    crc = info.CRC.to_bytes(4, "little")
    assert data.count(digits) == 1
    assert data.count(crc) == 2
    return data.replace(digits, b"-" * 20 + digits[20:]).replace(crc, b"----")


CASES = {
    "every type": every_type,
    "more names than a batch and a short slot hold": lambda: OrderedDict(
        (f"l.{i}", torch.ones(1)) for i in range(1001)
    ),
    "one": lambda: OrderedDict(w=torch.arange(6.0).reshape(2, 3)),
    "none": OrderedDict,
    "shapes": lambda: OrderedDict(
        s=torch.tensor(1.5), z=torch.zeros(0, 3), y=torch.zeros(3, 0, 2), h=torch.ones(300, 1)
    ),
    "names": lambda: OrderedDict({"": torch.ones(1), "ö/..\n": torch.ones(2), "archive": torch.ones(1)}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bytes_are_torchs(case: str) -> None:
    state = CASES[case]()
    assert masked(of_torch(state)) == masked(torch_saved(state))


def test_every_type_has_a_value_in_torch() -> None:
    state = every_type()
    loaded = torch.load(io.BytesIO(of_torch(state)), weights_only=True)
    assert list(loaded) == list(state)
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert torch.equal(loaded[name].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)), name


@pytest.mark.mutation
@pytest.mark.parametrize("name", [t.name for t in torch_types.CLASS_OF])
def test_a_wrong_storage_class_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {**torch_types.CLASS_OF, BY_NAME[name]: "FloatStorage" if name != "F32" else "LongStorage"}
    monkeypatch.setattr(torch_write, "CLASS_OF", others)
    state = every_type()
    assert masked(of_torch(state)) != masked(torch_saved(state))


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("ALIGN", 32),
        ("_BEFORE", ((".format_version", b"2"), *torch_write._BEFORE[1:])),
        ("_BEFORE", torch_write._BEFORE[:2]),
        ("_AFTER", (("version", b"2\n"),)),
        ("_MADE_BY", 0),
        ("HAS_DESCRIPTOR", 0),
        ("UTF8", 0),
    ],
)
def test_a_wrong_constant_is_seen(what: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_write, what, value)
    state = CASES["shapes"]()
    assert masked(of_torch(state)) != masked(torch_saved(state))


# ---- files beyond 4 GB ----------------------------------------------------------------------------------------


def test_beyond_4_gb_torch_and_zipfile_read_it(tmp_path: Path) -> None:
    """A hole of 4.3 GB and tensors behind it: sizes and places that need 64 bits."""
    big, small = Spec((4_300_000_000,), U8), Spec((3,), U8)
    layout = torch_write.layout([("big", big), ("small", small)])
    zeros = zlib.crc32(bytes(4_300_000))
    from weighbridge.containers.archive.zip_write import crc_joined

    crc = zeros
    for _ in range(999):
        crc = crc_joined(crc, zeros, 4_300_000)
    path = tmp_path / "big.pt"
    assert layout.fixups is not None
    with path.open("wb") as file:
        file.truncate(layout.size)
        for at, piece in (*layout.pieces, *layout.fixups({"big": crc, "small": zlib.crc32(b"abc")})):
            file.seek(at)
            file.write(piece)
        file.seek(layout.slots[1].offset)
        file.write(b"abc")
    with zipfile.ZipFile(path) as archive:
        sizes = {i.filename: (i.file_size, i.header_offset > 1 << 32) for i in archive.infolist()}
        assert sizes["archive/data/0"] == (4_300_000_000, False)
        assert sizes["archive/data/1"] == (3, True)
        assert archive.read("archive/data/1") == b"abc"
        assert archive.read("archive/version") == b"3\n"
        assert crc == archive.getinfo("archive/data/0").CRC
    loaded = torch.load(path, weights_only=True, mmap=True)
    assert loaded["big"].shape == (4_300_000_000,)
    assert loaded["small"].tolist() == [97, 98, 99]
    with FileSource(path) as source:
        entries = torch_zip.parse(source).by_name
        assert entries["big"].nbytes == 4_300_000_000
        assert source.read(entries["small"].offset, 3) == b"abc"
    assert all(s.offset % 64 == 0 for s in layout.slots)


# ---- conversions ----------------------------------------------------------------------------------------------

BASE = torch.arange(60.0).reshape(3, 4, 5)
STATE = {
    "a": BASE, "tied": BASE, "part": BASE[1:], "turned": BASE.permute(2, 0, 1), "steps": BASE[::2, 1::2],
    "alone": torch.randn(4, 3).t(), "wide": torch.tensor([[1.0], [2.0]]).expand(2, 7), "bits": BASE.view(torch.int32),
}  # fmt: skip


def test_what_is_stored_once_stays_so(tmp_path: Path) -> None:
    state = {k: v for k, v in STATE.items() if k != "bits"}  # torch.save refuses two types of one storage
    torch.save(state, tmp_path / "in.pt")
    wb.convert(tmp_path / "in.pt", tmp_path / "out.pth")
    loaded = torch.load(tmp_path / "out.pth", weights_only=True)
    assert list(loaded) == list(state)
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor), name
    for name in ("a", "tied", "part", "turned", "steps"):
        assert loaded[name].untyped_storage().data_ptr() == loaded["a"].untyped_storage().data_ptr(), name
        assert (loaded[name].stride(), loaded[name].storage_offset()) == (
            state[name].stride(), state[name].storage_offset()
        )  # fmt: skip
    for name in ("alone", "wide"):  # by itself a view becomes a tensor of its own
        assert loaded[name].is_contiguous()
    loaded["tied"][0, 0, 0] = 7
    assert loaded["a"][0, 0, 0] == 7


def test_again_gives_the_same_bytes(tmp_path: Path) -> None:
    state = {k: v for k, v in STATE.items() if k != "bits"}
    torch.save(state, tmp_path / "in.pt")
    wb.convert(tmp_path / "in.pt", tmp_path / "a.pt")
    for jobs, name in ((1, "b.bin"), (4, "c.ckpt")):
        wb.convert(tmp_path / "a.pt", tmp_path / name, jobs=jobs)
        assert (tmp_path / name).read_bytes() == (tmp_path / "a.pt").read_bytes()
    own = tmp_path / "own.pt"
    torch.save(every_type(), own)
    wb.convert(own, tmp_path / "own2.pt")
    with zipfile.ZipFile(own) as a, zipfile.ZipFile(tmp_path / "own2.pt") as b:
        assert a.read("own/data.pkl") == b.read("archive/data.pkl")


@pytest.mark.parametrize("source", ["safetensors", "npz"])
def test_there_and_back(tmp_path: Path, source: str) -> None:
    torch.save({k: v.clone() for k, v in STATE.items()}, tmp_path / "in.pt")
    first = tmp_path / f"x.{source}"
    wb.convert(tmp_path / "in.pt", first)
    wb.convert(first, tmp_path / "y.pt")
    loaded = torch.load(tmp_path / "y.pt", weights_only=True)
    assert loaded.keys() == STATE.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in STATE.items())


def test_a_cast_on_the_way(tmp_path: Path) -> None:
    torch.save({"w": BASE, "i": torch.arange(3)}, tmp_path / "in.pt")
    wb.convert(tmp_path / "in.pt", tmp_path / "out.pt", dtype="bf16")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(loaded["w"], BASE.bfloat16())
    assert loaded["i"].dtype == torch.int64


def test_metadata_has_no_place_and_is_told(tmp_path: Path) -> None:
    torch.save({"model": {"w": BASE}, "epoch": 3}, tmp_path / "in.pt")
    result = wb.convert(tmp_path / "in.pt", tmp_path / "out.pt")
    assert [loss.message for loss in result.losses] == ["left out, not tensors: epoch"]
    assert list(torch.load(tmp_path / "out.pt", weights_only=True)) == ["w"]


def test_shards_are_a_set_of_the_hub(tmp_path: Path) -> None:
    state = {f"l.{i}": torch.randn(10) for i in range(7)} | {"a": BASE, "tied": BASE}
    torch.save(state, tmp_path / "in.pt")
    wb.convert(tmp_path / "in.pt", tmp_path / "set", to="torch", max_shard_size=100)
    index = json.loads((tmp_path / "set" / "pytorch_model.bin.index.json").read_bytes())
    assert index["metadata"]["total_size"] == 7 * 40 + 240
    loaded: dict[str, Any] = {}
    for file in sorted(set(index["weight_map"].values())):
        part = torch.load(tmp_path / "set" / file, weights_only=True)
        assert all(index["weight_map"][name] == file for name in part)
        loaded |= part
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[k], v) for k, v in state.items())
    assert loaded["a"].data_ptr() == loaded["tied"].data_ptr()
    wb.convert(tmp_path / "set", tmp_path / "one.pt")
    assert torch.equal(torch.load(tmp_path / "one.pt", weights_only=True)["l.3"], state["l.3"])


def test_a_model_folder_that_transformers_loads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=40,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.2)
    model.save_pretrained(tmp_path / "hf")
    wb.convert(tmp_path / "hf", tmp_path / "bin", to="torch", max_shard_size=8000)
    assert not [p for p in (tmp_path / "bin").iterdir() if p.suffix == ".safetensors"]
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "bin", use_safetensors=False)
    tokens = torch.arange(12)[None]
    assert torch.equal(model.eval()(tokens).logits, again.eval()(tokens).logits)


# ---- refusals -------------------------------------------------------------------------------------------------


def test_what_torch_cannot_hold() -> None:
    with pytest.raises(UnsupportedError, match="torch has no type Q8_0"):
        torch_write.layout([("w", Spec((32,), BY_NAME["Q8_0"]))])
    with pytest.raises(UnsupportedError, match="rows of whole bytes"):
        torch_write.layout([("w", Spec((2, 3), BY_NAME["F4"]))])
    with pytest.raises(UsageError, match="one name"):
        torch_write.layout([("w", Spec((2,), U8)), ("w", Spec((2,), U8))])


# ---- the pickle -----------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 2100), 1 << 2100)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
    | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_what_is_written_python_reads(value: Any) -> None:
    assert pickle.loads(dumps(value)) == value


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 999, 1000, 1001, 2001])
def test_batches_are_those_of_pythons_pickler(count: int) -> None:
    for value in (
        [float(i) for i in range(count)],
        {i: float(i) for i in range(count)},
        tuple(float(i) for i in range(count)),
        {"n": [1 << i for i in range(70)], "m": [-(1 << i) for i in range(70)], "x": -129},
    ):
        assert dumps(value) == pickle.dumps(value, 2)


@pytest.mark.costly
def test_what_was_written_the_machine_reads_back() -> None:
    inner: list[Any] = [1]
    inner.append(inner)
    machine = Machine(BytesSource(dumps([inner, inner, ("a", "a")])))
    value = machine.run()
    assert value[0] is value[1]
    assert value[0][1] is value[0]
    assert value[2] == ("a", "a")
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert dumps(deep).endswith(b"a" * 100_000 + b".")
    with pytest.raises(UsageError, match="no place in a pickle"):
        dumps({1})
