"""Weights in existing ONNX and CTranslate2 models: the files that the libraries accepted (`record_graphs.py`), and
models that don't fit."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers import framework_files
from tests.containers.framework_files import message, onnx_external, varint

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.containers import protobuf, rewritten
from weighbridge.conversion import graph as graphs
from weighbridge.models.open import open_model

GOLDEN = Path(__file__).with_name("golden") / "graphs.zip"
CASES = {"onnx": "given.onnx", "external": "given.onnx", "float32": "given", "float16": "given", "bfloat16": "given",
         "int8": "given", "quantized": "given"}  # fmt: skip
W = np.arange(6, dtype=np.float32).reshape(2, 3)


@cache
def archived(path: Path) -> Mapping[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("graphs")
    for archive in (GOLDEN, framework_files.GOLDEN):
        for name, data in archived(archive).items():
            (path := top / name).parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return top


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def values(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with wb.open(path) as model:
        return {name: model[name].numpy() for name in model}


def tensor(name: str, shape: tuple[int, ...], kind: int, data: bytes) -> bytes:
    dims = b"".join(b"\x08" + varint(n) for n in shape)
    return message(5, dims + b"\x10" + varint(kind) + message(8, name.encode()) + data)


def onnx(*tensors: bytes) -> bytes:
    return b"\x08\x08" + message(7, b"".join(tensors))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A model with w in raw data and n in varints, and weights for both."""
    numbers = tensor("n", (3,), 7, message(7, b"\x01\x02\x03"))
    (tmp_path / "m.onnx").write_bytes(onnx(tensor("w", (2, 3), 1, message(9, W.tobytes())), numbers))
    wb.save({"w": W + 1, "n": np.array([1, 2, 3])}, tmp_path / "w.safetensors")
    return tmp_path


# ---- as the libraries accepted them ----


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_those_that_the_library_runs(case: str, models: Path, tmp_path: Path) -> None:
    start = f"{case}/written/"
    written = {n.removeprefix(start): data for n, data in archived(GOLDEN).items() if n.startswith(start)}
    result = wb.convert(models / case / "weights.safetensors", tmp_path / "out/", graph=models / case / CASES[case])
    assert files(tmp_path / "out") == written
    assert all(loss.message.startswith("left out: in the graph it shares the bytes of ") for loss in result.losses)


@pytest.mark.parametrize("name", ["a.onnx", "e.onnx", "ct2/model.bin"])
def test_a_model_with_its_own_weights_is_the_same_bytes(name: str, models: Path, tmp_path: Path) -> None:
    wb.convert(models / name, tmp_path / "w.safetensors")
    wb.convert(tmp_path / "w.safetensors", tmp_path / "out", graph=models / name)
    for file, data in files(tmp_path / "out").items():
        assert data == ((models / name).parent / file).read_bytes()


def test_numbers_in_a_subgraph_are_recoded(models: Path, tmp_path: Path) -> None:
    """The messages around them grow by lengths that need more bytes."""
    graph = models / "a.onnx"
    changed = {name: np.zeros_like(value) for name, value in values(graph).items()}
    wb.save(changed, tmp_path / "w.safetensors")
    wb.convert(tmp_path / "w.safetensors", out := tmp_path / "out.onnx", graph=graph)
    assert {n: v.tolist() for n, v in values(out).items()} == {n: v.tolist() for n, v in changed.items()}


def test_a_length_that_needs_another_byte(tmp_path: Path) -> None:
    numbers = tensor("n", (16,), 7, message(7, bytes(range(16))))
    (tmp_path / "m.onnx").write_bytes(onnx(tensor("w", (2, 3), 1, message(9, W.tobytes())), numbers))
    wb.save({"n": np.arange(16) + 2**40}, tmp_path / "w.safetensors")
    wb.convert(tmp_path / "w.safetensors", out := tmp_path / "out.onnx", graph=tmp_path / "m.onnx")
    found = values(out)
    assert found["n"].tolist() == [n + 2**40 for n in range(16)]
    assert found["w"].tolist() == W.tolist()
    assert out.stat().st_size == (tmp_path / "m.onnx").stat().st_size + 128 - 16 + 3  # three lengths of two bytes


