"""Signatures are those of model_signing: it verifies ours, we verify its, and the statements are equal."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.signature.keys import CURVES, Authority, make_key

import weighbridge as wb
from weighbridge.reports.signature.manifest import HashMethod, SignedManifest, hash_files, list_files
from weighbridge.reports.signature.statement import read_statement, write_statement

theirs = pytest.importorskip("model_signing")
pytestmark = pytest.mark.oracle


def payload_of(signature: Path) -> bytes:
    return base64.b64decode(json.loads(signature.read_text())["dsseEnvelope"]["payload"])


def their_hashing(model: Path, signature: Path, **settings: Any) -> Any:
    """As the command of model_signing configures it."""
    inside = signature.is_relative_to(model)
    ignored = [signature.relative_to(model)] if inside else []
    config = theirs.hashing.Config()
    if "shard_size" in settings:
        config = config.use_shard_serialization(**settings)
    elif "hashing_algorithm" in settings:
        config = config.use_file_serialization(**settings)
    return config.set_ignored_paths(paths=ignored)


def they_sign(model: Path, signature: Path, key: Path, **settings: Any) -> None:
    config = theirs.signing.Config().use_elliptic_key_signer(private_key=key)
    config.set_hashing_config(their_hashing(model, signature, **settings)).sign(model, signature)


def they_verify(model: Path, signature: Path, key: Path) -> None:
    """Raises an error unless the signature is good."""
    config = theirs.verifying.Config().use_elliptic_key_verifier(public_key=key.with_suffix(".pub"))
    config.verify(model, signature)


def we_verify(model: Path, signature: Path, key: Path, **more: Any) -> wb.VerifyReport:
    return wb.verify(model, signature=signature, key=key.with_suffix(".pub"), **more)


@pytest.mark.parametrize("curve", CURVES)
def test_they_verify_ours(model: Path, tmp_path: Path, curve: str) -> None:
    key = make_key(tmp_path, "own", curve)
    report = wb.sign(model, key=key)
    they_verify(model, Path(report.signature), key)
    (model / "d" / "c").write_bytes(b"C")
    with pytest.raises(ValueError, match="mismatch"):
        they_verify(model, Path(report.signature), key)


@pytest.mark.parametrize("curve", CURVES)
def test_the_same_key_gives_the_same_signature(model: Path, tmp_path: Path, curve: str) -> None:
    key = make_key(tmp_path, "own", curve)
    first = Path(wb.sign(model, key=key).signature).read_bytes()
    assert Path(wb.sign(model, key=key, overwrite=True).signature).read_bytes() == first


@pytest.mark.parametrize("curve", CURVES)
def test_we_verify_theirs(model: Path, tmp_path: Path, curve: str) -> None:
    key = make_key(tmp_path, "own", curve)
    they_sign(model, model / "model.sig", key)
    report = we_verify(model, model / "model.sig", key)
    assert report.ok
    assert report.signature is not None
    assert report.signature.files == 8
    (model / "d" / "c").write_bytes(b"C")
    assert not we_verify(model, model / "model.sig", key)


def canonical(statement: bytes) -> Any:
    """The statement with its sets in order: model_signing's have another in every run."""
    doc = json.loads(statement)
    serialization = doc["predicate"]["serialization"]
    serialization["ignore_paths"] = sorted(serialization.get("ignore_paths", ()))
    return doc


def in_our_order(statement: bytes) -> bytes:
    """Their statement in their layout of JSON, the keys within the predicate in our order."""
    doc = canonical(statement)
    inner = doc["predicate"]
    rows = [{k: row[k] for k in ("name", "algorithm", "digest")} for row in inner["resources"]]
    keys = ("method", "hash_type", "shard_size", "allow_symlinks", "ignore_paths")
    serialization = {k: inner["serialization"][k] for k in keys if k in inner["serialization"]}
    doc["predicate"] = {"serialization": serialization, "resources": rows}
    return json.dumps(doc, indent=2).encode()


@pytest.mark.parametrize("place", ["model/model.sig", "elsewhere.sig"])
def test_statements_are_equal(model: Path, key: Path, tmp_path: Path, place: str) -> None:
    signature = tmp_path / place
    they_sign(model, signature, key)
    expected = payload_of(signature)
    wb.sign(model, key=key, signature=signature, overwrite=True)
    assert payload_of(signature) == in_our_order(expected)


