"""The signer, the files that changed, and malformed signatures: each fault is named with its place, and nothing that
wasn't checked is "ok"."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.signature.keys import Authority, make_key, make_rsa_key

import weighbridge as wb
from weighbridge.adapters.signing import ec_keys, keyless
from weighbridge.base.limits import SIGNATURE_SIZE
from weighbridge.cli.main import main
from weighbridge.reports.signature.bundle import signed_message
from weighbridge.reports.signature.options import NEED_SIGNATURE, SignOptions
from weighbridge.reports.signature.statement import name_fault
from weighbridge.reports.verify import report as verify_report
from weighbridge.reports.verify import signature as rules

Doc = dict[str, Any]


def sign(model: Path, key: Path, **more: Any) -> Path:
    return Path(wb.sign(model, key=key, **more).signature)


def faults(model: Path, signature: Path, **signer: Any) -> list[tuple[str, str, str]]:
    """Rule, file and message of each fault of a signature."""
    report = wb.verify(model, signature=signature, **signer)
    found = [f for f in report.findings if f.rule.startswith("signature/")]
    assert bool(found) != report.ok
    assert report.signature is not None
    assert bool(report.signature.signer) == (not {f.rule for f in found} & {"signature/broken", "signature/signer"})
    return [(f.rule.removeprefix("signature/"), Path(f.path or "").name, f.message) for f in found]


# ---- files ----


def change(model: Path) -> None:
    (model / "d" / "c").write_bytes(b"C")


def remove(model: Path) -> None:
    (model / "d" / "c").unlink()


def add(model: Path) -> None:
    (model / "d" / "new").write_bytes(b"")


def swap(model: Path) -> None:
    os.replace(model / "d" / "c", model / "d.y")


def link(model: Path) -> None:
    os.replace(model / "d" / "c", model.parent / "c")
    (model / "d" / "c").symlink_to(model.parent / "c")


FILES: dict[Callable[[Path], None], list[tuple[str, str]]] = {
    change: [("changed", "c")], remove: [("missing", "c")], add: [("extra", "new")],
    swap: [("missing", "c"), ("extra", "d.y")], link: [("link", "c")],
}  # fmt: skip


@pytest.mark.parametrize("spoil", FILES, ids=lambda f: f.__name__)
def test_every_difference_is_named(model: Path, key: Path, spoil: Callable[[Path], None]) -> None:
    signature = sign(model, key)
    assert faults(model, signature, key=key.with_suffix(".pub")) == []
    spoil(model)
    found = faults(model, signature, key=key.with_suffix(".pub"))
    assert sorted(row[:2] for row in found) == sorted(FILES[spoil])


@pytest.mark.mutation
@pytest.mark.parametrize("rule", [r.id for r in rules.RULES])
def test_without_its_rule_nothing_is_found(model: Path, key: Path, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signature, other = sign(model, key), make_key(model.parent, "other").with_suffix(".pub")
    public = key.with_suffix(".pub")
    for spoil in (change, add, link):
        spoil(model)
    (model / "notes.json").unlink()
    broken = model.parent / "broken.sig"
    broken.write_text("{}")

    def found() -> set[str]:
        checks = (wb.verify(model, signature=s, key=k) for s, k in
                  ((signature, public), (signature, other), (broken, public)))  # fmt: skip
        return {f.rule for report in checks for f in report.findings if f.rule.startswith("signature/")}

    every = found() | {"signature/changed"}  # `link` took the place of the changed file
    (model / "d.x").write_bytes(b"X")
    assert found() == every == {r.id for r in rules.RULES}
    monkeypatch.setattr(verify_report, "RULES", tuple(r for r in verify_report.RULES if r.id != rule))
    assert found() == every - {rule}


def test_what_is_left_out_is_listed(model: Path, key: Path) -> None:
    report = wb.sign(model, key=key, ignore=["d"])
    assert report.ignored == (".git", ".gitattributes", "d")
    change(model)
    checked = wb.verify(model, signature=report.signature, key=key.with_suffix(".pub"))
    assert checked.ok
    assert checked.signature is not None
    assert checked.signature.unsigned == (".git", ".gitattributes", "d")


def test_a_signed_file_that_is_left_out_of_the_check_is_not_ok(model: Path, key: Path) -> None:
    signature = sign(model, key)
    change(model)
    found = faults(model, signature, key=key.with_suffix(".pub"), ignore=["d"])
    assert [row[:2] for row in found] == [("missing", ".gitignore"), ("missing", "c")]


@pytest.mark.parametrize("name", ["../x", "/etc", "a//b", ".", ""])
def test_only_paths_in_the_model_can_be_left_out(model: Path, key: Path, name: str) -> None:
    if name == "a//b":  # a path to the shell, and read as one
        assert wb.sign(model, key=key, ignore=[name]).files == 8
        return
    with pytest.raises(wb.errors.UsageError, match="ignore "):
        wb.sign(model, key=key, ignore=[name])


# ---- the signer ----


def test_another_key_is_not_the_signer(model: Path, key: Path, tmp_path: Path) -> None:
    signature = sign(model, key)
    [(rule, _, message)] = faults(model, signature, key=make_key(tmp_path, "other").with_suffix(".pub"))
    assert rule == "signer"
    assert "another key" in message


def test_one_bit_of_the_signature(model: Path, key: Path) -> None:
    signature = sign(model, key)
    doc = json.loads(signature.read_text())
    bits = bytearray(base64.b64decode(doc["dsseEnvelope"]["signatures"][0]["sig"]))
    bits[-1] ^= 1
    doc["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(bits).decode()
    signature.write_text(json.dumps(doc))
    assert [row[0] for row in faults(model, signature, key=key.with_suffix(".pub"))] == ["signer"]


def test_an_unsigned_list_is_not_believed(model: Path, key: Path) -> None:
    """A list changed to fit a changed file, under the old signature."""
    signature = sign(model, key)
    old = json.loads(signature.read_text())
    change(model)
    new = json.loads(sign(model, key, overwrite=True).read_text())
    new["dsseEnvelope"]["signatures"] = old["dsseEnvelope"]["signatures"]
    signature.write_text(json.dumps(new))
    assert [row[0] for row in faults(model, signature, key=key.with_suffix(".pub"))] == ["signer"]


def test_certificates_of_others(model: Path, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    signature = sign(model, authority.key, certificate=authority.chain)
    given = {"certificate": authority.roots, "identity": "signer"}
    assert faults(model, signature, **given) == []
    assert "no chain" in faults(model, signature, **{**given, "certificate": other.roots})[0][2]
    assert "not eve" in faults(model, signature, **{**given, "identity": "eve"})[0][2]
    assert "a certificate's" in faults(model, signature, key=authority.key.with_suffix(".pub"))[0][2]
    short = sign(model, authority.key, certificate=authority.leaf, overwrite=True)
    assert "no chain" in faults(model, short, **given)[0][2]  # the issuer is missing


def test_a_certificate_must_allow_signatures(model: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a", usage=False)
    signature = sign(model, authority.key, certificate=authority.chain)
    [(rule, _, message)] = faults(model, signature, certificate=authority.roots, identity="signer")
    assert (rule, "doesn't allow signatures" in message) == ("signer", True)


SIGNERS: list[dict[str, Any]] = [
    {}, {"certificate": "roots"}, {"identity": "me"}, {"identity_provider": "p"}, {"key": "k", "identity": "me"},
    {"certificate": "c", "identity": "me", "identity_provider": "p"}, {"key": "k", "trust_config": "t"},
]  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("named", SIGNERS, ids=str)
def test_a_signer_must_be_named(model: Path, key: Path, named: dict[str, Any]) -> None:
    with pytest.raises(wb.errors.UsageError, match=r"named|trust"):
        wb.verify(model, signature=sign(model, key), **named)


@pytest.mark.parametrize("option", NEED_SIGNATURE)
def test_options_of_a_signature_need_one(model: Path, option: str) -> None:
    given: Any = {"allow_symlinks": True, "ignore": ["x"]}.get(option, "x")
    with pytest.raises(wb.errors.UsageError, match="signature"):
        wb.verify(model, **{option: given})


def keyless_bundle(signature: Path) -> Path:
    """A signature by key made to look keyless."""
    doc = json.loads(signature.read_text())
    doc["verificationMaterial"] = {"certificate": {"rawBytes": "AAAA"}, "tlogEntries": []}
    signature.write_text(json.dumps(doc))
    return signature


def test_sigstore_decides_about_keyless_signatures(model: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own verifier, with the identity and the provider that are named; offline by the roots that it brings."""
    pytest.importorskip("sigstore")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    signature = keyless_bundle(sign(model, key))
    named = {"identity": "me@example.org", "identity_provider": "https://issuer.example.org"}
    [(rule, _, message)] = faults(model, signature, **named)
    assert (rule, "isn't valid" in message) == ("signer", True)
    seen: list[Any] = []

    def accept(bundle: bytes, path: str, **more: Any) -> tuple[str, bytes]:
        seen.append(more)
        return "application/vnd.in-toto+json", payload

    payload = base64.b64decode(json.loads(signature.read_text())["dsseEnvelope"]["payload"])
    monkeypatch.setattr(keyless, "verified_payload", accept)
    assert faults(model, signature, **named) == []
    assert seen == [{"identity": "me@example.org", "provider": "https://issuer.example.org", "trust_config": None}]
    payload += b" "
    assert [row[0] for row in faults(model, signature, **named)] == ["broken"]


