"""Files that have only the header or the list of a model, whose data is in files next to them: no command takes such a
file alone in silence. It takes the other files, too, names them, or refuses and names the next step."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.containers import dcp_cases
from tests.containers.framework_files import GOLDEN
from tests.golden_files import extracted, tensor_bytes

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.models.model import WITH_DATA
from weighbridge.reports.signature.options import SignOptions
from weighbridge.reports.signature.sign import files_to_sign


class Companions(NamedTuple):
    """A model in a folder of its own. `header`: the file without data; `others`: those with it."""

    header: Path
    others: tuple[str, ...]


def _copied(top: Path, folder: Path, *names: str) -> Companions:
    folder.mkdir()
    for name in names:
        shutil.copy(extracted(GOLDEN, top) / name, folder / Path(name).name)
    first, *others = (Path(name).name for name in names)
    return Companions(folder / first, tuple(others))


def _sharded(top: Path, folder: Path) -> Companions:
    folder.mkdir()
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for n, name in enumerate(names):
        wb.save({f"w{n}": np.full(4, n, np.float32)}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {f"w{n}": name for n, name in enumerate(names)}}))
    return Companions(index, tuple(names))


def _dcp(top: Path, folder: Path) -> Companions:
    shutil.copytree(dcp_cases.unpack("one", top), folder)
    return Companions(folder / ".metadata", ("__0_0.distcp",))


def _coreml(top: Path, folder: Path) -> Companions:
    inner = next(extracted(GOLDEN.with_name("devices.zip"), top).rglob("com.apple.CoreML"))
    shutil.copytree(inner, folder)
    return Companions(folder / "model.mlmodel", ("weights/weight.bin",))


CASES: dict[str, Callable[[Path, Path], Companions]] = {
    "onnx": lambda top, folder: _copied(top, folder, "e.onnx", "e.bin"),
    "openvino": lambda top, folder: _copied(top, folder, "ir.xml", "ir.bin"),
    "tf-checkpoint": lambda top, folder: _copied(
        top, folder, "v2/model.ckpt.index", "v2/model.ckpt.data-00000-of-00001"
    ),
    "coreml": _coreml,
    "sharded": _sharded,
    "torch-dcp": _dcp,
}


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Companions:
    top = tmp_path_factory.mktemp("companions")
    return CASES[request.param](top / "from", top / "model")


def _bytes(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_format_with_data_files_is_here(tmp_path: Path) -> None:
    made = [make(tmp_path / "from", tmp_path / name) for name, make in CASES.items()]
    assert {*WITH_DATA, ".index.json", ".metadata"} <= {
        end for case in made for end in (*WITH_DATA, ".index.json", ".metadata") if case.header.name.endswith(end)
    }


def test_the_header_is_not_packed_alone(model: Companions, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="data in other files") as caught:
        wb.pack(model.header, tmp_path / "packed.safetensors")
    assert model.others[0].rpartition("/")[2] in str(caught.value)
    assert f"wb pack {model.header.parent}" in str(caught.value.hint)
    assert not (tmp_path / "packed.safetensors").exists()


def test_the_folder_is_packed_with_all_files(model: Companions, tmp_path: Path) -> None:
    if model.header.name == ".metadata":
        with pytest.raises(UnsupportedError, match="distributed checkpoint"):
            wb.pack(model.header.parent, tmp_path / "packed")
        return
    wb.pack(model.header.parent, tmp_path / "packed")
    wb.unpack(tmp_path / "packed", tmp_path / "again")
    assert _bytes(tmp_path / "again") == _bytes(model.header.parent)


def test_a_digest_of_the_header_names_the_others(model: Companions) -> None:
    report = wb.hash(model.header)
    assert [file.digest for file in report.files] == [hashlib.sha256(model.header.read_bytes()).hexdigest()]
    assert len(report.notes) == 1
    assert all(name.rpartition("/")[2] in report.notes[0] for name in model.others)
    everything = wb.hash([model.header, *(model.header.parent / name for name in model.others)])
    assert (len(everything.files), everything.notes) == (1 + len(model.others), ())
    folder = wb.hash(model.header.parent)
    assert (len(folder.files), folder.notes) == (1 + len(model.others), ())


def test_the_header_is_not_signed_alone(model: Companions) -> None:
    with pytest.raises(UsageError, match="data in other files") as caught:
        files_to_sign(model.header, SignOptions())
    assert f"wb sign {model.header.parent}" in str(caught.value.hint)
    assert files_to_sign(model.header.parent, SignOptions())


def test_the_header_opens_the_whole_model(model: Companions, tmp_path: Path) -> None:
    wb.convert(model.header, tmp_path / "header.safetensors")
    wb.convert(model.header.parent, tmp_path / "folder.safetensors")
    assert tensor_bytes(tmp_path / "header.safetensors") == tensor_bytes(tmp_path / "folder.safetensors")


def test_a_bill_of_materials_lists_the_others(model: Companions) -> None:
    text = json.dumps(wb.sbom(model.header).document)
    assert all(name.rpartition("/")[2] in text for name in model.others)


def test_data_alone_is_a_file_like_any_other(model: Companions) -> None:
    report = wb.hash(model.header.parent / model.others[0])
    assert report.notes == ()


@pytest.mark.parametrize("number", [1, 2])
def test_a_shard_without_the_others_of_its_set_is_no_model(number: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    wb.save({"w": np.zeros(4, np.float32)}, folder / f"model-0000{number}-of-00002.safetensors")
    with pytest.raises(FormatError, match=f"model-0000{3 - number}-of-00002"):
        wb.convert(folder, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
