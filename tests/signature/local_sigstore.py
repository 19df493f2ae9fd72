"""A Sigstore instance of the tests: an authority, its log of certificates, and a log of signatures with one entry, all
with keys made in the test. It makes keyless signatures that sigstore's own verifier accepts, without a network.

RFC 6962 (certificate timestamps, Merkle tree), https://github.com/sigstore/protobuf-specs, C2SP signed notes
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

_TIMESTAMPS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_VALID = {"start": "2020-01-01T00:00:00Z"}


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _spki(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_key().public_bytes(serialization.Encoding.DER, form))


def _id(key: Any) -> bytes:
    return hashlib.sha256(_spki(key)).digest()


def _signed(key: Any, data: bytes) -> bytes:
    return bytes(key.sign(data, ec.ECDSA(hashes.SHA256())))


def _octets(data: bytes) -> bytes:
    assert len(data) < 0x80  # the short form of a length
    return bytes([4, len(data)]) + data


class LocalSigstore:
    """`trust`: the file for --trust-config."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.certificates, self.log = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local")])
        self.root = (
            self._builder(name, name, self.authority, days=3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(ca=True), critical=True)
            .sign(self.authority, hashes.SHA256())
        )
        self.trust = folder / "trust.json"
        self.trust.write_text(json.dumps(self._config()))

    def _builder(self, subject: x509.Name, issuer: x509.Name, key: Any, *, days: float) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW)
            .not_valid_after(_NOW + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    def _config(self) -> dict[str, Any]:
        def log(key: Any, url: str) -> dict[str, Any]:
            public = {"rawBytes": _b64(_spki(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": _VALID}
            return {
                "baseUrl": url,
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": _b64(_id(key))},
            }

        chain = {"certificates": [{"rawBytes": _b64(self.root.public_bytes(serialization.Encoding.DER))}]}
        authority = {"subject": {"organization": "local", "commonName": "local"}, "uri": "https://ca.invalid",
                     "certChain": chain, "validFor": _VALID}  # fmt: skip
        service = [{"url": "https://log.invalid", "majorApiVersion": 1, "validFor": _VALID, "operator": "local"}]
        return {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [log(self.log, "https://log.invalid")],
                "certificateAuthorities": [authority],
                "ctlogs": [log(self.certificates, "https://ct.invalid")],
                "timestampAuthorities": [],
            },
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": service, "oidcUrls": service, "rekorTlogUrls": service, "tsaUrls": [],
                "rekorTlogConfig": {"selector": "ANY"}, "tsaConfig": {"selector": "ANY"},
            },
        }  # fmt: skip

    def _certificate(self, key: Any, identity: str, provider: str) -> x509.Certificate:
        """A certificate for an hour, with the timestamp of the log of certificates."""
        builder = (
            self._builder(x509.Name([]), self.root.subject, key, days=1 / 24)
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), critical=True)
            .add_extension(_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False
            )
            .add_extension(x509.UnrecognizedExtension(_ISSUER, provider.encode()), critical=False)
        )
        draft = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        stamp = struct.pack(">Q", int(_NOW.timestamp() * 1000))
        entry = _id(self.authority) + struct.pack(">I", len(draft))[1:] + draft
        signature = _signed(self.certificates, b"\0\0" + stamp + b"\0\1" + entry + b"\0\0")
        timestamp = (
            b"\0" + _id(self.certificates) + stamp + b"\0\0\x04\x03" + struct.pack(">H", len(signature)) + signature
        )
        one = struct.pack(">H", len(timestamp)) + timestamp
        listed = x509.UnrecognizedExtension(_TIMESTAMPS, _octets(struct.pack(">H", len(one)) + one))
        return builder.add_extension(listed, critical=False).sign(self.authority, hashes.SHA256())

    def sign(self, message: bytes, payload: bytes, kind: str, identity: str, provider: str) -> bytes:
        """The bundle of a keyless signature: `message` is signed, the encoding of `payload`."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, signature = self._certificate(key, identity, provider), _signed(key, message)
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        digest = {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        spec = {"envelopeHash": digest, "payloadHash": digest,
                "signatures": [{"signature": _b64(signature), "verifier": _b64(pem)}]}  # fmt: skip
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}).encode()
        when = int(_NOW.timestamp()) + 60
        promised = {"body": _b64(body), "integratedTime": when, "logID": _id(self.log).hex(), "logIndex": 0}
        canonical = json.dumps(promised, separators=(",", ":"), sort_keys=True).encode()
        root = hashlib.sha256(b"\0" + body).digest()  # of a tree with one leaf
        note = f"log.invalid\n1\n{_b64(root)}\n"
        line = _b64(_id(self.log)[:4] + _signed(self.log, note.encode()))
        entry = {
            "logIndex": "0", "logId": {"keyId": _b64(_id(self.log))}, "integratedTime": str(when),
            "kindVersion": {"kind": "dsse", "version": "0.0.1"}, "canonicalizedBody": _b64(body),
            "inclusionPromise": {"signedEntryTimestamp": _b64(_signed(self.log, canonical))},
            "inclusionProof": {"logIndex": "0", "rootHash": _b64(root), "treeSize": "1", "hashes": [],
                               "checkpoint": {"envelope": f"{note}\n\u2014 log.invalid {line}\n"}},
        }  # fmt: skip
        der = certificate.public_bytes(serialization.Encoding.DER)
        return json.dumps({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"certificate": {"rawBytes": _b64(der)}, "tlogEntries": [entry]},
            "dsseEnvelope": {"payload": _b64(payload), "payloadType": kind, "signatures": [{"sig": _b64(signature)}]},
        }).encode()  # fmt: skip


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