def test_keyless_signing_needs_the_network(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sigstore")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(wb.errors.RemoteError, match="forbids the network"):
        wb.sign(model, keyless=True)
    assert not (model / "model.sig").exists()


# ---- hostile signatures ----


def resources(doc: Doc) -> list[Doc]:
    return doc["predicate"]["resources"]


def renamed(name: str) -> Callable[[Doc], None]:
    def spoil(doc: Doc) -> None:
        resources(doc)[2]["name"] = name

    return spoil


def repeated(doc: Doc) -> None:
    resources(doc).append(resources(doc)[0])


def emptied(doc: Doc) -> None:
    resources(doc).clear()


def single(doc: Doc) -> None:
    resources(doc)[0]["name"] = "."


def put(path: str, value: Any) -> Callable[[Doc], None]:
    def spoil(doc: Doc) -> None:
        *place, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        for part in place:
            doc = doc[part]  # type: ignore[index]
        doc[last] = value  # type: ignore[index]

    return spoil


# Faults of well-signed content: the change, and the place in the message.
CONTENT: list[tuple[Callable[[Doc], None], str]] = [
    *[(renamed(name), "predicate.resources[2].name") for name in
      ("../x", "a/../../x", "/etc/passwd", "C:/x", "\\\\server\\share\\x", "..\\x", "", "a//b", "./a", "a/.", "a\0b")],
    (repeated, "predicate.resources[8].name: the name occurs twice"),
    (emptied, "predicate.resources: it lists no file"),
    (single, "predicate.resources: a model of one file"),
    (put("predicate/resources/1/digest", "ab"), "predicate.resources[1].digest"),
    (put("predicate/resources/1/digest", "G" * 64), "predicate.resources[1].digest"),
    (put("predicate/resources/1/digest", "0" * 64), "subject[0].digest.sha256"),
    (put("predicate/resources/1/algorithm", "md5"), "predicate.resources[1].algorithm"),
    (put("predicate/resources/1", 7), "$.predicate.resources[1]"),
    (put("predicate/serialization/method", "tensors"), "predicate.serialization.method"),
    (put("predicate/serialization/hash_type", "md5"), "predicate.serialization.hash_type"),
    (put("predicate/serialization/ignore_paths", ["../.."]), "predicate.serialization.ignore_paths[0]"),
    (put("predicate/serialization/ignore_paths", ["."]), "predicate.serialization.ignore_paths[0]"),
    (put("predicate/serialization", {"method": "shards", "hash_type": "sha256"}), "shard_size"),
    (put("predicate/serialization", {"method": "shards", "hash_type": "sha256", "shard_size": 0.5}), "shard_size"),
    (put("predicate/serialization", {"method": "shards", "hash_type": "sha256", "shard_size": 1e300}), "shard_size"),
    (put("predicate/serialization", {"method": "shards", "hash_type": "sha256", "shard_size": 9}), "START:END"),
    (put("subject", []), "subject"),
    (put("subject/0/digest", {}), "subject[0].digest"),
    (put("_type", "https://in-toto.io/Statement/v0.1"), "_type"),
    (put("predicateType", "https://slsa.dev/provenance/v1"), "slsa.dev"),
    (put("predicateType", "https://model_signing/Digests/v0.1"), "Digests/v0.1"),
]  # fmt: skip


def resigned(signature: Path, key: Path, payload: bytes) -> None:
    """Puts a payload into a signature, with a good signature by the key."""
    doc = json.loads(signature.read_text())
    made = ec_keys.sign(ec_keys.load_private_key(key), signed_message(payload))
    doc["dsseEnvelope"] |= {"payload": base64.b64encode(payload).decode(),
                            "signatures": [{"sig": base64.b64encode(made).decode(), "keyid": ""}]}  # fmt: skip
    signature.write_text(json.dumps(doc))


@pytest.mark.parametrize(("spoil", "place"), CONTENT, ids=[place for _, place in CONTENT])
def test_content_that_is_wrong_is_refused_with_its_place(
    model: Path, key: Path, spoil: Callable[[Doc], None], place: str
) -> None:
    signature = sign(model, key)
    payload = json.loads(base64.b64decode(json.loads(signature.read_text())["dsseEnvelope"]["payload"]))
    spoil(payload)
    resigned(signature, key, json.dumps(payload).encode())
    [(rule, file, message)] = faults(model, signature, key=key.with_suffix(".pub"))
    assert (rule, file) == ("broken", "model.sig")
    assert place in message


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"_type": 1}', b"null"], ids=len)
def test_a_payload_that_is_no_statement(model: Path, key: Path, payload: bytes) -> None:
    signature = sign(model, key)
    resigned(signature, key, payload)
    assert [row[0] for row in faults(model, signature, key=key.with_suffix(".pub"))] == ["broken"]


