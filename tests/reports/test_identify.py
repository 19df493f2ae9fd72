"""Folders are what their files say together; names lie and are caught at it."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conformance import samples
from tests.containers import ggml_files
from tests.containers.framework_files import table
from tests.reports import makers as m

from weighbridge.containers import BUILT_IN, MISNAMED_UNLESS
from weighbridge.containers.formats import OCDBT_MANIFEST
from weighbridge.containers.sniff.probe import Identity
from weighbridge.io.source import FileSource
from weighbridge.reports.identify import FOLDERS, identify, name_lies
from weighbridge.unpickle.machine import Machine

WEIGHTS = m.safetensors({"model.norm.weight": ("F32", (4,))}, {"format": "pt"})
MLX = m.safetensors({"model.norm.weight": ("F32", (4,))}, {"format": "mlx"})
ZIP = m.zipped({"x/data.pkl": b"\x80\x02}.", "x/version": b"3\n"})
CONFIG = json.dumps(m.CONFIG).encode()
Files = dict[str, bytes]

SAVED_MODEL = m.field(1, 1) + m.field(2, m.field(1, b"x"))
CASES: list[tuple[str, Files, str]] = [
    ("hf-model", {"config.json": CONFIG, "model.safetensors": WEIGHTS}, ""),
    ("hf-model", {"config.json": CONFIG, "pytorch_model.bin": ZIP}, ""),
    ("mlx-model", {"config.json": CONFIG, "model.safetensors": MLX}, ""),
    ("mlx-model", {"config.json": json.dumps(m.CONFIG | {"quantization": {"bits": 4, "group_size": 64}}).encode(),
                   "model.safetensors": WEIGHTS}, "quantized"),
    ("peft-adapter", {"adapter_config.json": b'{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "x/y"}',
                      "adapter_model.safetensors": WEIGHTS}, "lora"),
    ("diffusers", {"model_index.json": b'{"_class_name": "FluxPipeline", "_diffusers_version": "1", "vae": ["a"]}',
                   "vae/diffusion_pytorch_model.safetensors": WEIGHTS}, "FluxPipeline"),
    ("comfyui", {"diffusion_models/flux.safetensors": WEIGHTS, "vae/ae.safetensors": WEIGHTS}, ""),
    ("sentence-transformers", {"config.json": CONFIG, "modules.json": b"[]", "model.safetensors": WEIGHTS}, ""),
    ("native-model", {"params.json": b'{"dim": 8, "n_layers": 2}', "consolidated.safetensors": WEIGHTS}, ""),
    ("gguf-folder", {"a.gguf": m.gguf({"general.type": ("str", "model")})}, ""),
    ("tf-savedmodel", {"saved_model.pb": SAVED_MODEL, "variables/variables.index": table([(b"", b"\x08\x01")])}, ""),
    ("tf-savedmodel-graph", {"saved_model.pb": SAVED_MODEL}, ""),
    ("torch-distributed", {".metadata": b"\x80\x02}.", "__0_0.distcp": ZIP}, ""),
    ("training-run", {"checkpoint-5/model.safetensors": WEIGHTS, "checkpoint-5/trainer_state.json": b"{}"},
     "transformers' Trainer"),
    ("deepspeed", {"mp_rank_00_model_states.pt": ZIP}, ""),
    ("megatron", {"mp_rank_00/model_optim_rng.pt": ZIP}, ""),
    ("nemo-folder", {"weights/.metadata": b"\x80\x02}.", "weights/__0_0.distcp": ZIP}, ""),
    ("orbax", {"_METADATA": b"{}", "manifest.ocdbt": OCDBT_MANIFEST}, ""),
    ("tensorrt-llm", {"config.json": b'{"mapping": {"tp_size": 1}}', "rank0.safetensors": WEIGHTS}, ""),
    ("oci-layout", {"oci-layout": b"{}", "index.json": b"{}", "blobs/x": b""}, "unreadable"),
    ("coreml-package", {"Manifest.json": b"{}", "Data/model.mlmodel": b"x"}, ""),
    ("weights", {"w.safetensors": WEIGHTS}, ""),
    ("folder", {"readme.md": b"hello"}, ""),
    ("folder", {"deep/model.safetensors": WEIGHTS}, ""),
    ("folder", {}, ""),
]  # fmt: skip


def make(folder: Path, files: Files) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(("kind", "files", "variant"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_folder_kinds(tmp_path: Path, kind: str, files: Files, variant: str) -> None:
    report = identify(make(tmp_path / "f", files))
    assert (report.format, report.variant, report.kind) == (kind, variant, "folder")
    assert report.evidence
    assert {line.name for line in report.files} == set(files)
    assert report.bytes == sum(map(len, files.values()))


def test_every_folder_kind_has_a_case() -> None:
    assert {kind.format for kind in FOLDERS} == {case[0] for case in CASES} - {"folder"} | {"hf-cache"}


@pytest.mark.parametrize("kind", FOLDERS, ids=lambda k: k.format)
def test_every_row_of_the_folder_table_is_needed(kind: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it its own case is told as something else."""
    monkeypatch.setattr("weighbridge.reports.identify.FOLDERS", tuple(k for k in FOLDERS if k is not kind))
    wanted = getattr(kind, "format", "")
    files = next((files for name, files, _ in CASES if name == wanted), None)
    folder = cache(tmp_path) if files is None else make(tmp_path / "f", files)
    assert identify(folder).format != wanted


