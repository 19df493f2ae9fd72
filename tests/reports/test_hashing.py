"""Digests: equal to other tools', the same in every container, red where a byte, a name, a type or a shape differs."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import system
from tests.reports.makers import llama_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.reports.hash import checksum_files, digests

TENSORS: dict[str, Any] = {
    "w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(4, np.float16), "i": np.arange(3),
    "e": np.zeros((0, 2), np.float32), "s": np.array(2.5),
}  # fmt: skip


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "m.npz"
    np.savez(path, **TENSORS)
    return path


def weights(path: Path, algo: str = "sha256") -> str:
    (model,) = wb.hash(path, algo=algo, tensors=True).models
    return model.digest


# ---- tensors --------------------------------------------------------------------------------------------------


def test_a_tensors_digest_is_what_the_docs_say(npz: Path) -> None:
    (model,) = wb.hash(npz, tensors=True).models
    text = {"w": "F32[3,4]", "b": "F16[4]", "i": "I64[3]", "e": "F32[0,2]", "s": "F64[]"}
    expected = {
        name: hashlib.sha256(f"weighbridge/tensor/1\n{text[name]}\n".encode() + array.tobytes()).hexdigest()
        for name, array in TENSORS.items()
    }
    assert {t.name: t.digest for t in model.tensors} == expected
    lines = "".join(f"{expected[name]}  {name}\n" for name in sorted(expected))
    assert model.digest == hashlib.sha256(lines.encode()).hexdigest()


def test_it_is_the_same_in_every_container(tmp_path: Path, npz: Path) -> None:
    for target in ("a.safetensors", "b.pt", "shards"):
        to = "safetensors" if target == "shards" else None
        wb.convert(npz, tmp_path / target, to=to, max_shard_size=40 if to else None)
        assert weights(tmp_path / target) == weights(npz)
    np.savez_compressed(tmp_path / "c.npz", **dict(reversed(TENSORS.items())))
    assert weights(tmp_path / "c.npz") == weights(npz)
    turned = {n: a.astype(a.dtype.newbyteorder(">")) for n, a in TENSORS.items()}
    np.savez(tmp_path / "d.npz", **turned)
    assert weights(tmp_path / "d.npz") == weights(npz)


def test_a_view_is_hashed_as_the_tensor_that_it_is(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(12.0).reshape(3, 4)
    torch.save({"w": base, "t": base.t(), "bf": base.bfloat16()}, tmp_path / "views.pt")
    torch.save({"w": base, "t": base.t().contiguous(), "bf": base.bfloat16()}, tmp_path / "plain.pt")
    assert weights(tmp_path / "views.pt") == weights(tmp_path / "plain.pt")


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a byte": lambda t: {**t, "w": t["w"] + np.eye(3, 4, dtype=np.float32)},
    "a shape": lambda t: {**t, "w": t["w"].reshape(4, 3)},
    "an empty shape": lambda t: {**t, "e": t["e"].reshape(2, 0)},
    "a type": lambda t: {**t, "w": t["w"].view(np.int32)},
    "a name": lambda t: {"x" if n == "w" else n: a for n, a in t.items()},
    "one less": lambda t: {n: a for n, a in t.items() if n != "i"},
    "two changed places": lambda t: {**t, "w": t["x2"], "x2": t["w"]},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_seen(tmp_path: Path, change: str) -> None:
    tensors = {**TENSORS, "x2": TENSORS["w"] * 2}
    np.savez(tmp_path / "a.npz", **tensors)
    np.savez(tmp_path / "b.npz", **CHANGES[change](tensors))
    assert weights(tmp_path / "a.npz") != weights(tmp_path / "b.npz")


# ---- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", digests.ALGORITHMS)
def test_files(tmp_path: Path, algo: str) -> None:
    module = {"blake3": "blake3", "xxh3": "xxhash", "xxh64": "xxhash"}.get(algo)
    one = pytest.importorskip(module) if module else hashlib
    make = {"xxh3": "xxh3_128"}.get(algo, algo)
    data = bytes(range(256)) * 40_000  # more than two reads
    for content in (data, b"", b"x"):
        (tmp_path / "f").write_bytes(content)
        (found,) = wb.hash(tmp_path / "f", algo=algo).files
        assert (found.digest, found.bytes) == (getattr(one, make)(content).hexdigest(), len(content))
    (tmp_path / "f").write_bytes(data)
    assert len(weights_of_any(tmp_path, algo)) == len(found.digest)


def weights_of_any(tmp_path: Path, algo: str) -> str:
    np.savez(tmp_path / "any.npz", **TENSORS)
    return weights(tmp_path / "any.npz", algo)


def test_gits_name_of_a_blob(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"hello\n")
    assert wb.hash(tmp_path / "f", algo="git").files[0].digest == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_a_folder_in_its_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden", ".cache/x", "sub/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [Path(f.path).relative_to(tmp_path).as_posix() for f in wb.hash(tmp_path).files] == ["a", "b", "sub/c"]


def test_what_is_not_installed_is_said(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(UnsupportedError, match=r"weighbridge\[hash\]"):
        wb.hash(npz, algo="blake3")
    with pytest.raises(UsageError, match="unknown digest"):
        wb.hash(npz, algo="crc")


# ---- llama-gguf-hash ------------------------------------------------------------------------------------------


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    package = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    writer = package.GGUFWriter(path, "llama")
    rng = np.random.default_rng(1)
    for i in range(4):
        writer.add_tensor(f"blk.{i}.x.weight", rng.standard_normal((3, 64)).astype(np.float32))
    blocks = package.quants.quantize(rng.standard_normal((4, 64)).astype(np.float32), package.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q.weight", blocks, raw_dtype=package.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.oracle
def test_the_lines_are_those_of_the_reference(gguf: Path) -> None:
    from gguf import GGUFReader
    from gguf.scripts.gguf_hash import gguf_hash

    with redirect_stdout(io.StringIO()) as out:
        gguf_hash(GGUFReader(gguf, "r"), str(gguf), True, False)
    ours = [str(line) for line in digests.gguf_hash(gguf, ["sha1", "sha256", "uuid"])]
    assert ours == out.getvalue().splitlines()


def test_xxh64_of_tensors(gguf: Path) -> None:
    xxhash = pytest.importorskip("xxhash")
    lines = digests.gguf_hash(gguf, ["xxh64"])
    with wb.open(gguf) as model:
        data = [model[name].raw() for name in model]
    assert [line.digest for line in lines] == [xxhash.xxh64(d).hexdigest() for d in (*data, b"".join(data))]
    assert str(lines[0]).startswith("xxh64     ")


# ---- lists ----------------------------------------------------------------------------------------------------


def status(report: checksum_files.CheckReport) -> list[tuple[str, str]]:
    return [(r.name, r.status) for r in report.results]


def test_sha256sum_reads_what_is_printed_and_we_what_it_prints(
    tmp_path: Path, npz: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256sum = system.require("sha256sum")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("x")
    assert main(["hash", "m.npz", "x.txt"]) == 0
    (tmp_path / "SHA256SUMS").write_text(capsys.readouterr().out)
    judged = subprocess.run([sha256sum, "-c", "SHA256SUMS"], capture_output=True, text=True)
    assert judged.stdout == "m.npz: OK\nx.txt: OK\n"
    theirs = subprocess.run([sha256sum, "--tag", "m.npz", "x.txt"], capture_output=True, text=True).stdout
    (tmp_path / "tagged").write_text(theirs)
    for manifest in ("SHA256SUMS", "tagged"):
        assert main(["hash", "--check", manifest]) == 0
        (tmp_path / "x.txt").write_text("y")
        assert main(["hash", "--check", manifest]) == 1
        assert status(checksum_files.check(Path(manifest))) == [("m.npz", "ok"), ("x.txt", "mismatch")]
        (tmp_path / "x.txt").unlink()
        assert main(["hash", "--check", manifest, "--json"]) == 1
        (tmp_path / "x.txt").write_text("x")


def test_our_own_list(tmp_path: Path, npz: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "m.json"
    assert main(["hash", str(npz), "--tensors", "--manifest", str(manifest)]) == 0
    assert main(["hash", str(npz), "--manifest", str(manifest)]) == 2
    wb.convert(npz, tmp_path / "m.safetensors")
    assert main(["hash", "--check", str(manifest), str(tmp_path / "m.safetensors")]) == 0
    assert "6 ok, 0 differ, 0 missing" in capsys.readouterr().out
    np.savez(npz, **{**TENSORS, "w": TENSORS["w"] + 1, "z": np.ones(1)})
    found = dict(status(checksum_files.check(manifest)))
    assert found.pop(str(npz)) == found.pop(f"{npz}:w") == "mismatch"
    assert set(found.values()) == {"ok"}
    np.savez(npz, w=TENSORS["w"])
    assert checksum_files.check(manifest).missing == 4


def test_a_list_of_llama_gguf_hash(gguf: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "m.manifest"
    lines = [line for algo in ("sha1", "sha256", "uuid") for line in digests.gguf_hash(gguf, [algo])]
    manifest.write_text("\n".join(str(line).replace(str(gguf), "m.gguf") for line in lines))
    report = checksum_files.check(manifest)
    assert (report.form, report.ok, len(report.results)) == ("llama-gguf-hash", 13, 13)
    with wb.open(gguf) as model:
        at = model.source.index["q.weight"].offset
    data = bytearray(gguf.read_bytes())
    data[at] ^= 1
    gguf.write_bytes(data)
    wrong = {r.name for r in checksum_files.check(manifest).results if r.status == "mismatch"}
    assert wrong == {"m.gguf", "m.gguf:q.weight"}


def test_what_stores_call_files(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"data").hexdigest()
    git = hashlib.sha1(b"blob 4\0data").hexdigest()
    hub = tmp_path / "hub" / "snapshots" / "r"
    blobs = tmp_path / "hub" / "blobs"
    for folder in (hub, blobs, tmp_path / "ollama" / "blobs", tmp_path / "ollama" / "manifests" / "x" / "y"):
        folder.mkdir(parents=True)
    for name in (digest, git):
        (blobs / name).write_bytes(b"data")
        (hub / f"{name[:4]}.safetensors").symlink_to(blobs / name)
    assert main(["hash", "--check", str(hub)]) == 0
    (blobs / git).write_bytes(b"Data")
    assert main(["hash", "--check", str(hub)]) == 1
    (tmp_path / "ollama" / "blobs" / f"sha256-{digest}").write_bytes(b"data")
    layer = {"digest": f"sha256:{digest}", "size": 4}
    manifest = tmp_path / "ollama" / "manifests" / "x" / "y" / "latest"
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": layer, "layers": [layer]}))
    assert checksum_files.check(manifest).ok == 2
    assert main(["hash", "--check", str(tmp_path / "ollama" / "blobs")]) == 0
    pointer = tmp_path / "pointer"
    pointer.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 4\n")
    (tmp_path / "real").write_bytes(b"data")
    assert main(["hash", "--check", str(pointer), str(tmp_path / "real")]) == 0
    assert main(["hash", "--check", str(pointer), str(blobs / git)]) == 1
    local = tmp_path / "local" / ".cache" / "huggingface" / "download"
    local.mkdir(parents=True)
    (tmp_path / "local" / "w.bin").write_bytes(b"data")
    (local / "w.bin.metadata").write_text(f"{'a' * 40}\n{digest}\n1700000000.0\n")
    assert checksum_files.check(local / "w.bin.metadata").ok == 1
    with pytest.raises(UsageError, match="no file name contains a digest"):
        checksum_files.digests_in_names([tmp_path / "real"])


@pytest.mark.parametrize(
    "text",
    ["", "hello", "{}", "[1]",
     '{"schema":"weighbridge/hash/1","files":[{}]}', '{"schema":"weighbridge/hash/1","files":[1]}',
     '{"layers":[{"digest":5}]}', "ab12  file", f"{'0' * 33}  file", "NOPE (x) = 0123456789abcdef0123456789abcdef",
     f"{'0' * 64}  ok\nrubbish", "\udcff", '{"schema":"weighbridge/hash/1","files":5}'],
)  # fmt: skip
def test_what_is_no_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "m").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError):
        checksum_files.check(tmp_path / "m")


@pytest.mark.mutation
@pytest.mark.parametrize("form", [name for name, _ in checksum_files.FORMS])
def test_every_form_is_needed(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum_files, "FORMS", tuple(row for row in checksum_files.FORMS if row[0] != form))
    digest = hashlib.sha256(b"data").hexdigest()
    own = {"path": "f", "algo": "sha256", "digest": digest}
    samples = {
        "weighbridge": json.dumps({"schema": "weighbridge/hash/1", "files": [own]}),
        "ollama": json.dumps({"layers": [{"digest": f"sha256:{digest}"}]}),
        "git-lfs pointer": f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\n",
        "hub metadata": f"{'a' * 40}\n{digest}\n1.0\n",
        "llama-gguf-hash": f"sha256    {digest}  m.gguf",
        "checksums": f"{digest}  f",
        "checksums (BSD)": f"SHA256 (f) = {digest}",
    }  # fmt: skip
    path = tmp_path / "m.metadata"
    path.write_text(samples[form])
    with pytest.raises(FormatError):
        checksum_files.read_manifest(path)
    monkeypatch.undo()
    assert checksum_files.read_manifest(path)[0] == form


@pytest.mark.parametrize("tensors", [False, True])
def test_progress_counts_every_byte_once(tensors: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weighbridge.io.digest._CHUNK", 1000)
    folder, seen = llama_folder(tmp_path / "m"), list[tuple[int, int, str]]()
    report = wb.hash(folder, tensors=tensors, jobs=3, progress=lambda *now: seen.append(now))
    items = report.models[0].tensors if tensors else report.files
    total = sum(item.bytes for item in items)
    done = [now[0] for now in seen]
    assert done == sorted(done)
    assert seen[-1][:2] == (total, total)
    assert {now[1] for now in seen} == {total}
    assert len({now[2] for now in seen}) == len(items)
    assert len(seen) > len(items) or tensors