def test_a_key_twice_in_a_payload(model: Path, key: Path) -> None:
    """Readers differ in which of them counts."""
    signature = sign(model, key)
    payload = base64.b64decode(json.loads(signature.read_text())["dsseEnvelope"]["payload"])
    resigned(signature, key, payload.replace(b'"subject"', b'"_type": "https://in-toto.io/Statement/v1", "subject"', 1))
    [(rule, _, message)] = faults(model, signature, key=key.with_suffix(".pub"))
    assert (rule, message) == ("broken", "_type: the key occurs more than once in one object (found 2)")


@pytest.mark.parametrize("value", [b"[" * 900 + b"]" * 900, b"[" * 5000 + b"]" * 5000, b"9" * 5000, b"1e999"], ids=len)
def test_unknown_keys_with_odd_values(model: Path, key: Path, value: bytes) -> None:
    """They are ignored as the standard requires, unless a reader stumbles over them."""
    signature = sign(model, key)
    payload = base64.b64decode(json.loads(signature.read_text())["dsseEnvelope"]["payload"])
    resigned(signature, key, payload.replace(b'"subject"', b'"more": ' + value + b', "subject"', 1))
    assert [row[0] for row in faults(model, signature, key=key.with_suffix(".pub"))] in ([], ["broken"])


