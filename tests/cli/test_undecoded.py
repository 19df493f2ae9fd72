"""Commands x packings that are recognised and not decoded: stored tensors are carried byte for byte, or the command
names the packing and stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.conformance.packing_examples import UNDECODED
from tests.models.test_parallel_packed import LLAMA, model

import weighbridge as wb
from weighbridge.cli.main import main

PROJECTION = "model.layers.0.self_attn.o_proj"  # the packed weight


@pytest.fixture(params=UNDECODED)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The name of a packing, and a folder with a weight of it."""
    folder = model(tmp_path / request.param)
    tensors = load_file(folder / "model.safetensors")
    rows, columns = tensors.pop(f"{PROJECTION}.weight").shape
    make, _ = UNDECODED[request.param][0]
    for name, node in make(rows, columns).tensors.items():
        kind = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "F32": "<f4", "F16": "<f2"}[node.spec.dtype.name]
        array = node.read_all().view(kind).reshape(node.spec.shape)
        tensors[name.replace("m.", f"{PROJECTION}.", 1)] = array
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = LLAMA | {"quantization_config": {"quant_method": request.param}}
    (folder / "config.json").write_text(json.dumps(config))
    return request.param, folder


def run(*words: object) -> int:
    return main([str(word) for word in words])


REFUSED: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "convert to GGUF": lambda a, out: ("convert", a, out / "m.gguf"),
    "convert to MLX": lambda a, out: ("convert", a, out / "mlx", "--to", "mlx"),
    "cast": lambda a, out: ("convert", a, out / "cast", "--to", "hf", "--dtype", "bf16"),
    "quantize": lambda a, out: ("quantize", a, out / "m.gguf", "Q8_0"),
    "rename": lambda a, out: ("rename", a, out / "named", "--to-names", "gguf"),
    "get": lambda a, out: ("get", f"{a / 'model.safetensors'}::{PROJECTION}.weight"),
    "diff": lambda a, out: ("diff", a, a),
    "prove": lambda a, out: ("prove", a, a),
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_needs_the_values_is_refused_by_name(
    command: str, packed: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, folder = packed
    out = tmp_path / "out"
    out.mkdir()
    assert run(*REFUSED[command](folder, out)) == 2
    text = capsys.readouterr().err
    assert f"{PROJECTION}.weight is packed as {name.upper()}, which isn't decoded" in text
    assert not list(out.iterdir())


def test_what_only_moves_bytes_carries_them(packed: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = packed
    stored = load_file(folder / "model.safetensors")
    assert run("convert", folder, tmp_path / "torch", "--to", "torch") == 0
    assert run("convert", tmp_path / "torch", tmp_path / "back", "--to", "hf") == 0
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert {name: part.tobytes() for name, part in back.items()} == {n: part.tobytes() for n, part in stored.items()}
    assert run("diff", "--names", "stored", folder, tmp_path / "back") == 0
    for name in (n for n in stored if n.startswith(PROJECTION)):
        assert run("get", "--raw", f"{folder / 'model.safetensors'}::{name}", "-o", tmp_path / name) == 0
        assert (tmp_path / name).read_bytes() == stored[name].tobytes()
    embedding = "model.embed_tokens.weight"
    with wb.open(folder, names="stored") as opened:
        np.testing.assert_array_equal(opened[embedding].numpy(), stored[embedding])
    assert run("get", f"{folder / 'model.safetensors'}::{embedding}", "-o", tmp_path / "e.npy") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), stored[embedding])


def test_verify_says_that_it_is_not_checked(packed: tuple[str, Path]) -> None:
    name, folder = packed
    findings = {f.rule: f for f in wb.verify(folder).findings}
    assert not {"config/missing", "config/unmapped", "config/packing"} & set(findings)
    assert f"is packed as {name.upper()}, which isn't decoded" in findings["config/packing-unread"].message
    report = wb.inspect(folder)
    assert {row.scheme for row in report.schemes} == {name, "F32"}
    assert wb.identify(folder / "model.safetensors").detail["packings"] == [name]
