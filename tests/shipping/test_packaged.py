"""Packed models and models in archives: only Weighbridge reads their files, so no printed command gives them to another
program."""

from __future__ import annotations

import shlex
import tarfile
import zipfile
from pathlib import Path

import pytest

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.cli.main import main
from weighbridge.models.clients import loads
from weighbridge.models.open import open_model
from weighbridge.shipping.targets import TARGETS

NAMES = {"ollama": "tiny", "hub": "me/tiny"}
KINDS = ("folder", "gguf", "folder.tar.gz", "gguf.zip")
REFUSED = {*(("llama-server", kind) for kind in KINDS), ("hub", "folder.tar.gz"), ("hub", "gguf.zip")}


@pytest.fixture(scope="module")
def packed(model: Path, gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("packed")
    wb.pack(model, root / "folder")
    (root / "ggufs").mkdir()
    wb.pack(gguf, root / "ggufs" / "renamed.gguf")
    with tarfile.open(root / "folder.tar.gz", "w:gz") as archive:
        archive.add(model, model.name)
    with zipfile.ZipFile(root / "gguf.zip", "w") as file:
        file.write(gguf, gguf.name)
    return {"gguf": root / "ggufs" / "renamed.gguf", **{name: root / name for name in KINDS if name != "gguf"}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS)
def test_no_command_runs_packaged_files(target: str, kind: str, packed: dict[str, Path]) -> None:
    path = packed[kind]
    path = path.parent if target == "hub" and kind == "gguf" else path
    if (target, kind) in REFUSED:
        with pytest.raises(UnsupportedError):
            wb.plan_ship(target, path, NAMES.get(target, ""))
        return
    report = wb.plan_ship(target, path, NAMES.get(target, "")).report
    refused = [check for check in report.checks if not check.ok]
    assert refused or target not in ("vllm", "mlx")  # they are given the model's own files
    assert not any(str(path) in shlex.split(command) for command in report.run if not refused)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_card_unpacks_first(kind: str, packed: dict[str, Path], tmp_path: Path) -> None:
    path = packed[kind] if kind == "folder" else packed[kind].parent
    first, *rest = wb.plan_ship("hub", path, "me/tiny").report.run
    assert first == "wb unpack hf://me/tiny model/"
    wb.unpack(path, tmp_path / "model")
    assert all((tmp_path / shlex.split(command)[-1]).exists() for command in rest)
    assert rest


@pytest.mark.parametrize("kind", KINDS)
def test_no_program_loads_packaged_files(kind: str, packed: dict[str, Path], tmp_path: Path) -> None:
    with open_model(packed[kind]) as opened:
        verdict = loads(opened)
    assert verdict.accepts is False
    command = shlex.split(verdict.why[verdict.why.index(": wb ") + 2 :].partition(", or")[0])
    assert main([*command[1:-1], str(tmp_path / f"back{'.gguf' * (kind == 'gguf.zip')}")]) == 0
    with open_model(next(tmp_path.glob("back*"))) as opened:
        assert loads(opened).accepts is not False


@pytest.mark.parametrize("kind", ["folder", "folder.tar.gz"])
def test_a_proof_of_packaged_files_is_incomplete(kind: str, model: Path, packed: dict[str, Path]) -> None:
    report = wb.prove(model, packed[kind], run=False)
    assert {check.name: check.verdict for check in report.checks}["loads"] == "not-checked"
    assert not any(check.verdict == "different" for check in report.checks)


@pytest.mark.costly
def test_only_unquantized_models_are_called_so(gguf: Path, model: Path, tmp_path: Path) -> None:
    wb.quantize(gguf, tmp_path / "q8.gguf", "Q8_0")
    wb.pack(tmp_path / "q8.gguf", tmp_path / "packed.gguf")
    wb.convert(model, tmp_path / "mlx", to="mlx", q_bits=4, q_group_size=32)
    for path, said in ((tmp_path / "packed.gguf", False), (tmp_path / "mlx", False), (model, True)):
        notes = wb.plan_ship("ollama", path, "tiny").report.notes
        assert any("unquantized" in note for note in notes) is said, path
