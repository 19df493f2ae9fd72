"""Keys and certificates of the tests, generated in each run."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

CURVES: dict[str, Any] = {"secp256r1": ec.SECP256R1, "secp384r1": ec.SECP384R1, "secp521r1": ec.SECP521R1}
_PEM = serialization.Encoding.PEM
_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def make_key(folder: Path, name: str = "key", curve: str = "secp256r1", password: bytes | None = None) -> Path:
    """Writes NAME.pem and NAME.pub, and returns the former."""
    return write_key(ec.generate_private_key(CURVES[curve]()), folder, name, password)


def make_rsa_key(folder: Path) -> Path:
    return write_key(rsa.generate_private_key(65537, 2048), folder, "rsa")


def write_key(key: Any, folder: Path, name: str, password: bytes | None = None) -> Path:
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path = folder / f"{name}.pem"
    path.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, locked))
    public = key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


class Authority:
    """A root, an authority below it, and a signer that the latter certifies. `usage`: whether the signer may sign."""

    def __init__(self, folder: Path, *, usage: bool = True, name: str = "root") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        root_key = ec.generate_private_key(ec.SECP384R1())
        middle_key = ec.generate_private_key(ec.SECP384R1())
        leaf_key = ec.generate_private_key(ec.SECP256R1())
        root = _certificate(name, root_key, name, root_key, ca=True)
        middle = _certificate("issuer", middle_key, name, root_key, ca=True)
        leaf = _certificate("signer", leaf_key, "issuer", middle_key, ca=False, usage=usage)
        self.key = write_key(leaf_key, folder, "signer")
        self.roots = self._write("roots.pem", root)
        self.leaf = self._write("leaf.pem", leaf)
        self.above = self._write("issuer.pem", middle)
        self.chain = self._write("chain.pem", leaf, middle)

    def _write(self, name: str, *certificates: x509.Certificate) -> Path:
        path = self.folder / name
        path.write_bytes(b"".join(c.public_bytes(_PEM) for c in certificates))
        return path


def _certificate(name: str, key: Any, issuer: str, by: Any, *, ca: bool, usage: bool = True) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    allowed = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False,
    )  # fmt: skip
    uses = x509.KeyUsage(digital_signature=not ca and usage, key_cert_sign=ca, crl_sign=ca, **allowed)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_START)
        .not_valid_after(_START + datetime.timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(uses, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    )
    if not ca:
        names = x509.SubjectAlternativeName([x509.RFC822Name("signer@example.org")])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(by, hashes.SHA384())
