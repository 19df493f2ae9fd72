"""NeMo's archives and folders: read in place, joined over ranks; archives whose members lead out are refused."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers.megatron_cases import FOLDER, expected, unpack
from tests.containers.regions import check_regions

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.torch import nemo
from weighbridge.io.source import BytesSource

torch = pytest.importorskip("torch")

CONFIG = b"target: nemo.collections.asr.models.EncDecCTCModel\nencoder:\n  feat_in: 80\n"


def ckpt(tensors: Mapping[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, out)
    return out.getvalue()


def archive(path: Path, members: Mapping[str, bytes], mode: str = "w:", front: str = "./") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        folder = tarfile.TarInfo(".")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in members.items():
            info = tarfile.TarInfo(front + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def tensors(path: Path, **options: Any) -> dict[str, np.ndarray]:
    with wb.open(path, **options) as model:
        return {name: model[name].numpy() for name in model}


def same(found: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> bool:
    return found.keys() == right.keys() and all(
        (found[n].shape, found[n].tobytes()) == (a.shape, a.tobytes()) for n, a in right.items()
    )


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {f"encoder.layers.{n}.weight": rng.standard_normal((n + 2, 3)).astype(np.float32) for n in range(3)}


@pytest.mark.parametrize("front", ["./", ""])
@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_one_file_of_weights(tmp_path: Path, weights: dict[str, np.ndarray], front: str, format: int) -> None:
    members = {"model_config.yaml": CONFIG, "model_weights.ckpt": ckpt(weights), "0a_tokenizer.model": b"x" * 700}
    path = archive(tmp_path / "m.nemo", members, front=front)
    assert same(tensors(path), weights)
    assert (wb.identify(path).format, wb.identify(path).readable) == ("nemo", True)
    report = wb.inspect(path)
    assert {row.name for row in report.tensors} == weights.keys()
    assert report.metadata["model_config.yaml"].encode() == CONFIG
    assert (wb.verify(path, values=True).verdict, wb.verify(path).findings) == ("ok", ())
    assert wb.scan(path)
    assert wb.get(f"{path}::encoder.layers.1.weight").tobytes() == weights["encoder.layers.1.weight"].tobytes()
    wb.convert(path, tmp_path / "out.safetensors")
    assert same(tensors(tmp_path / "out.safetensors"), weights)
    kinds = {r.kind for r in check_regions(nemo.regions(BytesSource(path.read_bytes())), path.stat().st_size)}
    assert "unknown" not in kinds


def test_a_folder_has_one_archive(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    archive(tmp_path / "m.nemo", {"model_config.yaml": CONFIG, "model_weights.ckpt": ckpt(weights)})
    assert same(tensors(tmp_path), weights)


@pytest.mark.parametrize("run", ["tensor", "pipeline"])
def test_ranks_are_joined(tmp_path: Path, run: str) -> None:
    recorded = unpack(tmp_path / "recorded")
    folder, right = tmp_path / "folder", expected(recorded / f"{run}.npz")
    members: dict[str, bytes] = {}
    pipeline, tied = (1, "false") if run == "tensor" else (2, "true")
    settings = f"tensor_model_parallel_size: 2\npipeline_model_parallel_size: {pipeline} # stages\n"
    settings += f"share_embeddings_and_output_weights: {tied}\n"
    for path in sorted((recorded / run / FOLDER).iterdir()):
        saved = torch.load(path / "model_optim_rng.pt", weights_only=False)
        flat = {f"model.{name}": value for name, value in saved["model"].items() if value is not None}
        name = re.sub(r"mp_rank_(\d+)_(\d+)", r"tp_rank_\1_pp_rank_\2", path.name)
        out = io.BytesIO()
        torch.save(flat, out)
        members[f"{name}/model_weights.ckpt"] = out.getvalue()
    members["model_config.yaml"] = settings.encode()
    assert same(tensors(archive(tmp_path / "m.nemo", members)), right)
    for name, data in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    assert same(tensors(folder), right)
    assert wb.verify(folder).verdict == "ok"
    (tmp_path / "alone").mkdir()
    archive(tmp_path / "alone" / "m.nemo", members)
    assert same(tensors(tmp_path / "alone"), right)
    assert same(tensors(tmp_path / "alone", all_parts=True), right)
    lost = next(name for name in sorted(members) if name.endswith("ckpt"))
    cut = archive(tmp_path / "lost.nemo", {n: d for n, d in members.items() if n != lost})
    with pytest.raises(FormatError, match="no file of tensor-parallel rank 0"):
        wb.open(cut)
    assert "megatron/missing" in {f.rule for f in wb.verify(cut).findings}
    stray = re.sub(r"([tm])p_rank_\d+", r"\1p_rank_07", lost)
    more = archive(tmp_path / "more.nemo", {**members, stray: members[lost]})
    with pytest.raises(FormatError, match="of tensor-parallel rank 7"):
        wb.open(more)
    assert "megatron/mixed" in {f.rule for f in wb.verify(more).findings}
    assert wb.verify(tmp_path / "m.nemo").verdict == "ok"


def distributed(folder: Path, weights: Mapping[str, np.ndarray]) -> Path:
    import torch.distributed.checkpoint as dcp

    dcp.save({f"module.{name}": torch.from_numpy(array) for name, array in weights.items()}, checkpoint_id=folder)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_distributed_checkpoints(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    right = {f"module.{name}": array for name, array in weights.items()}
    folder = tmp_path / "model--val_loss=1.50-step=99-consumed_samples=400.0"
    parts = distributed(folder / "weights", weights)
    (folder / "context").mkdir()
    (folder / "context" / "model.yaml").write_text("_target_: nemo.collections.llm.gpt.model.llama.LlamaModel\n")
    assert same(tensors(folder), right)
    assert (wb.identify(folder).format, wb.identify(folder).readable) == ("nemo-folder", True)
    assert same(tensors(tmp_path), right)  # as the run's newest step
    assert same(tensors(tmp_path, step=99), right)
    assert wb.verify(folder).verdict == "ok"
    members = {f"model_weights/{path.name}": path.read_bytes() for path in parts.iterdir()}
    path = archive(tmp_path / "m.nemo", {"model_config.yaml": CONFIG, **members})
    assert same(tensors(path), right)
    assert {row.name for row in wb.inspect(path).tensors} == right.keys()
    assert wb.verify(path).verdict == "ok"
    lost = {name: data for name, data in members.items() if not name.endswith(".distcp")}
    cut = archive(tmp_path / "lost.nemo", {"model_config.yaml": CONFIG, **lost})
    with pytest.raises(FormatError, match="a data file is missing"):
        wb.open(cut)
    assert wb.verify(cut).verdict == "failed"
    listed = members["model_weights/.metadata"]
    outside = {**members, "model_weights/.metadata": listed.replace(b"__0_0.distcp", b"../../passwd")}
    evil = archive(tmp_path / "evil.nemo", {"model_config.yaml": CONFIG, **outside})
    with pytest.raises(FormatError, match="passwd"):
        wb.open(evil)
    assert any("passwd" in f.message for f in wb.verify(evil).findings if f.severity == "error")


def _link(kind: bytes, target: str) -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("model_weights.ckpt")
        info.type, info.linkname = kind, target
        tar.addfile(info)

    return add


def _member(name: str, count: int = 1) -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        for _ in range(count):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))

    return add


HOSTILE = {
    "parent": (_member("../evil.ckpt"), "leads out"),
    "inner parent": (_member("a/../../evil.ckpt"), "leads out"),
    "absolute": (_member("/etc/evil"), "leads out"),
    "drive": (_member("C:\\evil"), "leads out"),
    "symbolic link": (_link(tarfile.SYMTYPE, "/etc/passwd"), "leads out"),
    "hard link": (_link(tarfile.LNKTYPE, "model_config.yaml"), "leads out"),
    "device": (_link(tarfile.CHRTYPE, ""), "leads out"),
    "twice": (_member("model_weights.ckpt", 2), "one name"),
    "no weights": (_member("other"), "no weights"),
    "no zip": (_member("model_weights.ckpt"), "model_weights.ckpt"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives(tmp_path: Path, case: str) -> None:
    add, message = HOSTILE[case]
    path = archive(tmp_path / "m.nemo", {"model_config.yaml": CONFIG})
    with tarfile.open(path, "a:") as tar:
        add(tar)
    with pytest.raises(FormatError, match=message):
        wb.open(path)
    assert wb.verify(path).verdict == "failed"
    with pytest.raises(FormatError):
        wb.convert(path, tmp_path / "out.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.nemo"]


def test_compressed_archives_name_the_next_step(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    members = {"model_config.yaml": CONFIG, "model_weights.ckpt": ckpt(weights)}
    with pytest.raises(UnsupportedError, match="gzip -dc"):
        wb.open(archive(tmp_path / "m.nemo", members, "w:gz"))
    zarr = archive(tmp_path / "z.nemo", {"model_config.yaml": CONFIG, "model_weights/w/.zarray": b"{}"})
    with pytest.raises(UnsupportedError, match="zarr"):
        wb.open(zarr)


def test_a_hostile_pickle_is_found(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "made",)

    out = io.BytesIO()
    torch.save({"w": torch.zeros(2), "x": Evil()}, out)
    path = archive(tmp_path / "m.nemo", {"model_config.yaml": CONFIG, "model_weights.ckpt": out.getvalue()})
    assert not wb.scan(path)
    assert list(tensors(path)) == ["w"]
    assert not (tmp_path / "made").exists()
