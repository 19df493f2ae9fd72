"""The law of formats and commands: every command reads each format that is only read, and a conversion writes all
of its tensors with their values."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.samples import READ_ONLY
from tests.containers.framework_files import GOLDEN, onnx_external
from tests.golden_files import extracted
from tests.models.test_tensorrt import written as tensorrt

import weighbridge as wb
from weighbridge.containers import BUILT_IN

#: A model -> the archive with it, and its path there.
RECORDED = {
    "onnx": ("frameworks", "a.onnx"), "onnx with data": ("frameworks", "e.onnx"), "savedmodel": ("frameworks", "saved"),
    "tf checkpoint 2": ("frameworks", "v2"), "tf checkpoint 1": ("frameworks", "v1/model.ckpt"),
    "keras": ("frameworks", "k.keras"), "hdf5": ("frameworks", "old.h5"), "flax": ("frameworks", "a.msgpack"),
    "tflite": ("frameworks", "a.tflite"), "openvino": ("frameworks", "ir.xml"), "pt2": ("frameworks", "m.pt2"),
    "ctranslate2": ("frameworks", "ct2"), "pte": ("devices", "a.pte"), "pte, mutable": ("devices", "mutable.pte"),
    "pte, external": ("devices", "external.pte"), "ptd": ("devices", "external.ptd"),
    "pte, delegated": ("devices", "xnnpack.pte"), "core ml": ("devices", "half.mlpackage"),
    "core ml, int4": ("devices", "int4.mlpackage"), "core ml weights": ("devices", "w.bin"),
    "orbax": ("orbax", "plain"), "orbax run": ("orbax", "run"), "zero 2": ("zero", "stage2/global_step2"),
    "zero 3 run": ("zero", "stage3"), "universal": ("zero", "stage2-universal"), "megatron": ("megatron", "tensor"),
    "zero, tensor-parallel": ("zero", "tensor/global_step1"), "zero, pipeline": ("zero", "pipeline/global_step1"),
    "zero, experts": ("zero", "experts/global_step1"), "megatron, experts": ("megatron", "experts"),
    "megatron, latent attention": ("megatron", "latent-experts"), "megatron, mixers": ("megatron", "mixer-plain"),
}  # fmt: skip
TENSORRT = "tensorrt"
MADE = ("mindspore", "nemo", "llama2c", "llamafile", "pickle", "torch-tar", "torchscript")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("commands")
    for archive in {archive for archive, _ in RECORDED.values()}:
        extracted(GOLDEN.with_name(f"{archive}.zip"), top / archive)
    for name in MADE:
        suffix = {"mindspore": ".ckpt"}.get(name, (BUILT_IN[name].suffixes or (".bin",))[0])
        (top / f"{name}{suffix}").write_bytes(READ_ONLY[name]()[0])
    tensorrt(top / f"{TENSORRT}.folder", 2, 2)
    return top


def model_at(root: Path, case: str) -> Path:
    if case in RECORDED:
        return root.joinpath(*RECORDED[case])
    return next(root.glob(f"{case}.*"))


def contents(path: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    with wb.open(path) as model:
        return {name: (tuple(model[name].shape), model[name].numpy().tobytes()) for name in model}


@pytest.mark.parametrize("case", [*RECORDED, *MADE, TENSORRT])
def test_every_command_reads_it(case: str, root: Path, tmp_path: Path) -> None:
    path = model_at(root, case)
    before: dict[str, Any] = contents(path)
    first = next(name for name, (shape, _) in before.items() if 0 not in shape)
    assert wb.identify(path)
    assert {tensor.name for tensor in wb.inspect(path).tensors} == set(before)
    assert wb.verify(path).ok
    assert wb.scan(path).scanned
    values = wb.get(f"{path}::{first}")  # of bf16, in f32
    assert values.shape == before[first][0]
    assert values.nbytes > len(before[first][1]) or values.tobytes() == before[first][1]
    wb.stats(path)
    wb.hash(path)
    page = tmp_path / "page.html"
    wb.export_view(path, page, values=True)
    assert first.rpartition(".")[2].encode() in page.read_bytes()
    page.unlink()
    wb.convert(path, tmp_path / "out.safetensors")
    assert contents(tmp_path / "out.safetensors") == before
    wb.convert(path, tmp_path / "small.safetensors", dtype="smallest-exact")
    assert contents(tmp_path / "small.safetensors").keys() == before.keys()
    assert {p.name for p in tmp_path.iterdir()} == {"out.safetensors", "small.safetensors"}


@pytest.mark.parametrize("case", [*RECORDED, TENSORRT])
def test_an_archive_with_it_is_read(case: str, root: Path, tmp_path: Path) -> None:
    path = model_at(root, case)
    folder = path if path.is_dir() else path.parent
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and (path.is_dir() or file.name.startswith(path.stem)):
                archive.write(file, Path("m") / file.relative_to(folder))
    inside = tmp_path / "m.zip"
    assert contents(inside if path.is_dir() else inside / "m" / path.name) == contents(path)


def test_data_next_to_a_header_is_counted(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/model.onnx").write_bytes(onnx_external("model.onnx.data"))
    (tmp_path / "m/model.onnx.data").write_bytes(bytes(24))
    (entry,) = wb.ls([tmp_path / "m"]).entries
    size = (tmp_path / "m/model.onnx").stat().st_size
    assert (entry.files, entry.bytes) == (2, size + 24)