def cache(tmp_path: Path) -> Path:
    repo = make(tmp_path / "models--org--name", {"blobs/aa": WEIGHTS, "blobs/bb": CONFIG, "refs/main": b"c0ffee"})
    snapshot = repo / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/aa")
    (snapshot / "config.json").symlink_to("../../blobs/bb")
    return repo


def test_cache_of_hugging_face(tmp_path: Path) -> None:
    repo = cache(tmp_path)
    report = identify(repo)
    assert report.format == "hf-cache"
    assert report.detail["repository"] == "org/name"
    assert report.detail["revision"] == "c0ffee"
    assert identify(report.detail["snapshot"]).format == "hf-model"


GOOD: dict[str, bytes | Callable[[], bytes]] = {
    "safetensors": WEIGHTS, "gguf": m.gguf({}), "torch-zip": ZIP, "html": m.PAGE, "git-lfs-pointer": m.POINTER,
    "json": b"{}", "onnx": m.field(1, 8) + m.field(7, m.field(1, b"n")),
}  # fmt: skip


@pytest.mark.parametrize("suffix", MISNAMED_UNLESS)
def test_a_suffix_that_lies(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model{suffix.upper()}"
    file.write_bytes(m.PAGE)
    report = identify(file)
    assert report.format == "html"
    assert report.name_lies is not None
    assert suffix in report.name_lies
    for kind in MISNAMED_UNLESS[suffix]:
        assert kind in BUILT_IN
        assert name_lies(f"x{suffix}", Identity(kind, "", "certain", (), {}, True, kind)) is None


@pytest.mark.parametrize(
    ("name", "kind"), [("model.safetensors", "gguf"), ("model.gguf", "safetensors"), ("m.pt", "html")]
)
def test_lies_of_one_format_about_another(tmp_path: Path, name: str, kind: str) -> None:
    data = GOOD[kind]
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data())
    assert BUILT_IN[kind].title in (identify(tmp_path / name).name_lies or "")


def test_a_folder_tells_the_damage_of_its_files(tmp_path: Path) -> None:
    folder = m.llama_folder(tmp_path / "m")
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    (folder / "extra.gguf").write_bytes(m.PAGE)
    report = identify(folder)
    assert report.format == "hf-model"
    assert report.confidence == "likely"
    assert [d for d in report.damage if d.startswith(file.name) and "truncated" in d]
    assert "extra.gguf" in (report.name_lies or "")


def test_odd_things_in_a_folder_are_lines_not_errors(tmp_path: Path) -> None:
    folder = make(tmp_path / "f", {"model.safetensors": WEIGHTS})
    (folder / "gone.bin").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    lines = {line.name: line for line in identify(folder).files}
    assert lines["gone.bin"].damage
    assert lines["pipe"].damage


