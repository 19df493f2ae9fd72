"""llamafiles: the GGUF inside a program, read where it lies."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from tests.conformance.samples import llamafile
from tests.oracles.quantize_cases import make

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UnsupportedError, WeighbridgeError


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("quantized", tmp_path_factory.mktemp("g"))


@pytest.fixture
def program(gguf: Path, tmp_path: Path) -> Path:
    path = tmp_path / "model.llamafile"
    path.write_bytes(llamafile(gguf.read_bytes()))
    return path


def test_it_is_the_model_inside(program: Path, gguf: Path, tmp_path: Path) -> None:
    assert wb.diff(program, gguf)
    result = wb.convert(program, tmp_path / "out.gguf")
    assert wb.diff(tmp_path / "out.gguf", gguf)
    assert result.bytes <= gguf.stat().st_size
    assert wb.identify(program).format == "llamafile"
    assert wb.verify(program).ok


def test_an_edit_does_not_take_the_program_away(program: Path) -> None:
    before = program.read_bytes()
    with pytest.raises(WeighbridgeError):
        wb.edit(program, set={"general.name": "Mine"})
    assert program.read_bytes() == before


def test_several_models_in_one_are_refused(gguf: Path, tmp_path: Path) -> None:
    out = io.BytesIO(llamafile(gguf.read_bytes()))
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("second.gguf", gguf.read_bytes())
    path = tmp_path / "two.llamafile"
    path.write_bytes(out.getvalue())
    with pytest.raises((UnsupportedError, RefusedError), match="2 GGUF"):
        wb.open(path)
