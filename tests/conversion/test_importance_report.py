"""What is told of an importance matrix: numbers against those worked out from the `gguf` package's reading, one by one;
what doesn't fit a model, by the model's names in a GGUF."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import CONFIG, make_folder
from tests.reports import makers as m

import weighbridge as wb
from weighbridge.cli.main import main
from weighbridge.containers.ggml import imatrix as files
from weighbridge.containers.sniff.detect import sniff
from weighbridge.conversion.quantize import ftypes
from weighbridge.conversion.quantize import imatrix_report as imatrix_report
from weighbridge.conversion.quantize.imatrix import ImatrixSums, ImportanceMatrix, encode
from weighbridge.conversion.quantize.imatrix_report import EntryStats, ImatrixReport, WrongSize, inspect_imatrix
from weighbridge.io.source import BytesSource

RNG = np.random.default_rng(11)
SIZES: dict[str, Any] = CONFIG
HIDDEN, INNER, LAYERS = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["num_hidden_layers"]
INPUTS = {"attn_q": HIDDEN, "attn_k": HIDDEN, "attn_v": HIDDEN, "attn_output": HIDDEN, "ffn_gate": HIDDEN,
          "ffn_up": HIDDEN, "ffn_down": INNER}  # fmt: skip
WHOLE = {f"blk.{i}.{part}.weight": n for i in range(LAYERS) for part, n in INPUTS.items()}


def matrix(sizes: dict[str, int]) -> ImportanceMatrix:
    entries = {
        n: ImatrixSums(RNG.random((1, size), np.float32), np.array([512], np.int64)) for n, size in sizes.items()
    }
    return ImportanceMatrix(entries, ("a.txt",), 1, 512)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "llama", words=True)


def line(found: ImatrixReport, name: str) -> EntryStats:
    return next(entry for entry in found.entries if entry.name == name)


# -- numbers ---------------------------------------------------------------------------------------------------------

EXPERTS = "blk.0.ffn_up_exps.weight"


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    """By the `gguf` package: three experts, the second never used, zeros and ties among the values."""
    gguf = pytest.importorskip("gguf")
    sums = np.array([[4, 0, 9, 1], [7, 7, 7, 7], [0.5, 0, 30, 30]], np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "none")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["a.txt", "b.txt"])
    writer.add_uint32("imatrix.chunk_count", 3)
    writer.add_uint32("imatrix.chunk_size", 128)
    writer.add_tensor(EXPERTS + ".in_sum2", sums)
    writer.add_tensor(EXPERTS + ".counts", np.array([[2], [0], [10]], np.float32))
    for write_part in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write_part()
    writer.close()
    return tmp_path / "m.gguf"


def by_hand(path: Path) -> dict[str, Any]:
    """Of the file's one entry, from what the `gguf` package reads, value by value in Python's floats."""
    tensors = {t.name: t.data for t in pytest.importorskip("gguf").GGUFReader(path).tensors}
    sums, counts = tensors[EXPERTS + ".in_sum2"], tensors[EXPERTS + ".counts"][:, 0]
    values = [
        (float(v) / float(c), (i, j))
        for i, (row, c) in enumerate(zip(sums, counts, strict=True)) if c > 0
        for j, v in enumerate(row)
    ]  # fmt: skip
    most, least = max(v for v, _ in values), min(v for v, _ in values)
    return {
        "sum": math.fsum(v for v, _ in values),
        "most": most,
        "most_at": next(at for v, at in values if v == most),
        "least": least,
        "least_at": next(at for v, at in values if v == least),
        "zeros": sum(v == 0 for v, _ in values) / len(values),
        "seen_least": int(counts.min()),
        "seen_most": int(counts.max()),
        "unused": int((counts == 0).sum()),
    }


def test_the_numbers_of_an_entry(experts: Path) -> None:
    report = inspect_imatrix(experts)
    assert (report.form, report.unit, report.datasets, report.chunks, report.chunk_size, report.values) == (
        "gguf", "tokens", ("a.txt", "b.txt"), 3, 128, 12,
    )  # fmt: skip
    found, wanted = line(report, EXPERTS), by_hand(experts)
    for key, value in wanted.items():
        assert getattr(found, key) == (pytest.approx(value) if isinstance(value, float) else value), key
    assert (found.matrices, found.columns, report.unused) == (3, 4, 1)


def legacy(calls: int, *values: float, name: bytes = b"blk.0.ffn_down.weight") -> bytes:
    head = struct.pack(f"<ii{len(name)}sii", 1, len(name), name, calls, len(values))
    return head + struct.pack(f"<{len(values)}f", *values) + struct.pack("<ii5s", 8, 5, b"c.txt")


def test_a_legacy_entry_is_divided_by_its_calls(tmp_path: Path) -> None:
    (tmp_path / "m.dat").write_bytes(legacy(4, 8, 0, 2, 0))
    report = inspect_imatrix(tmp_path / "m.dat")
    assert (report.form, report.unit, report.datasets, report.chunks, report.chunk_size) == (
        "legacy", "calls", ("c.txt",), 8, 0,
    )  # fmt: skip
    assert report.entries == (EntryStats("blk.0.ffn_down.weight", 1, 4, 4, 4, 0, 2.5, 2.0, (0, 0), 0.0, (0, 1), 0.5),)


def test_an_entry_that_was_never_used_has_no_extremes(tmp_path: Path) -> None:
    (tmp_path / "m.dat").write_bytes(legacy(0, 8, 2))
    found = inspect_imatrix(tmp_path / "m.dat").entries[0]
    assert (found.unused, found.sum, found.most, found.most_at, found.least, found.least_at) == (1, 0, *[None] * 4)


# -- against a model -------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(folder: Path) -> list[Path]:
    """The model as it came, and as a GGUF."""
    made = folder.parent / "model.gguf"
    wb.convert(folder, made)
    return [folder, made]


UP = "blk.0.ffn_up.weight"
FITS: dict[str, tuple[Callable[[dict[str, int]], dict[str, int]], dict[str, Any]]] = {
    "whole": (lambda w: w, {"fits": True}),
    "with the output": (lambda w: w | {"output.weight": HIDDEN}, {"fits": True, "seldom": ("token_embd.weight",)}),
    "one is missing": (lambda w: {n: k for n, k in w.items() if n != UP}, {"missing": (UP,)}),
    "one is extra": (lambda w: w | {"blk.99.ffn_up.weight": HIDDEN}, {"extra": ("blk.99.ffn_up.weight",)}),
    "one is longer": (lambda w: w | {UP: HIDDEN + 1}, {"wrong_size": (WrongSize(UP, HIDDEN, HIDDEN + 1),)}),
    "another model's": (
        lambda w: {"blk.0.attn_qkv.weight": HIDDEN}, {"extra": ("blk.0.attn_qkv.weight",), "missing": tuple(WHOLE)}
    ),
}  # fmt: skip


def misfits(path: Path, model: Path) -> dict[str, Any]:
    found = inspect_imatrix(path, model=model).fit
    assert found is not None
    return {
        "fits": found.fits, "extra": found.extra, "missing": tuple(sorted(found.missing)),
        "seldom": tuple(sorted(found.seldom)), "wrong_size": found.wrong_size,
    }  # fmt: skip


def expected(said: dict[str, Any]) -> dict[str, Any]:
    plain = {"fits": False, "extra": (), "missing": (), "wrong_size": ()}
    whole = {**plain, "seldom": ("output.weight", "token_embd.weight"), **said}
    return {**whole, "missing": tuple(sorted(whole["missing"]))}


@pytest.mark.parametrize("form", ["gguf", "legacy"])
def test_what_fits_a_model_and_what_does_not(form: files.ImatrixForm, sources: list[Path]) -> None:
    file = sources[0].parent / "m.imatrix"
    for name, (change, said) in FITS.items():
        file.write_bytes(encode(matrix(change(WHOLE)), form))
        for source in sources:
            assert misfits(file, source) == expected(said), (name, source)


@pytest.fixture
def routed(tmp_path: Path) -> Path:
    keys = {"general.architecture": ("str", "llama"), "llama.block_count": ("u32", 1),
            "llama.context_length": ("u32", 8), "llama.embedding_length": ("u32", 4),
            "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5)}  # fmt: skip
    shapes = {"token_embd.weight": (8, 4), "blk.0.ffn_gate_inp.weight": (2, 4), "blk.0.attn_norm.weight": (4,),
              "blk.0.attn_v.weight": (4, 4), "blk.0.attn_q.weight": (4, 4)}  # fmt: skip
    (tmp_path / "moe.gguf").write_bytes(m.gguf(keys, {n: ("F32", shape) for n, shape in shapes.items()}))
    return tmp_path / "moe.gguf"


def test_what_is_never_quantized_needs_no_entry(routed: Path) -> None:
    file = routed.parent / "m.dat"
    file.write_bytes(encode(matrix({"blk.0.attn_q.weight": 4}), "legacy"))
    found = misfits(file, routed)
    assert (found["missing"], found["seldom"]) == (("blk.0.attn_v.weight",), ("token_embd.weight",))


def test_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("gguf", "legacy"):
        file = folder.parent / f"m-{form}"
        file.write_bytes(encode(matrix(WHOLE), "gguf" if form == "gguf" else "legacy"))
        assert main(["inspect", str(file), "--model", str(folder)]) == 0
        assert "it fits" in capsys.readouterr().out
        file.write_bytes(encode(matrix(WHOLE | {UP: 3, "nobody's.weight": 2}), "gguf" if form == "gguf" else "legacy"))
        assert main(["inspect", str(file), "--model", str(folder)]) == 1
        out = capsys.readouterr().out
        assert f"{UP} ({HIDDEN} values expected, 3 found)" in out
        assert "nobody's.weight" in out
        assert main(["inspect", str(file), "--json"]) == 0
        doc = json.loads(capsys.readouterr().out)
        assert (doc["schema"], doc["form"], doc["fit"]) == ("weighbridge/importance/1", form, None)


def test_a_model_is_compared_with_an_importance_matrix_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--model", str(folder)]) == 2
    assert "--model applies to an importance matrix" in capsys.readouterr().err


def test_tensors_of_the_gguf_form_are_still_shown(experts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(experts), "--tensors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "weighbridge/inspect/1"


# -- which files are one ---------------------------------------------------------------------------------------------


def test_both_forms_are_recognised_and_named(experts: Path) -> None:
    old = BytesSource(legacy(1, 2, 3))
    assert files.recognised(old)
    assert sniff(old).format == "imatrix-dat"
    new = BytesSource(experts.read_bytes())
    assert files.recognised(new)
    assert (sniff(new).format, sniff(new).variant) == ("gguf", "imatrix")


OTHERS = {
    "nothing": b"", "short": b"\1\0\0", "zeros": bytes(64), "a pickle": b"\x80\x02}q\x00.", "json": b'{"a": 1}      ',
    "a header of safetensors": struct.pack("<Q", 2) + b"{}", "a count alone": struct.pack("<ii", 3, 0) + bytes(40),
    "a model": struct.pack("<4sIQQ", b"GGUF", 3, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_other_files_are_none(data: bytes) -> None:
    assert not files.recognised(BytesSource(data))


# -- mutations -------------------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Any, str, Any]] = {
    "embeddings count as missing": (imatrix_report, "_SELDOM", ()),
    "norms and routers count as missing": (ftypes, "quantizable", lambda *_: True),
    "nothing is missing": (ftypes, "quantizable", lambda *_: False),
}


@pytest.mark.mutation
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_fit_is_seen(fault: str, routed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises(AssertionError):
        test_what_is_never_quantized_needs_no_entry(routed)


@pytest.mark.mutation
def test_a_fault_in_the_numbers_is_seen(experts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = imatrix_report._extreme
    for swap in (np.argmin, np.argmax):
        monkeypatch.setattr(imatrix_report, "_extreme", lambda m, u, _, swap=swap: real(m, u, swap))
        with pytest.raises(AssertionError):
            test_the_numbers_of_an_entry(experts)
