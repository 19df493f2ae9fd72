"""The file of a signature: a Sigstore bundle 0.3 in JSON, with a DSSE envelope around the statement.

https://github.com/sigstore/protobuf-specs (bundle), https://github.com/secure-systems-lab/dsse (envelope)
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import SIGNATURE_SIZE
from weighbridge.base.records import dataclass
from weighbridge.io.location import open_source

_T = TypeVar("_T")

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
# Certificates of a chain: real ones have two or three.
_CHAIN: Final = 16


class _PublicKey(msgspec.Struct):
    hint: str | None = None


class _Certificate(msgspec.Struct):
    rawBytes: str


class _Chain(msgspec.Struct):
    certificates: list[_Certificate]


class _Material(msgspec.Struct):
    publicKey: _PublicKey | None = None
    x509CertificateChain: _Chain | None = None
    certificate: _Certificate | None = None


class _Signature(msgspec.Struct):
    sig: str


class _Envelope(msgspec.Struct):
    payload: str
    payloadType: str
    signatures: list[_Signature]


class _Bundle(msgspec.Struct):
    mediaType: str
    verificationMaterial: _Material
    dsseEnvelope: _Envelope


@dataclass(frozen=True, slots=True)
class SignatureBundle:
    """`kind`: the signer's material: "key", "certificate" or "keyless". `hint`: the key's fingerprint. `chain`:
    certificates in DER, the signer's first. `raw`: the file."""

    path: str
    kind: str
    payload: bytes
    signature: bytes
    hint: str | None
    chain: tuple[bytes, ...]
    raw: bytes

    @property
    def message(self) -> bytes:
        return signed_message(self.payload)


def signed_message(payload: bytes) -> bytes:
    """Returns the bytes that are signed: DSSE's pre-authentication encoding of a payload."""
    return f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} ".encode() + payload


def write_bundle(payload: bytes, signature: bytes, *, hint: str | None = None, chain: tuple[bytes, ...] = ()) -> bytes:
    """Returns the file of a signature by a key, which `hint` names, or by the first certificate of `chain`."""
    material: dict[str, Any] = (
        {"x509CertificateChain": {"certificates": [{"rawBytes": _encode(der)} for der in chain]}}
        if chain
        else {"publicKey": {"hint": hint}}
    )
    bundle = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": material | {"tlogEntries": []},
        "dsseEnvelope": {
            "payload": _encode(payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": _encode(signature), "keyid": ""}],
        },
    }
    return json.dumps(bundle).encode()


def read_bundle(path: Path) -> SignatureBundle:
    """Reads the file of a signature. Raises FormatError with the place of the fault; the signature itself isn't
    checked."""
    name = str(path)
    with open_source(path) as source:
        if source.size > SIGNATURE_SIZE:
            raise FormatError(
                "too large for a signature", path=name, expected=f"<= {SIGNATURE_SIZE} bytes", found=source.size
            )
        raw = source.read(0, source.size)
    bundle = strict_json(raw, name, _Bundle)
    if bundle.mediaType != MEDIA_TYPE:
        raise FormatError("not a Sigstore bundle 0.3", path=name, field="mediaType", found=repr(bundle.mediaType)[:200])
    envelope, material = bundle.dsseEnvelope, bundle.verificationMaterial
    if envelope.payloadType != PAYLOAD_TYPE:
        raise FormatError("not an in-toto statement", path=name, field="dsseEnvelope.payloadType",
                          expected=PAYLOAD_TYPE, found=repr(envelope.payloadType)[:200])  # fmt: skip
    if len(envelope.signatures) != 1:
        raise FormatError("one signature is required", path=name, field="dsseEnvelope.signatures",
                          found=len(envelope.signatures))  # fmt: skip
    materials = {
        "key": material.publicKey, "certificate": material.x509CertificateChain, "keyless": material.certificate,
    }  # fmt: skip
    kinds = [kind for kind, value in materials.items() if value is not None]
    if len(kinds) != 1:
        raise FormatError("one of publicKey, x509CertificateChain and certificate is required", path=name,
                          field="verificationMaterial", found=len(kinds))  # fmt: skip
    certificates = material.x509CertificateChain.certificates if material.x509CertificateChain else []
    place = "verificationMaterial.x509CertificateChain.certificates"
    if kinds == ["certificate"] and not 0 < len(certificates) <= _CHAIN:
        raise FormatError(f"1 to {_CHAIN} certificates are required", path=name, field=place, found=len(certificates))
    return SignatureBundle(
        path=name,
        kind=kinds[0],
        payload=_decode(envelope.payload, name, "dsseEnvelope.payload"),
        signature=_decode(envelope.signatures[0].sig, name, "dsseEnvelope.signatures[0].sig"),
        hint=material.publicKey.hint if material.publicKey else None,
        chain=tuple(_decode(c.rawBytes, name, f"{place}[{n}].rawBytes") for n, c in enumerate(certificates)),
        raw=raw,
    )


def strict_json(data: bytes, path: str, kind: type[_T]) -> _T:
    """Decodes JSON to type `kind`; nothing is repaired. Raises FormatError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"invalid JSON: {error}", path=path) from None


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str, path: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise FormatError("not base64", path=path, field=field) from None
