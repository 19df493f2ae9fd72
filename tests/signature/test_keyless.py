"""Keyless signatures against sigstore's own verifier, with a Sigstore instance made in the test."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.signature.local_sigstore import LocalSigstore

import weighbridge as wb
from weighbridge.adapters.signing import keyless
from weighbridge.reports.signature.bundle import PAYLOAD_TYPE, signed_message

pytest.importorskip("sigstore")
pytestmark = pytest.mark.oracle
NAMED: dict[str, Any] = {"identity": "me@example.org", "identity_provider": "https://issuer.example.org"}


@pytest.fixture
def local(tmp_path: Path) -> LocalSigstore:
    return LocalSigstore(tmp_path)


@pytest.fixture
def signature(model: Path, local: LocalSigstore, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model's signature, by the instance of the test in place of Sigstore's servers."""

    def sign(statement: bytes, trust_config: Path | None) -> bytes:
        assert trust_config == local.trust
        return local.sign(signed_message(statement), statement, PAYLOAD_TYPE, *NAMED.values())

    with monkeypatch.context() as patch:
        patch.setattr(keyless, "sign", sign)
        report = wb.sign(model, keyless=True, trust_config=local.trust)
    assert report.signer == "keyless"
    return Path(report.signature)


def faults(model: Path, signature: Path, local: LocalSigstore, **named: Any) -> list[tuple[str, str]]:
    report = wb.verify(model, signature=signature, trust_config=local.trust, **{**NAMED, **named})
    return [(f.rule.removeprefix("signature/"), f.message) for f in report.findings if f.rule.startswith("signature/")]


def test_the_named_identity_signed(model: Path, signature: Path, local: LocalSigstore) -> None:
    report = wb.verify(model, signature=signature, trust_config=local.trust, **NAMED)
    assert report.ok, report.findings
    assert report.signature is not None
    assert report.signature.signer == "me@example.org (https://issuer.example.org)"
    (model / "d" / "c").write_bytes(b"C")
    assert [rule for rule, _ in faults(model, signature, local)] == ["changed"]


@pytest.mark.parametrize("named", [{"identity": "eve@example.org"}, {"identity_provider": "https://other.example"}])
def test_another_identity(model: Path, signature: Path, local: LocalSigstore, named: dict[str, Any]) -> None:
    [(rule, message)] = faults(model, signature, local, **named)
    assert rule == "signer"
    assert "isn't valid" in message


def test_another_instance(model: Path, signature: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert [rule for rule, _ in faults(model, signature, LocalSigstore(tmp_path / "other"))] == ["signer"]


def _flip(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[-1] ^= 1
    return base64.b64encode(data).decode()


def _payload(doc: Any) -> None:
    doc["dsseEnvelope"]["payload"] = _flip(doc["dsseEnvelope"]["payload"])


def _sig(doc: Any) -> None:
    doc["dsseEnvelope"]["signatures"][0]["sig"] = _flip(doc["dsseEnvelope"]["signatures"][0]["sig"])


def _body(doc: Any) -> None:
    entry = doc["verificationMaterial"]["tlogEntries"][0]
    entry["canonicalizedBody"] = _flip(entry["canonicalizedBody"])


def _promise(doc: Any) -> None:
    entry = doc["verificationMaterial"]["tlogEntries"][0]
    entry["inclusionPromise"]["signedEntryTimestamp"] = _flip(entry["inclusionPromise"]["signedEntryTimestamp"])


def _late(doc: Any) -> None:
    doc["verificationMaterial"]["tlogEntries"][0]["integratedTime"] = "1900000000"


def _no_entry(doc: Any) -> None:
    doc["verificationMaterial"]["tlogEntries"] = []


def _certificate(doc: Any) -> None:
    material = doc["verificationMaterial"]
    material["certificate"]["rawBytes"] = _flip(material["certificate"]["rawBytes"])


@pytest.mark.parametrize("spoil", [_payload, _sig, _body, _promise, _late, _no_entry, _certificate])
def test_one_fault_anywhere(model: Path, signature: Path, local: LocalSigstore, spoil: Callable[[Any], None]) -> None:
    doc = json.loads(signature.read_text())
    spoil(doc)
    signature.write_text(json.dumps(doc))
    assert [rule for rule, _ in faults(model, signature, local)] == ["signer"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "{"])
def test_a_trust_configuration_that_is_none(model: Path, signature: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(wb.errors.UsageError, match="trust configuration"):
        wb.verify(model, signature=signature, trust_config=tmp_path / "bad.json", **NAMED)