SHARDS = ["c", "c:0", "c:1:1", "c:5:1", "c:0:99999999999999999999", "c:-1:4", "../c:0:1", "c:0:11", ":0:1"]


@pytest.mark.parametrize("name", SHARDS)
def test_shards_that_are_none(model: Path, key: Path, name: str) -> None:
    signature = sign(model, key)
    payload = json.loads(base64.b64decode(json.loads(signature.read_text())["dsseEnvelope"]["payload"]))
    payload["predicate"] = {
        "serialization": {"method": "shards", "hash_type": "sha256", "shard_size": 10},
        "resources": [{"name": name, "algorithm": "sha256-sharded-10", "digest": "0" * 64}],
    }
    resigned(signature, key, json.dumps(payload).encode())
    [(rule, _, message)] = faults(model, signature, key=key.with_suffix(".pub"))
    assert rule == "broken"
    assert "predicate.resources[0].name" in message


BUNDLES: list[tuple[Callable[[Doc], None], str]] = [
    (put("mediaType", "application/vnd.dev.sigstore.bundle+json;version=0.1"), "mediaType"),
    (put("dsseEnvelope/payloadType", "text/plain"), "dsseEnvelope.payloadType"),
    (put("dsseEnvelope/payload", "%%%"), "dsseEnvelope.payload"),
    (put("dsseEnvelope/payload", 5), "$.dsseEnvelope.payload"),
    (put("dsseEnvelope/signatures", []), "dsseEnvelope.signatures"),
    (put("dsseEnvelope/signatures/0/sig", "\u00e9"), "dsseEnvelope.signatures[0].sig"),
    (put("verificationMaterial", {}), "verificationMaterial"),
    (put("verificationMaterial/certificate", {"rawBytes": ""}), "verificationMaterial"),
    (put("verificationMaterial", {"x509CertificateChain": {"certificates": []}}), "certificates"),
    (put("verificationMaterial", {"x509CertificateChain": {"certificates": [{"rawBytes": ""}] * 99}}), "certificates"),
]


