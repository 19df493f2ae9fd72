"""OCI layouts, Docker's and KitOps' models: every command reads the model in them; hostile ones are named errors."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.layout_files import (
    FILEPATH,
    LAYOUTS,
    OCI_INDEX,
    OCI_MANIFEST,
    TITLE,
    Blobs,
    Layer,
    Parts,
    tagged,
    tarred,
    write,
)

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.io.location import open_source
from weighbridge.models import archives

TENSORS = {"a.weight": np.arange(6, dtype="f4").reshape(2, 3), "b.weight": np.ones((4, 600), "f4")}
ARCH = {"general.architecture": "my-model"}
CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}).encode()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("parts")
    wb.save(TENSORS, folder / "m.safetensors")
    wb.save(TENSORS, folder / "m.gguf", metadata=ARCH)
    wb.save(TENSORS, folder / "s.gguf", metadata=ARCH, max_shard_tensors=1)
    splits = [path.read_bytes() for path in sorted(folder.glob("**/s-*.gguf"))]
    assert len(splits) == 2
    return Parts((folder / "m.gguf").read_bytes(), tuple(splits), (folder / "m.safetensors").read_bytes(), CONFIG)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No tree of another test is kept."""
    archives._roots.clear()
    yield
    archives._roots.clear()


def as_folder(files: dict[str, bytes], place: Path) -> Path:
    return write(files, place / "layout")


def as_tar(files: dict[str, bytes], place: Path) -> Path:
    path = place / "layout.tar"
    path.write_bytes(tarred(files))
    return path


def as_deep_tar(files: dict[str, bytes], place: Path) -> Path:
    path = place / "deep.tar.gz"
    path.write_bytes(gzip.compress(tarred({f"saved/{name}": data for name, data in files.items()})))
    return path


FORMS: dict[str, Callable[[dict[str, bytes], Path], Path]] = {
    "folder": as_folder, "tar": as_tar, "deep-tar": as_deep_tar
}  # fmt: skip