def test_a_missing_path_is_the_systems_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        identify(tmp_path / "none")


def test_numpy_files_by_numpy(tmp_path: Path) -> None:
    out = io.BytesIO()
    np.save(out, np.ones(3))
    (tmp_path / "a.bin").write_bytes(out.getvalue())
    report = identify(tmp_path / "a.bin")
    assert report.format == "npy"
    assert report.name_lies


def test_identify_loads_no_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; from weighbridge.reports.identify import identify; identify(sys.argv[1]);"
        "assert 'numpy' not in sys.modules and 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(m.llama_folder(tmp_path / "m"))], check=True)


def hdf5(version: int, size: int) -> bytes:
    """A superblock that states `size`, and as many bytes."""
    width, end = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}[version]
    out = bytearray(max(size, 64))
    out[:9] = b"\x89HDF\r\n\x1a\n" + bytes((version,))
    out[width] = 8
    out[end : end + 8] = size.to_bytes(8, "little")
    return bytes(out)


WHOLE = {
    "model.gguf": m.gguf({"general.architecture": ("str", "llama")}, {"a": ("F32", (64, 64))}),
    "pytorch_model.bin": samples.torch_legacy(), "old.bin": ggml_files.llama("ggjt3"),
    **{f"v{version}.h5": hdf5(version, 4096) for version in range(4)},
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("lost", [1, 20])
def test_truncated_files_are_told(tmp_path: Path, name: str, lost: int) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_bytes(WHOLE[name])
    assert identify(tmp_path / "m" / name).damage == identify(tmp_path / "m").damage == ()
    (tmp_path / "m" / name).write_bytes(WHOLE[name][:-lost])
    assert identify(tmp_path / "m" / name).damage
    assert identify(tmp_path / "m").damage


@pytest.mark.parametrize("start", ["{{ bos_token }}", "{{- bos_token -}}\n{% for m in messages %}", "{# a template #}"])
def test_a_chat_template_is_no_damaged_json(tmp_path: Path, start: str) -> None:
    files = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "chat_template.jinja": start.encode()}
    report = identify(make(tmp_path / "m", files))
    assert (report.format, report.damage, report.confidence) == ("hf-model", (), "certain")


# ---- costs ----

#: Reads of a small file besides its first bytes: each step into an archive, each chunk of packed data is one.
READS = {"torch-tar": 40, "zipnn": 25, "ggml": 20, "flax": 20, "wbpack": 10}


@pytest.mark.parametrize("name", [name for name, format in BUILT_IN.items() if format.readable])
def test_a_small_file_is_opened_once_and_read_a_few_times(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that many files are identified at the rate of the system's calls."""
    calls: list[int] = []

    def counted(size: int) -> bool:
        calls.append(size)
        return False

    opened, read, head = FileSource.__init__, FileSource._readinto, FileSource.head
    monkeypatch.setattr(FileSource, "__init__", lambda self, path: counted(-1) or opened(self, path))
    monkeypatch.setattr(FileSource, "_readinto", lambda self, at, out: counted(len(out)) or read(self, at, out))
    monkeypatch.setattr(FileSource, "head", lambda self, size: counted(min(size, self.size)) or head(self, size))
    for number, data in enumerate(samples.samples(BUILT_IN[name])):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(data)
        calls.clear()
        found = identify(path)
        assert calls.count(-1) == 1 or not found.readable
        assert len(calls) - 1 <= READS.get(name, 8), calls
        assert sum(calls) <= (READS.get(name, 8) // 2) * len(data) + 2048, calls


def test_a_pickle_of_a_declared_protocol_runs_in_bursts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bursts: list[int] = []
    burst = Machine._burst

    def counted(machine: Machine) -> None:
        bursts.append(1)
        burst(machine)

    monkeypatch.setattr(Machine, "_burst", counted)
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({f"key{n}": [n, str(n)] for n in range(900)}, 4))
    assert identify(path).format == "pickle"
    assert len(bursts) < 100
    path.write_bytes(pickle.dumps(list(range(9000)), 4))  # the first opcodes are enough
    assert identify(path).format == "pickle"
    assert identify(path).damage == ()