def test_the_command_writes_one_file(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["convert", str(small / "w.safetensors"), str(small / "out.onnx"), "--graph", str(small / "m.onnx")]
    assert main(argv) == 0
    before, after = (small / "m.onnx").read_bytes(), (small / "out.onnx").read_bytes()
    assert after == before.replace(W.tobytes(), (W + 1).tobytes())


# ---- in = out and what is listed ----


def test_tensors_of_one_side_are_listed(small: Path) -> None:
    wb.save({"w": W, "b": W, "c": W}, small / "x.safetensors")
    plan = wb.plan_convert(small / "x.safetensors", small / "out.onnx", graph=small / "m.onnx")
    assert [(loss.tensor, loss.message) for loss in plan.losses] == [
        (name, "left out: the graph has no tensor of this name") for name in "bc"
    ]
    assert [note for note in plan.notes if "kept" in note] == [
        "kept from the graph, since the source lacks them: 1 tensor: n"
    ]
    plan.run()
    assert values(small / "out.onnx")["n"].tolist() == [1, 2, 3]


def test_an_alias_alone_fills_its_place(models: Path, tmp_path: Path) -> None:
    old = values(models / "ct2/model.bin")
    wb.save({"other/weight": -old["lin/weight"]}, tmp_path / "w.safetensors")
    plan = wb.plan_convert(tmp_path / "w.safetensors", tmp_path / "out.bin", graph=models / "ct2")
    assert not plan.losses
    plan.run()
    assert values(tmp_path / "out.bin")["lin/weight"].tolist() == (-old["lin/weight"]).tolist()


def test_floats_become_the_graph_s_type(small: Path) -> None:
    wb.save({"w": (W / 4).astype(np.float16)}, small / "x.safetensors")
    result = wb.convert(small / "x.safetensors", small / "out.onnx", graph=small / "m.onnx")
    assert not result.losses
    assert values(small / "out.onnx")["w"].tolist() == (W / 4).tolist()


def ctranslate2(path: Path, **variables: np.ndarray[Any, Any]) -> None:
    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    data = struct.pack("<I", 6) + text("ModelSpec") + struct.pack("<II", 1, len(variables))
    for name, value in variables.items():
        head = struct.pack(f"<B{value.ndim}IBI", value.ndim, *value.shape, int(value.dtype == np.int8), value.nbytes)
        data += text(name) + head + value.tobytes()
    path.write_bytes(data + struct.pack("<I", 0))


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    """An int8 model with a convolution's weight."""
    zeros: dict[str, Any] = {
        "w": np.zeros((4, 3, 2), np.int8),
        "w_scale": np.ones(4, np.float32),
        "b": np.zeros(4, np.float32),
    }
    ctranslate2(tmp_path / "model.bin", **zeros)
    return tmp_path


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_floats_in_an_int8_model_are_quantized_by_row(kind: type[np.floating[Any]], codes: Path) -> None:
    w = np.random.default_rng(5).normal(size=(4, 3, 2)).astype(kind)
    wb.save({"w": w}, codes / "x.safetensors")
    result = wb.convert(codes / "x.safetensors", codes / "out.bin", graph=codes / "model.bin")
    scales = np.float32(127) / np.abs(w.astype(np.float32)).max(axis=(1, 2))
    found = values(codes / "out.bin")
    assert found["w_scale"].tolist() == scales.tolist()
    assert found["w"].tolist() == np.rint(w.astype(np.float32) * scales[:, None, None]).tolist()
    assert "quantized to int8 with a scale for each row, as CTranslate2 does: 1 tensor" in result.notes


IN_INT8: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"w": np.zeros((4, 6), np.float32)}, UsageError, r"w is \[4, 6\], in the graph \[4, 3, 2\]"),
    ({"w": np.zeros((4, 3, 2), np.float32), "w_scale": np.ones(4, np.float32)}, UsageError, "F32, in the graph I8"),
    ({"w": np.full((4, 3, 2), np.nan, np.float32)}, RefusedError, "w has values that aren't finite"),
]