def same(path: Path | str) -> bool:
    with wb.open(path) as model:
        return sorted(model) == sorted(TENSORS) and all((model[n].numpy() == TENSORS[n]).all() for n in TENSORS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_command_reads_the_model_inside(name: str, form: str, parts: Parts, tmp_path: Path) -> None:
    path = FORMS[form](LAYOUTS[name](parts), tmp_path)
    assert same(path)
    report = wb.inspect(path)
    assert report.tensor_count == 2
    assert any(str(path) in note.message for note in report.notes if note.rule == "file/wrapped")
    assert wb.verify(path).ok
    assert wb.get(f"{path}::a.weight").tolist() == [[0, 1, 2], [3, 4, 5]]
    wb.convert(path, tmp_path / "out.safetensors")
    assert same(tmp_path / "out.safetensors")
    found = wb.identify(path)
    assert found.readable, found
    assert "inside" in found.detail
    scanned = wb.scan(path)
    assert (scanned.verdict, scanned.complete) == ("data-only", True), scanned


@pytest.mark.costly
@pytest.mark.parametrize("form", FORMS)
def test_views_and_loads(form: str, parts: Parts, tmp_path: Path) -> None:
    path = FORMS[form](LAYOUTS["modelkit"](parts), tmp_path)
    assert main(["-q", "view", str(path), "-o", str(tmp_path / "page.html")]) == 0
    assert b"b.weight" in (tmp_path / "page.html").read_bytes()
    torch = pytest.importorskip("torch")
    module = torch.nn.Module()
    for name, array in TENSORS.items():
        child = torch.nn.Module()
        child.weight = torch.nn.Parameter(torch.zeros(array.shape))
        module.add_module(name.removesuffix(".weight"), child)
    wb.load(path, into=module)
    assert all((module.state_dict()[name].numpy() == array).all() for name, array in TENSORS.items())


@pytest.mark.parametrize("name", LAYOUTS)
def test_reports_name_the_kind_and_the_files(name: str, parts: Parts, tmp_path: Path) -> None:
    path = as_folder(LAYOUTS[name](parts), tmp_path)
    kind = next((kind for start, kind in KINDS.items() if name.startswith(start)), "artifact")
    assert wb.identify(path).variant == kind
    (note,) = [n.message for n in wb.inspect(path).notes if n.message.startswith("read from inside")]
    assert f": {kind} with " in note


KINDS = {
    "docker": "model of Docker's model runner", "modelkit": "ModelKit of KitOps", "modelpack": "ModelPack",
    "ollama": "model of Ollama", "image": "container image", "platforms": "container image",
}  # fmt: skip


def test_files_have_the_names_that_loaders_know(parts: Parts, tmp_path: Path) -> None:
    for name, files in {
        "docker": {"model.gguf", "LICENSE", "chat_template.jinja"},
        "docker-splits": {"model-00001-of-00002.gguf", "model-00002-of-00002.gguf"},
        "docker-safetensors": {"model.safetensors", "config.json"},
        "docker-files": {"text_encoder"},
        "modelkit": {"model.safetensors", "config.json", "README.md"},
        "image": {"models"},
        "ollama": {"model.gguf", "params", "LICENSE"},
        "empty layer": {"model.gguf"},
    }.items():
        path = as_folder(LAYOUTS[name](parts), tmp_path / name)
        assert {entry.name for entry in archives.member(path / "latest").iterdir()} == files
    assert {p.name for p in archives.member(tmp_path / "image" / "layout" / "latest" / "models").iterdir()} == {
        "model.safetensors", "config.json"
    }  # fmt: skip


def test_stored_layers_are_read_in_place(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", None)
    for name in ("docker", "modelpack", "sha512", "docker-safetensors"):
        for form in (as_folder, as_tar):
            place = tmp_path / f"{name}-{form.__name__}"
            place.mkdir()
            path = form(LAYOUTS[name](parts), place)
            assert same(path)
            source = archives.resolve(path)
            with open_source(next(source.glob("*.*")) if source.is_dir() else source) as opened:
                assert opened.location(0) is not None


def test_a_data_set_is_left_out(parts: Parts, tmp_path: Path) -> None:
    path = as_folder(LAYOUTS["modelkit"](parts), tmp_path)
    (note,) = [n.message for n in wb.inspect(path).notes if "left out" in n.message]
    assert "(a data set of 18 bytes)" in note


def test_attestations_are_left_out(parts: Parts, tmp_path: Path) -> None:
    path = as_folder(LAYOUTS["platforms"](parts), tmp_path)
    (note,) = [n.message for n in wb.inspect(path).notes if "left out" in n.message]
    assert "(attestation-manifest)" in note
    assert archives.resolve(path).name == "models"
    assert str(archives.resolve(path)).endswith("latest/linux-arm64/models")


# ---- several models ----


def two_models(parts: Parts, *, refs: tuple[str, str] = ("org/a:1", "b"), **texts: str) -> dict[str, bytes]:
    blobs = Blobs()
    first = blobs.manifest([Layer("application/octet-stream", parts.gguf, "model.gguf")])
    second = blobs.manifest(
        [Layer("application/octet-stream", parts.safetensors, "model.safetensors")], annotations={"x": "y"}
    )
    return blobs.layout(tagged(first, refs[0], **texts), tagged(second, refs[1], **texts))


@pytest.mark.parametrize("form", FORMS)
def test_of_several_models_the_path_names_one(form: str, parts: Parts, tmp_path: Path) -> None:
    path = FORMS[form](two_models(parts), tmp_path)
    layout = path / "deep.tar" / "saved" if form == "deep-tar" else path
    for command in (wb.open, wb.inspect, wb.verify, lambda p: wb.convert(p, tmp_path / "o.safetensors")):
        with pytest.raises(UsageError, match="has 2 models") as caught:
            command(path)
        assert f"{layout}/b, {layout}/org/a:1" in str(caught.value.hint)
    for name in ("org/a:1", "b", "org/a:1/model.gguf", "b/model.safetensors"):
        assert same(layout / name)
        assert wb.verify(layout / name).ok
        assert wb.identify(layout / name).readable
    with pytest.raises(FileNotFoundError):
        wb.open(layout / "org" / "b")
    with pytest.raises(FileNotFoundError):
        wb.open(layout / "b" / "model.gguf")
    found = wb.identify(path)
    if form == "folder":
        assert (found.format, found.detail["models"]) == ("oci-layout", ["b", "org/a:1"])
        assert "continue the path" in found.evidence[1]


def test_equal_references_give_way_to_digests(parts: Parts, tmp_path: Path) -> None:
    path = as_folder(two_models(parts, refs=("latest", "latest")), tmp_path)
    names = [name for name in wb.identify(path).detail["models"] if name.startswith("sha256-")]
    assert len(names) == 2
    assert all(same(path / name) for name in names)


def test_one_model_of_a_damaged_layout_can_be_named(parts: Parts, tmp_path: Path) -> None:
    files = two_models(parts)
    damaged = next(name for name, data in files.items() if data == parts.gguf)
    del files[damaged]
    path = as_folder(files, tmp_path)
    assert same(path / "b")
    with pytest.raises(FormatError, match="a blob is missing"):
        wb.open(path / "org" / "a:1")


# ---- digests ----


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_verify_compares_every_digest(name: str, form: str, parts: Parts, tmp_path: Path) -> None:
    files = LAYOUTS[name](parts)
    path = FORMS[form](files, tmp_path)
    report = wb.verify(path)
    layers = [blob for blob in files if blob.startswith("blobs/") and _is_listed(files, blob)]
    assert report.digests >= len(layers) > 1
    changed = {**files, layers[0]: _other_byte(files[layers[0]])}
    for number, blob in enumerate(layers):
        changed = {**files, blob: _other_byte(files[blob])}
        place = tmp_path / str(number)
        place.mkdir()
        findings = wb.verify(FORMS[form](changed, place)).findings
        assert any(
            f.severity == "error" and (f.rule == "archive/broken" or blob.rpartition("/")[2] in f.message)
            for f in findings
        ), blob  # fmt: skip


def test_verify_compares_the_digest_of_the_manifest(parts: Parts, tmp_path: Path) -> None:
    files = one(parts)
    manifest = next(name for name, data in files.items() if b'"layers"' in data)
    files[manifest] = files[manifest].replace(b'"schemaVersion": 2', b'"schemaVersion": 3')
    path = as_folder(files, tmp_path)
    assert same(path)
    (found,) = [f for f in wb.verify(path).findings if f.severity == "error"]
    assert found.rule == "file/digest"
    assert manifest.rpartition("/")[2] in found.message


def _is_listed(files: dict[str, bytes], blob: str) -> bool:
    """Whether the model's manifest lists a blob, or it is that manifest."""
    hex = blob.rpartition("/")[2].encode()
    return any(hex in data for name, data in files.items() if b'"layers"' in data and b"in-toto" not in data
               and b"subject" not in data)  # fmt: skip


def _other_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


# ---- hostile layouts ----


def one(parts: Parts, change: Callable[[dict[str, Any]], None] | None = None, **layer: Any) -> dict[str, bytes]:
    """A layout with one model. `change`: of the manifest's descriptor; `layer`: keys of the layer's."""
    blobs = Blobs()
    weights = {**blobs.add("application/octet-stream", parts.gguf, annotations={TITLE: "model.gguf"}), **layer}
    config = blobs.add("application/vnd.oci.empty.v1+json", b"{}")
    data = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [weights]}
    row = tagged(blobs.add(OCI_MANIFEST, json.dumps(data).encode()), "latest")
    if change:
        change(row)
    return blobs.layout(row)


def titled(parts: Parts, *titles: str, key: str = TITLE) -> dict[str, bytes]:
    blobs = Blobs()
    layers = [Layer("application/octet-stream", parts.gguf + bytes(n), title, key) for n, title in enumerate(titles)]
    return blobs.layout(tagged(blobs.manifest(layers), "latest"))


def nested(parts: Parts, levels: int) -> dict[str, bytes]:
    blobs = Blobs()
    row = blobs.manifest([Layer("application/octet-stream", parts.gguf, "model.gguf")])
    for _ in range(levels):
        row = blobs.index(row, name="x")
    return blobs.layout(row)


def circular(parts: Parts) -> dict[str, bytes]:
    """An index whose only entry is itself: its digest isn't true."""
    digest = "sha256:" + 64 * "0"
    row = {"mediaType": OCI_INDEX, "digest": digest, "size": 0}
    for _ in range(3):  # the size depends on its own digits
        raw = json.dumps({"manifests": [row]}).encode()
        row["size"] = len(raw)
    raw = json.dumps({"manifests": [row]}).encode()
    return {**Blobs().layout(row), f"blobs/sha256/{64 * '0'}": raw}


def repeated(parts: Parts) -> dict[str, bytes]:
    """Indexes that each list the next one 1,000 times."""
    blobs = Blobs()
    row = blobs.manifest([Layer("application/octet-stream", parts.gguf, "model.gguf")])
    for _ in range(3):
        row = blobs.index(*[row] * 1000, name="x")
    return blobs.layout(row)


def without(files: dict[str, bytes], *names: str, **others: bytes) -> dict[str, bytes]:
    return {**{name: data for name, data in files.items() if name not in names}, **others}


OUTSIDE = "sha256:../../../../etc/passwd"
#: Name -> the layout, the error and words in it.
HOSTILE: dict[str, tuple[Callable[[Parts], dict[str, bytes]], type[WeighbridgeError], str]] = {
    "traversal of a layer": (lambda p: one(p, digest=OUTSIDE), FormatError, "without digest"),
    "traversal of a manifest": (lambda p: one(p, lambda row: row.update(digest=OUTSIDE)), FormatError,
                                "without digest"),
    "short digest": (lambda p: one(p, digest="sha256:abcd"), FormatError, "without digest"),
    "digest of no text": (lambda p: one(p, digest=7), FormatError, "without digest"),
    "other digest": (lambda p: one(p, digest="blake3:" + 64 * "a"), UnsupportedError, "a digest by blake3"),
    "missing layer": (lambda p: one(p, digest="sha256:" + 64 * "a"), FormatError, "a blob is missing"),
    "missing manifest": (lambda p: one(p, lambda row: row.update(digest="sha256:" + 64 * "a")), FormatError,
                         "a blob is missing"),
    "long layer": (lambda p: one(p, size=5), FormatError, "size isn't the one"),
    "short layer": (lambda p: one(p, size=1 << 60), FormatError, "size isn't the one"),
    "negative size": (lambda p: one(p, size=-1), FormatError, "without digest and size"),
    "size of no number": (lambda p: one(p, size=True), FormatError, "without digest and size"),
    "long manifest": (lambda p: one(p, lambda row: row.update(size=5)), FormatError, "size isn't the one"),
    "title above": (lambda p: titled(p, "../model.gguf"), FormatError, "leads out"),
    "filepath above": (lambda p: titled(p, "a/../../model.gguf", key=FILEPATH), FormatError, "leads out"),
    "absolute title": (lambda p: titled(p, "/etc/model.gguf"), FormatError, "leads out"),
    "title of a drive": (lambda p: titled(p, "C:model.gguf"), FormatError, "leads out"),
    "title of a folder": (lambda p: titled(p, "."), FormatError, "the name of the folder"),
    "two titles": (lambda p: titled(p, "model.gguf", "./model.gguf"), FormatError, "two layers have a file"),
    "file and folder": (lambda p: titled(p, "a", "a/b"), FormatError, "both a file and a folder"),
    "reference above": (lambda p: one(p, lambda row: row["annotations"].update(
        {"org.opencontainers.image.ref.name": "../../x"})), FormatError, "leads out"),
    "circular index": (circular, FormatError, "an index contains itself"),
    "deep indexes": (lambda p: nested(p, 5), FormatError, "more than 4 indexes"),
    "many indexes": (repeated, UnsupportedError, "more than 200000 members"),
    "no manifests": (lambda p: {**Blobs().layout(), "blobs/sha256/x": b""}, FormatError, "lists no manifest"),
    "version": (lambda p: without(one(p), **{"oci-layout": b'{"imageLayoutVersion": "2.0.0"}'}), UnsupportedError,
                "version '2.0.0'"),
    "no JSON": (lambda p: without(one(p), **{"index.json": b"{"}), FormatError, "no manifest"),
    "no object": (lambda p: without(one(p), **{"index.json": b"[]"}), FormatError, "no manifest"),
    "deep JSON": (lambda p: without(one(p), **{"index.json": b"[" * 100_000}), FormatError, "no manifest"),
    "no index": (lambda p: without(one(p), **{"index.json": b'{"manifests": {}}'}), FormatError, "no index"),
    "large index": (lambda p: without(one(p), **{"index.json": bytes(5 << 20)}), FormatError, "too large"),
    "encrypted": (lambda p: one(p, mediaType="application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), UnsupportedError,
                  "is encrypted"),
    "no tar": (lambda p: one(p, mediaType="application/vnd.kitops.modelkit.model.v1.tar", annotations={}), FormatError,
               "isn't the tar"),
    "tar above": (lambda p: LAYOUTS["modelkit"](p._replace(safetensors=b"x"))
                  | kit({"../../evil.safetensors": b"x"}), FormatError, "leads out"),
    "manifest without layers": (lambda p: two_levels(b'{"config": {"digest": "sha256:%s", "size": 2}}' % (b"a" * 64)),
                                FormatError, "no manifest of a model"),
    "store without a manifest": (lambda p: {k: v for k, v in LAYOUTS["docker-store"](p).items()
                                            if not k.startswith("manifests/")}, FormatError, "a manifest is missing"),
    "store with a traversal": (lambda p: without(LAYOUTS["docker-store"](p), **{
        "models.json": b'{"models": [{"id": "sha256:../x"}]}'}), FormatError, "without digest"),
}  # fmt: skip


COSTLY = {"many indexes"}


def kit(files: dict[str, bytes]) -> dict[str, bytes]:
    blobs = Blobs()
    return blobs.layout(tagged(blobs.manifest(
        [Layer("application/vnd.kitops.modelkit.model.v1.tar", tarred(files))],
        "application/vnd.kitops.modelkit.config.v1+json"), "latest"))  # fmt: skip


def two_levels(manifest: bytes) -> dict[str, bytes]:
    blobs = Blobs()
    return blobs.layout(tagged(blobs.add(OCI_MANIFEST, manifest), "latest"))


@pytest.mark.parametrize("form", ["folder", "tar"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.costly if n in COSTLY else ()) for n in HOSTILE])
def test_hostile_layouts_are_named_errors(name: str, form: str, parts: Parts, tmp_path: Path) -> None:
    make, error, words = HOSTILE[name]
    path = FORMS[form](make(parts), tmp_path)
    for command in (wb.open, wb.inspect, lambda p: wb.convert(p, tmp_path / "out.safetensors")):
        with pytest.raises(error, match=words) as caught:
            command(path)
        assert type(caught.value) is error
        assert str(path) in str(caught.value)
    assert not (tmp_path / "out.safetensors").exists()
    (found,) = [f for f in wb.verify(path).findings if f.rule == "archive/broken"]
    assert words in found.message
    report = wb.identify(path)
    assert not report.readable
    assert form == "tar" or (report.format, report.variant) == ("oci-layout", "unreadable")
    assert "can't be read" in report.evidence[-1]
    assert wb.scan(path).files


@pytest.mark.parametrize("linked", ["blob", "folder", "index.json", "oci-layout", "circle"])
def test_no_link_leads_out_of_a_layout(linked: str, parts: Parts, tmp_path: Path) -> None:
    path = as_folder(one(parts), tmp_path)
    blob = next(p for p in (path / "blobs" / "sha256").iterdir() if p.read_bytes() == parts.gguf)
    victims = {"blob": blob, "circle": blob, "folder": path / "blobs" / "sha256"}
    victim = victims.get(linked, path / linked)
    target = tmp_path / "outside"
    victim.rename(target)
    victim.symlink_to(victim if linked == "circle" else target)
    with pytest.raises(FormatError, match="leads out of the layout" if linked != "circle" else "a blob is missing"):
        wb.open(path)
    assert wb.identify(path).variant == "unreadable"


def test_links_inside_a_layout_are_followed(parts: Parts, tmp_path: Path) -> None:
    """As in a layout in the Hub's cache, whose files are links to its blobs."""
    path = as_folder(one(parts), tmp_path)
    blob = next(p for p in (path / "blobs" / "sha256").iterdir() if p.read_bytes() == parts.gguf)
    blob.rename(path / "blobs" / "elsewhere")
    blob.symlink_to("../elsewhere")
    assert same(path)


def test_a_layout_in_the_cache_of_the_hub_is_read(parts: Parts, tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / ("c" * 40)
    for number, (name, data) in enumerate(one(parts).items()):
        stored, link = cache / "blobs" / str(number), snapshot / name
        for path in (stored, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(data)
        link.symlink_to(os.path.relpath(stored, link.parent))
    assert same(snapshot)
    assert wb.verify(snapshot).ok


def test_a_folder_with_blobs_is_no_layout_by_itself(parts: Parts, tmp_path: Path) -> None:
    folder = write({"blobs/x": b"", "index.json": b"{}", "model.gguf": parts.gguf}, tmp_path / "model")
    assert same(folder)
    assert wb.identify(folder).format == "gguf-folder"
