"""Signs and checks bytes with EC keys in PEM. The curves and their digests are those of OpenSSF Model Signing 1.0."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from weighbridge.adapters.remote.extra import package
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import PEM_SIZE
from weighbridge.io.location import open_source

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

#: Curve -> the digest that is signed (model_signing 1.1.1, `get_ec_key_hash`).
DIGESTS: Final = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
_PURPOSE: Final = "signing"


def crypto(module: str) -> Any:
    """Imports a module of `cryptography`."""
    return package(f"cryptography.{module}", _PURPOSE, "sign")


def read_pem(path: Path) -> bytes:
    """Reads a small file with keys or certificates."""
    with open_source(path) as source:
        if source.size > PEM_SIZE:
            raise UsageError(f"{path} is too large for a key or certificates in PEM ({source.size:,} bytes)")
        return source.read(0, source.size)


def is_encrypted(path: Path) -> bool:
    """Whether a private key needs a password."""
    return b"ENCRYPTED" in read_pem(path)


def load_private_key(path: Path, password: str | None = None) -> EllipticCurvePrivateKey:
    """Reads a private key. Raises UsageError if it is unreadable or the password is wrong."""
    serialization, ec = crypto("hazmat.primitives.serialization"), crypto("hazmat.primitives.asymmetric.ec")
    try:
        key = serialization.load_pem_private_key(read_pem(path), None if password is None else password.encode())
    except TypeError as error:  # cryptography's error for a missing or superfluous password
        raise UsageError(f"{path}: {error}") from None
    except (ValueError, package("cryptography.exceptions", _PURPOSE, "sign").UnsupportedAlgorithm) as error:
        wrong = ", or the password is wrong" if is_encrypted(path) else ""
        hint = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem makes one"
        raise UsageError(f"{path}: not a private key in PEM{wrong}", hint=hint) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UnsupportedError(f"{path}: a {type(key).__name__}, not an EC key", hint=_hint())
    check_curve(key.public_key(), str(path))
    return cast("EllipticCurvePrivateKey", key)


def load_public_key(path: Path) -> EllipticCurvePublicKey:
    """Reads a public key. Raises UsageError if it is unreadable."""
    serialization, ec = crypto("hazmat.primitives.serialization"), crypto("hazmat.primitives.asymmetric.ec")
    data = read_pem(path)
    if b"PRIVATE KEY" in data:
        raise UsageError(f"{path} is a private key: a check needs only the public one",
                         hint=f"openssl pkey -in {path} -pubout -out key.pub")  # fmt: skip
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, package("cryptography.exceptions", _PURPOSE, "sign").UnsupportedAlgorithm) as error:
        raise UsageError(f"{path}: not a public key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UnsupportedError(f"{path}: a {type(key).__name__}, not an EC key", hint=_hint())
    check_curve(key, str(path))
    return cast("EllipticCurvePublicKey", key)


def check_curve(key: EllipticCurvePublicKey, name: str) -> None:
    """Raises UnsupportedError for a curve that the standard excludes."""
    if key.curve.name not in DIGESTS:
        raise UnsupportedError(f"{name}: the curve {key.curve.name} isn't supported", hint=_hint())


def _hint() -> str:
    return f"use one of {', '.join(DIGESTS)}"


def fingerprint(key: EllipticCurvePublicKey) -> str:
    """Returns the SHA-256 of the public key in PEM, by which a signature names its key."""
    serialization = crypto("hazmat.primitives.serialization")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.PEM, form)).hexdigest()


def sign(key: EllipticCurvePrivateKey, message: bytes) -> bytes:
    """Returns the ECDSA signature of `message`, in DER: always the same one if OpenSSL can (3.2 and later)."""
    try:
        return key.sign(message, _ecdsa(key.public_key(), deterministic_signing=True))
    except package("cryptography.exceptions", _PURPOSE, "sign").UnsupportedAlgorithm:
        return key.sign(message, _ecdsa(key.public_key()))


def is_signed(key: EllipticCurvePublicKey, signature: bytes, message: bytes) -> bool:
    """Whether `signature` is the key's signature of `message`."""
    try:
        key.verify(signature, message, _ecdsa(key))
    except package("cryptography.exceptions", _PURPOSE, "sign").InvalidSignature:
        return False
    return True


def _ecdsa(key: EllipticCurvePublicKey, **settings: bool) -> Any:
    digest = getattr(crypto("hazmat.primitives.hashes"), DIGESTS[key.curve.name])()
    return crypto("hazmat.primitives.asymmetric.ec").ECDSA(digest, **settings)
