"""What is on this machine: listed, counted once, compared, shared; never deleted."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.remote.test_stores_of_others import store
from tests.reports.makers import llama_folder

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import main
from weighbridge.io.sink import share
from weighbridge.reports.stores.duplicates import dedupe, usage
from weighbridge.reports.stores.listing import list_models

COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def hub_cache(root: Path, name: str = "org--model", commit: str = COMMIT) -> Path:
    """A repository as huggingface_hub keeps it: blobs by their digests, snapshots of links."""
    repository = root / f"models--{name}"
    for part in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / part).mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    made = llama_folder(root.parent / f"made-{name}", shards=1)
    for path in made.iterdir():
        data = path.read_bytes()
        blob = repository / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        link = repository / "snapshots" / commit / path.name
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(blob, link.parent))
        path.unlink()
    made.rmdir()
    return repository


def test_every_store_is_listed(home: Path) -> None:
    hub_cache(home / ".cache" / "huggingface" / "hub")
    store(home / ".ollama" / "models")
    llama_folder(home / ".lmstudio" / "models" / "publisher" / "tiny", shards=2)
    found = {(e.store, e.name, e.address) for e in list_models().entries}
    assert found == {
        ("hub", "org/model", "hf://org/model"),
        ("ollama", "llama3.2:3b", "ollama://llama3.2:3b"),
        ("lmstudio", "publisher/tiny", "lmstudio://publisher/tiny"),
    }
    model = next(e for e in list_models().entries if e.store == "hub")
    assert (model.format, model.parameters, model.architecture) == ("safetensors", 1704, "LlamaForCausalLM")


def test_what_is_listed_opens_by_its_address(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(home / ".ollama" / "models")
    llama_folder(home / ".lmstudio" / "models" / "publisher" / "tiny", shards=2)
    for entry in list_models().entries:
        assert main(["hash", entry.address]) == 0


def test_one_model_of_ollama_s_is_listed_under_its_name(home: Path) -> None:
    store(home / ".ollama" / "models")
    (whole,) = [entry for entry in list_models().entries if entry.store == "ollama"]
    for address in (whole.address, whole.address.removesuffix(":3b") + ":3b"):
        assert list_models([address]).entries == (whole,)


def test_shared_blobs_count_once(home: Path) -> None:
    root = home / ".cache" / "huggingface" / "hub"
    hub_cache(root)
    size = list_models().bytes
    hub_cache(root, commit="b" * 40)  # the same blobs
    report = list_models()
    assert len(report.entries) == 2
    assert report.bytes == size


@pytest.mark.parametrize("ref", [COMMIT, "../../..", "b" * 40, "", "x" * 1000])
def test_a_repository_s_folder_of_the_cache_opens_by_its_ref(ref: str, home: Path) -> None:
    repository = hub_cache(home / "hub")
    (repository / "refs" / "main").write_text(ref)
    if ref == COMMIT:
        with wb.open(repository) as model:
            assert len(model) == 21
    else:
        with pytest.raises(UsageError, match="holds no weights"):
            wb.open(repository)


@pytest.mark.parametrize("sort", ["name", "size:desc", "used", "params", "format", "store:asc"])
def test_orders(sort: str, tmp_path: Path) -> None:
    llama_folder(tmp_path / "models" / "b", shards=1)
    llama_folder(tmp_path / "models" / "a", shards=2)
    names = [e.name for e in list_models([tmp_path / "models"], sort=sort).entries]
    assert sorted(names) == ["a", "b"]
    if sort == "name":
        assert names == ["a", "b"]
    if sort == "size:desc":
        assert names == ["a", "b"]  # an index more


def test_filters_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama_folder(tmp_path / "models" / "wanted")
    llama_folder(tmp_path / "models" / "other")
    assert main(["ls", str(tmp_path / "models"), "--include", "want*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [e["name"] for e in found["entries"]] == ["wanted"]
    assert found["entries"][0]["bytes"] == found["bytes"]
    assert main(["ls", str(tmp_path / "models"), "--include", "none"]) == 1
    assert main(["ls", str(tmp_path / "models"), "--sort", "colour"]) == 2
    assert main(["ls", str(tmp_path / "nothing")]) == 2


def test_a_broken_model_is_listed_with_its_trouble(tmp_path: Path) -> None:
    folder = llama_folder(tmp_path / "models" / "m", shards=1)
    (folder / "model.safetensors").write_bytes(b"{" * 100)
    (entry,) = list_models([tmp_path / "models"]).entries
    assert entry.trouble


# ---------------------------------------------------------------- du


def twins(folder: Path, size: int = 2 << 20) -> tuple[Path, Path]:
    data = random.Random(size).randbytes(size)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("a.bin", "b.bin"):
        (folder / name).write_bytes(data)
    return folder / "a.bin", folder / "b.bin"


def test_duplicates_leftovers_and_orphans(home: Path) -> None:
    repository = hub_cache(home / ".cache" / "huggingface" / "hub")
    (repository / "blobs" / ("e" * 64)).write_bytes(b"orphan")
    (repository / "blobs" / f"{'f' * 64}.12345678.incomplete").write_bytes(b"half")
    a, _ = twins(home / ".lmstudio" / "models")
    report = usage()
    assert {(leftover.kind, leftover.bytes) for leftover in report.leftovers} == {
        ("orphan", 6), ("interrupted download", 4),
    }  # fmt: skip
    (duplicate,) = report.duplicates
    assert (duplicate.wasted, len(duplicate.paths)) == (a.stat().st_size, 2)
    assert {row.store for row in report.usage} == {"hub", "lmstudio"}


def test_stores_in_a_folder_are_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below a folder that is named, a store's blobs are its models', not orphans."""
    hub_cache(tmp_path / "all" / ".cache" / "huggingface" / "hub")
    store(tmp_path / "all" / "ollama")
    llama_folder(tmp_path / "all" / "mine" / "tiny")
    assert {(e.store, e.name) for e in list_models([tmp_path / "all"]).entries} == {
        ("hub", "org/model"), ("ollama", "llama3.2:3b"), ("folder", "mine/tiny"),
    }  # fmt: skip
    report = usage([tmp_path / "all"])
    assert report.leftovers == ()
    assert {row.store for row in report.usage} == {"folder", "hub", "ollama"}
    assert sum(row.bytes for row in report.usage) == report.bytes
    (tmp_path / "all" / "ollama" / "blobs" / f"sha256-{'e' * 64}").write_bytes(b"orphan")
    assert [leftover.kind for leftover in usage([tmp_path / "all"]).leftovers] == ["orphan"]