@pytest.mark.parametrize(("spoil", "place"), BUNDLES, ids=[place for _, place in BUNDLES])
def test_bundles_that_are_wrong_are_refused_with_their_place(
    model: Path, key: Path, spoil: Callable[[Doc], None], place: str
) -> None:
    signature = sign(model, key)
    doc = json.loads(signature.read_text())
    spoil(doc)
    signature.write_text(json.dumps(doc))
    [(rule, _, message)] = faults(model, signature, key=key.with_suffix(".pub"))
    assert rule == "broken"
    assert place in message


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"{" * 100_000, b"\x00" * 9, b"null", b'{"mediaType": 1}'], ids=len
)
def test_files_that_are_no_signature(model: Path, key: Path, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.sig").write_bytes(data)
    assert [row[0] for row in faults(model, tmp_path / "x.sig", key=key.with_suffix(".pub"))] == ["broken"]


def test_a_huge_signature_is_not_read(model: Path, key: Path, tmp_path: Path) -> None:
    with open(tmp_path / "x.sig", "wb") as file:
        file.truncate(SIGNATURE_SIZE + 1)
    [(rule, _, message)] = faults(model, tmp_path / "x.sig", key=key.with_suffix(".pub"))
    assert (rule, "too large" in message) == ("broken", True)


def test_a_broken_certificate(model: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a")
    signature = sign(model, authority.key, certificate=authority.chain)
    doc = json.loads(signature.read_text())
    doc["verificationMaterial"]["x509CertificateChain"]["certificates"][0]["rawBytes"] = "AAAA"
    signature.write_text(json.dumps(doc))
    [(rule, _, message)] = faults(model, signature, certificate=authority.roots, identity="signer")
    assert (rule, "malformed" in message) == ("signer", True)


def test_names_of_a_model_are_no_faults() -> None:
    assert [name for name in ("a", "a/b", ".hidden", "..a", "a..b/c...", "\u6a21", "a b") if name_fault(name)] == []


# ---- keys ----


def test_the_password_of_a_key(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = make_key(tmp_path, "locked", password=b"s3cret \xc3\xa9")
    line = ["sign", str(model), "--key", str(key)]
    assert main(line) == 2
    assert "WEIGHBRIDGE_KEY_PASSWORD" in capsys.readouterr().err
    monkeypatch.setenv("WEIGHBRIDGE_KEY_PASSWORD", "wrong")
    assert main(line) == 2
    assert not (model / "model.sig").exists()
    monkeypatch.setenv("WEIGHBRIDGE_KEY_PASSWORD", "s3cret \u00e9")
    assert main(line) == 0
    assert faults(model, model / "model.sig", key=key.with_suffix(".pub")) == []
    with pytest.raises(wb.errors.UsageError, match="assword"):
        wb.sign(model, key=key, overwrite=True)
    assert "s3cret" not in repr(SignOptions(password="s3cret")) + capsys.readouterr().out


def test_the_password_is_asked_for(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    key = make_key(tmp_path, "locked", password=b"s3cret")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    hidden: list[bool] = []

    def prompt(text: str, *, hide_input: bool, err: bool) -> str:
        hidden.append(hide_input and err)
        return "s3cret"

    monkeypatch.setattr(click, "prompt", prompt)
    assert main(["sign", str(model), "--key", str(key)]) == 0
    assert hidden == [True]


def test_keys_that_cannot_sign(model: Path, key: Path, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("hello")
    (tmp_path / "big.pem").write_bytes(bytes(2 << 20))
    not_private = (tmp_path / "no.pem", key.with_suffix(".pub"))
    for bad, words in (
        (make_rsa_key(tmp_path), "RSA"), (tmp_path / "big.pem", "too large"),
        *((path, "not a private key") for path in not_private),
    ):  # fmt: skip
        with pytest.raises(wb.errors.WeighbridgeError, match=words):
            wb.sign(model, key=bad)
    assert not (model / "model.sig").exists()
    signature = sign(model, key)
    for bad, words in ((key, "is a private key"), (tmp_path / "rsa.pub", "RSA"), (tmp_path / "no.pem", "public key")):
        with pytest.raises(wb.errors.WeighbridgeError, match=words):
            wb.verify(model, signature=signature, key=bad)


def test_shards_that_cannot_be_signed(model: Path, key: Path) -> None:
    (model / "large").write_bytes(bytes(200_001))
    with pytest.raises(wb.errors.UsageError, match="more than 200,000 parts"):
        wb.sign(model, key=key, shard_size=1)
    (model / "a:b").write_bytes(b"x")
    with pytest.raises(wb.errors.UsageError, match="colon"):
        wb.sign(model, key=key, shard_size=1000)
    assert not (model / "model.sig").exists()


def test_options_of_a_signer(model: Path, key: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a")
    refused: list[dict[str, Any]] = [
        {}, {"key": key, "keyless": True}, {"keyless": True, "certificate": authority.chain},
        {"key": key, "trust_config": key}, {"key": key, "certificate": authority.chain},
        {"keyless": True, "password": "x"}, {"key": authority.key, "certificate": authority.above},
    ]  # fmt: skip
    for given in refused:
        with pytest.raises(wb.errors.UsageError):
            wb.sign(model, **given)
    sign(model, key)
    with pytest.raises(wb.errors.RefusedError, match="exists"):
        sign(model, key)


def test_the_commands(model: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["sign", str(model), "--key", str(key)]
    assert main([*line, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        ".hidden", "d.x", "d/.gitignore", "d/c", "empty", "model.safetensors", "notes.json", "\u00e9 \u6a21",
    ]  # fmt: skip
    assert not (model / "model.sig").exists()
    assert main(line) == 0
    check_line = ["verify", str(model), "--signature", str(model / "model.sig"), "--key", str(key.with_suffix(".pub"))]
    assert main(check_line) == 0
    out = capsys.readouterr().out
    assert "not signed: .git, .gitattributes" in out
    assert "signed by key " in out
    change(model)
    assert main(check_line) == 1
    assert main([*check_line[:4], "--identity", "me"]) == 2


def test_a_folder_of_other_files_is_checked_by_its_signature(tmp_path: Path, key: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.bin").write_bytes(b"x")
    assert wb.verify(tmp_path / "data").verdict == "not-checked"
    signature = sign(tmp_path / "data", key)
    assert wb.verify(tmp_path / "data", signature=signature, key=key.with_suffix(".pub")).verdict == "ok"
