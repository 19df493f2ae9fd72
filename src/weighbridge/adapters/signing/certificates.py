"""X.509 certificates of signers: which key a chain vouches for, and for whom.

As in model_signing, a chain is checked at the time from which the signer's certificate is valid, since a signature has
no trusted time, and the certificate must allow signatures or code signing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.signing.ec_keys import DIGESTS, crypto, read_pem
from weighbridge.base.errors import FormatError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate


class CertifiedKey(NamedTuple):
    """The key of a trusted certificate. `names`: those that it was issued to, the subject first."""

    key: EllipticCurvePublicKey
    names: tuple[str, ...]


def load_certificates(path: Path) -> list[Certificate]:
    """Reads certificates in PEM, in the order of the file."""
    try:
        loaded: list[Certificate] = package("cryptography.x509", "signing", "sign").load_pem_x509_certificates(
            read_pem(path)
        )
    except ValueError as error:
        raise UsageError(f"{path}: not certificates in PEM: {error}") from error
    return loaded


def to_der(certificate: Certificate) -> bytes:
    return certificate.public_bytes(crypto("hazmat.primitives.serialization").Encoding.DER)


def names_of(certificate: Certificate) -> tuple[str, ...]:
    """Returns the subject, its common name, and the alternative names."""
    x509: Any = package("cryptography.x509", "signing", "sign")
    common = [str(a.value) for a in certificate.subject.get_attributes_for_oid(x509.oid.NameOID.COMMON_NAME)]
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternative = ()
    extra_names = [str(name.value) for name in alternative if isinstance(getattr(name, "value", None), str)]
    return tuple(dict.fromkeys([certificate.subject.rfc4514_string(), *common, *extra_names]))


def trusted_key(chain: Sequence[bytes], roots: Sequence[Certificate], path: str) -> CertifiedKey:
    """Returns the key of the first certificate of `chain` (DER) if a chain leads to one of the roots. `path`: the
    signature, for the errors. Raises FormatError if the chain is broken or ends elsewhere."""
    x509: Any = package("cryptography.x509", "signing", "sign")
    checks: Any = package("cryptography.x509.verification", "signing", "sign")
    ec = crypto("hazmat.primitives.asymmetric.ec")
    try:
        leaf, *above = [x509.load_der_x509_certificate(der) for der in chain]
        key = leaf.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise FormatError(f"the signer's certificate has a {type(key).__name__}, not an EC key", path=path)
        if key.curve.name not in DIGESTS:
            raise FormatError(f"the signer's certificate has a key on the curve {key.curve.name}", path=path)
        policy = checks.PolicyBuilder().store(checks.Store(roots)).time(leaf.not_valid_before_utc)
        policy = policy.extension_policies(
            ca_policy=checks.ExtensionPolicy.webpki_defaults_ca(), ee_policy=checks.ExtensionPolicy.permit_all()
        )
        policy.build_client_verifier().verify(leaf, above)
        usable = _may_sign(leaf)
        names = names_of(leaf)
    except checks.VerificationError as error:
        raise FormatError(
            f"no chain leads from the signer's certificate to a trusted one: {error}", path=path
        ) from None
    except ValueError as error:
        raise FormatError(f"a certificate is malformed: {error}", path=path) from None
    if not usable:
        raise FormatError("the signer's certificate doesn't allow signatures", path=path)
    return CertifiedKey(key, names)


def _may_sign(certificate: Certificate) -> bool:
    """Whether the key usage includes signatures, or the extended one code signing."""
    x509: Any = package("cryptography.x509", "signing", "sign")
    uses = {type(extension.value): extension.value for extension in certificate.extensions}
    usage, extended = uses.get(x509.KeyUsage), uses.get(x509.ExtendedKeyUsage)
    code = package("cryptography.x509.oid", "signing", "sign").ExtendedKeyUsageOID.CODE_SIGNING
    return bool((usage is not None and usage.digital_signature) or (extended is not None and code in extended))