@pytest.mark.parametrize("size", [1, 1000, 7067, 1 << 40])
def test_shards_are_signed_as_they_sign_them(model: Path, key: Path, size: int) -> None:
    """7067 is the size of the largest file. An empty file has no shards, so it isn't signed."""
    they_sign(model, model / "model.sig", key, shard_size=size)
    expected = payload_of(model / "model.sig")
    report = wb.sign(model, key=key, shard_size=size, overwrite=True)
    assert canonical(payload_of(model / "model.sig")) == canonical(expected)
    assert (report.files, report.ignored) == (7, (".git", ".gitattributes", "empty"))
    they_verify(model, model / "model.sig", key)
    checked = we_verify(model, model / "model.sig", key)
    assert checked.ok
    assert checked.signature is not None
    assert checked.signature.unsigned == report.ignored
    (model / "empty").write_bytes(b"no more")
    assert not we_verify(model, model / "model.sig", key).ok


def test_statements_of_a_file_are_equal(model: Path, key: Path, tmp_path: Path) -> None:
    file, signature = model / "model.safetensors", tmp_path / "f.sig"
    they_sign(file, signature, key)
    expected = payload_of(signature)
    wb.sign(file, key=key, signature=signature, overwrite=True)
    assert payload_of(signature) == in_our_order(expected)
    they_verify(file, signature, key)


@pytest.mark.parametrize("settings", [
    {"hashing_algorithm": "blake2"}, {"hashing_algorithm": "blake3"}, {"shard_size": 1000},
    {"shard_size": 7000, "hashing_algorithm": "blake2"},
], ids=str)  # fmt: skip
def test_other_methods_are_read(model: Path, key: Path, settings: dict[str, Any]) -> None:
    """Their digests are ours, part by part; a change is found at any of them."""
    they_sign(model, model / "model.sig", key, **settings)
    payload = payload_of(model / "model.sig")
    manifest = read_statement(payload, "model.sig")
    listing = list_files(model, manifest.ignored, False)
    items = hash_files(listing.files, manifest.method)
    assert items == manifest.items
    written = write_statement(SignedManifest("model", items, manifest.method, False, tuple(sorted(manifest.ignored))))
    assert canonical(written) == canonical(payload)
    assert we_verify(model, model / "model.sig", key).ok
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-1] + b"S")
    changed = we_verify(model, model / "model.sig", key)
    assert [(f.rule, f.path) for f in changed.findings if f.rule.startswith("signature/")] == [
        ("signature/changed", str(model / "model.safetensors"))
    ]


def test_shards_are_the_method_that_they_are_read_as() -> None:
    assert HashMethod("blake2", 5).algorithm == "blake2b-sharded-5"


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_certificates_both_ways(model: Path, tmp_path: Path, first: str) -> None:
    pytest.importorskip("OpenSSL")
    authority, signature = Authority(tmp_path / "ca"), model / "model.sig"
    if first == "ours":
        wb.sign(model, key=authority.key, certificate=authority.chain)
    else:
        config = theirs.signing.Config().use_certificate_signer(
            private_key=authority.key, signing_certificate=authority.leaf, certificate_chain=[authority.above]
        )
        config.set_hashing_config(their_hashing(model, signature)).sign(model, signature)
    theirs.verifying.Config().use_certificate_verifier(certificate_chain=[authority.roots]).verify(model, signature)
    for name in ("signer", "CN=signer", "signer@example.org"):
        report = wb.verify(model, signature=signature, certificate=authority.roots, identity=name)
        assert report.ok, report.findings
        assert report.signature is not None
        assert report.signature.signer == "CN=signer"


def _link(model: Path) -> None:
    (model / "link").symlink_to(model / "notes.json")


def _dead_link(model: Path) -> None:
    (model / "link").symlink_to("nowhere")


def _pipe(model: Path) -> None:
    os.mkfifo(model / "pipe")


@pytest.mark.parametrize("spoil", [_link, _dead_link, _pipe])
def test_both_refuse_what_is_no_file(model: Path, key: Path, spoil: Callable[[Path], None]) -> None:
    spoil(model)
    with pytest.raises(ValueError, match="Cannot use"):
        they_sign(model, model / "model.sig", key)
    with pytest.raises(wb.errors.RefusedError):
        wb.sign(model, key=key)
    assert not (model / "model.sig").exists()


def test_links_to_files_are_followed_on_request(model: Path, key: Path) -> None:
    _link(model)
    wb.sign(model, key=key, allow_symlinks=True)
    assert not we_verify(model, model / "model.sig", key).ok
    assert we_verify(model, model / "model.sig", key, allow_symlinks=True).ok
    hashing = their_hashing(model, model / "model.sig").set_allow_symlinks(True)
    config = theirs.verifying.Config().use_elliptic_key_verifier(public_key=key.with_suffix(".pub"))
    config.set_hashing_config(hashing).verify(model, model / "model.sig")


def test_a_link_to_a_folder_is_always_refused(model: Path, key: Path) -> None:
    """model_signing leaves out its files in silence."""
    (model / "more").symlink_to(model / "d")
    with pytest.raises(wb.errors.RefusedError, match="a link to a folder"):
        wb.sign(model, key=key, allow_symlinks=True)