def test_one_model_in_several_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models"
    wb.convert(llama_folder(tmp_path / "made", shards=1), models / "a" / "model.safetensors", dtype="f16", parents=True)
    wb.convert(models / "a", models / "b" / "x.pt", parents=True)
    wb.convert(models / "a", models / "c" / "model.safetensors", dtype="bf16", parents=True)
    tensors = load_file(models / "a" / "model.safetensors")
    name = next(iter(tensors))
    (models / "d").mkdir()
    save_file(tensors | {name: tensors[name] + 1}, models / "d" / "model.safetensors")
    for path in models.iterdir():
        shutil.copy(tmp_path / "made" / "config.json", path)
    (forms,) = usage([models]).forms
    assert dict(zip(forms.names, forms.types, strict=True)) == {"a": "F16", "b": "F16", "c": "BF16", "d": "F16"}
    assert forms.same == (("a", "b"),)
    assert main(["du", str(models)]) == 0
    assert "the same tensors: a, b" in capsys.readouterr().out


def test_values_that_are_stored_wider_than_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.random.default_rng(0).standard_normal((600, 512)).astype("f4")
    for name, array in {"wide": values.astype("f2").astype("f4"), "full": values}.items():
        wb.save({"w": array}, tmp_path / name / "model.safetensors", parents=True)
    (wider,) = usage([tmp_path]).wider
    assert (wider.name, wider.spare) == ("wide", values.nbytes // 2)
    assert main(["du", str(tmp_path)]) == 0
    assert "wider than their values, by samples: 614.4 kB less" in capsys.readouterr().out


def test_files_of_one_size_and_other_bytes_are_no_duplicates(tmp_path: Path) -> None:
    a, b = twins(tmp_path / "m")
    b.write_bytes(b"?" + a.read_bytes()[1:])
    assert usage([tmp_path / "m"]).duplicates == ()


def test_names_of_one_file_are_no_duplicates(tmp_path: Path) -> None:
    a, b = twins(tmp_path / "m")
    b.unlink()
    b.hardlink_to(a)
    assert usage([tmp_path / "m"]).duplicates == ()


# ---------------------------------------------------------------- dedupe


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    a, b = twins(tmp_path / "m")
    assert dedupe([tmp_path / "m"], hard_link=True, dry_run=True).freed == a.stat().st_size
    assert a.stat().st_ino != b.stat().st_ino


def test_hard_links_keep_the_bytes(tmp_path: Path) -> None:
    a, b = twins(tmp_path / "m")
    data = b.read_bytes()
    report = dedupe([tmp_path / "m"], hard_link=True)
    assert {row.how for row in report.shared} <= {"hard link", "reflink"}
    assert (a.read_bytes(), b.read_bytes()) == (data, data)
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["a.bin", "b.bin"]


def test_bytes_that_differ_are_never_linked(tmp_path: Path) -> None:
    """A store may call a file by a digest that its bytes no longer have."""
    blobs = tmp_path / "ollama" / "blobs"
    other = tmp_path / "other" / "blobs"
    for folder, data in ((blobs, b"a"), (other, b"b")):
        folder.mkdir(parents=True)
        (folder / f"sha256-{'c' * 64}").write_bytes(data * (1 << 20))
    report = dedupe([tmp_path], hard_link=True)
    assert [row.how for row in report.shared] == ["not shared"]
    assert (other / f"sha256-{'c' * 64}").read_bytes() == b"b" * (1 << 20)


@pytest.mark.parametrize(
    ("answer", "how", "why"),
    [
        ("shares", "reflink", ""),
        (errno.EOPNOTSUPP, "not shared", "--hard-link"),
        (errno.ENOTTY, "not shared", "--hard-link"),
        (errno.EIO, "not shared", "nput/output"),
        ("differs", "not shared", "differ"),
        ("refuses", "not shared", "--hard-link"),
    ],
)
def test_what_the_kernel_answers(
    answer: object, how: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = twins(tmp_path / "m")

    def ioctl(fd: int, request: int, data: bytearray) -> int:
        assert request == 0xC0189436
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        status = {"shares": 0, "differs": 1, "refuses": -errno.EINVAL}[str(answer)]
        struct.pack_into("=Qi", data, 40, struct.unpack_from("=Q", data, 8)[0], status)
        return 0

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    found = share.share(a, b, hard_link=False, dry_run=False)
    assert found.how == how
    assert why in found.why


def test_dedupe_asks_before_it_changes_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = twins(tmp_path / "m")
    assert main(["dedupe", str(tmp_path / "m"), "--hard-link"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert a.stat().st_ino != b.stat().st_ino
    assert main(["dedupe", str(tmp_path / "m"), "--hard-link", "--yes"]) == 0
    assert main(["du", str(tmp_path / "m")]) == 0