@pytest.mark.parametrize(("weights", "error", "reason"), IN_INT8, ids=[reason for *_, reason in IN_INT8])
def test_weights_that_an_int8_model_cannot_hold(
    weights: dict[str, Any], error: type[Exception], reason: str, codes: Path
) -> None:
    wb.save(weights, codes / "x.safetensors")
    with pytest.raises(error, match=reason):
        wb.convert(codes / "x.safetensors", codes / "out.bin", graph=codes / "model.bin")
    assert not (codes / "out.bin").exists()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"w": W.T.copy()}, r"w is \[3, 2\], in the graph \[2, 3\]"),
    ({"w": W.astype(np.int32)}, "w is I32, in the graph F32"),
    ({"n": np.array([1.0, 2, 3], np.float32)}, "n is F32, in the graph I64"),
    ({"n": np.array([1, 2, 3], np.int32)}, "n is I32, in the graph I64"),
    ({"x": W}, "no tensor has the name of one"),
]


@pytest.mark.parametrize(("weights", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_weights_that_do_not_fit_are_refused(weights: dict[str, Any], reason: str, small: Path) -> None:
    wb.save(weights, small / "x.safetensors")
    with pytest.raises(UsageError, match=reason):
        wb.plan_convert(small / "x.safetensors", small / "out.onnx", graph=small / "m.onnx")


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("out.onnx", {}, r"'.onnx' isn't a format to write without a graph"),
    ("out", {"to": "onnx"}, "no graph was given"),
    ("out.onnx", {"to": "safetensors", "graph": "m.onnx"}, """to="safetensors" was given, but .* is onnx"""),
    ("out.npz", {"graph": "m.onnx"}, "named as a npz file"),
    ("out.onnx", {"graph": "w.safetensors"}, "the weights of a safetensors file can't be replaced"),
    ("out.onnx", {"graph": "m.onnx", "dtype": "f16"}, "dtype doesn't apply to a model with an existing graph"),
]


@pytest.mark.parametrize(("target", "options", "reason"), OPTIONS, ids=[reason for *_, reason in OPTIONS])
def test_options_that_contradict_each_other(target: str, options: dict[str, Any], reason: str, small: Path) -> None:
    given: dict[str, Any] = {n: str(small / value) if n == "graph" else value for n, value in options.items()}
    with pytest.raises(UsageError, match=reason):
        wb.plan_convert(small / "w.safetensors", small / target, **given)


def test_the_graph_is_never_overwritten(small: Path) -> None:
    with pytest.raises(RefusedError, match="contains the source"):
        wb.plan_convert(small / "w.safetensors", small / "m.onnx", graph=small / "m.onnx", overwrite=True)


def test_two_files_need_a_folder(models: Path, tmp_path: Path) -> None:
    weights = models / "external/weights.safetensors"
    with pytest.raises(UsageError, match="2 files are written, so DST must be a folder"):
        wb.plan_convert(weights, tmp_path / "out.onnx", graph=models / "external/given.onnx")
    plan = wb.plan_convert(weights, tmp_path / "out", graph=models / "external/given.onnx")
    assert plan.names == {"given.onnx", "given.data"}


# ---- graphs that can't be written again ----


def external(*places: tuple[int, int]) -> bytes:
    """A model with tensors t0, t1 ... of bytes, each at an offset and of a length of the file x."""
    tensors = []
    for number, (offset, length) in enumerate(places):
        entries = {"location": "x", "offset": str(offset), "length": str(length)}
        pairs = b"".join(message(13, message(1, k.encode()) + message(2, v.encode())) for k, v in entries.items())
        tensors.append(tensor(f"t{number}", (length,), 2, pairs + b"\x70\x01"))
    return onnx(*tensors)


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(external((0, 8), (4, 8)))
    (tmp_path / "x").write_bytes(bytes(16))
    wb.save({"t0": np.zeros(8, np.uint8)}, tmp_path / "w.safetensors")
    with pytest.raises(UnsupportedError, match="two tensors overlap at byte 4"):
        wb.plan_convert(tmp_path / "w.safetensors", tmp_path / "out", graph=tmp_path / "m.onnx")


def test_bytes_between_external_tensors_are_kept(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(external((8, 4), (2, 4), (8, 4)))
    (tmp_path / "x").write_bytes(bytes(range(16)))
    wb.save({"t0": np.full(4, 255, np.uint8)}, tmp_path / "w.safetensors")
    wb.convert(tmp_path / "w.safetensors", tmp_path / "out", graph=tmp_path / "m.onnx")
    assert (tmp_path / "out/x").read_bytes() == bytes([*range(8), 255, 255, 255, 255, *range(12, 16)])


@pytest.mark.parametrize(
    ("module", "limit", "reason"),
    [(rewritten, "FRAME", "bytes around the tensors, more than 8"), (graphs, "PROTOBUF_MESSAGE", "more than 8 bytes")],
)
def test_limits(module: Any, limit: str, reason: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, limit, 8)
    with pytest.raises(UnsupportedError, match=reason):
        wb.plan_convert(small / "w.safetensors", small / "out.onnx", graph=small / "m.onnx")


def test_an_unusual_length_is_refused(tmp_path: Path) -> None:
    numbers = tensor("n", (3,), 7, message(7, b"\x01\x02\x03"))
    data = b"\x08\x08\x3a" + bytes((len(numbers) | 0x80, 0)) + numbers
    (tmp_path / "m.onnx").write_bytes(data)
    wb.save({"n": np.array([1, 2, 4])}, tmp_path / "w.safetensors")
    with pytest.raises(UnsupportedError, match="the length before byte 5 is written in an unusual form"):
        wb.plan_convert(tmp_path / "w.safetensors", tmp_path / "out.onnx", graph=tmp_path / "m.onnx")
    (tmp_path / "w.safetensors").unlink()
    wb.save({"n": np.array([1, 2, 3])}, tmp_path / "w.safetensors")  # unchanged numbers stay as they are
    wb.convert(tmp_path / "w.safetensors", tmp_path / "out.onnx", graph=tmp_path / "m.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == data


@pytest.mark.parametrize("location", ["../evil", "/etc/passwd", "a\\b"])
def test_a_graph_never_leads_out_of_its_folder(location: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_external(location))
    wb.save({"w": W}, tmp_path / "w.safetensors")
    with pytest.raises(FormatError, match="could lead out of the folder"):
        wb.plan_convert(tmp_path / "w.safetensors", tmp_path / "out", graph=tmp_path / "m.onnx")


def test_a_cut_graph_is_refused_at_every_byte(small: Path) -> None:
    """Nothing is planned for a graph that a reader refuses."""
    data = (small / "m.onnx").read_bytes()
    for size in range(3, len(data), 5):
        (small / "cut.onnx").write_bytes(data[:size])
        with pytest.raises((FormatError, UsageError, UnsupportedError)):
            wb.plan_convert(small / "w.safetensors", small / "out.onnx", graph=small / "cut.onnx")


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 31, (1 << 63) - 1])
def test_lengths_are_written_as_protobuf_does(number: int) -> None:
    assert protobuf.varint(number) == varint(number)


def test_the_tensors_of_a_written_model_are_verified(models: Path, tmp_path: Path) -> None:
    wb.convert(models / "onnx/weights.safetensors", tmp_path / "out.onnx", graph=models / "onnx/given.onnx")
    assert not wb.verify(tmp_path / "out.onnx").findings
    with open_model(tmp_path / "out.onnx") as model:
        assert model.format == "onnx"
