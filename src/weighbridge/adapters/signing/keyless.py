"""Keyless signatures: Sigstore issues a certificate for an identity (an e-mail address, a workflow) and records the
signature in a public log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from weighbridge.adapters.remote.extra import check_online, is_offline, package
from weighbridge.base.errors import FormatError, RemoteError, UsageError

_T = TypeVar("_T")
#: sigstore's own variable for a ready token.
TOKEN: Final = "SIGSTORE_IDENTITY_TOKEN"


def _sigstore(module: str) -> Any:
    return package(f"sigstore.{module}", "keyless signing", "sign")


def _trust(path: Path | None) -> Any:
    """The Sigstore instance: of a file, or the public one, offline by the roots that the package brings."""
    config = _sigstore("models").ClientTrustConfig
    if path is None:
        return config.production(offline=is_offline())
    try:
        return config.from_json(path.read_text("utf-8"))
    except (ValueError, _sigstore("errors").Error) as error:
        raise UsageError(f"{path}: not a trust configuration of Sigstore: {error}") from error


def sign(statement: bytes, trust_config: Path | None = None) -> bytes:
    """Returns the bundle (JSON) for an in-toto statement. The identity is that of a token in the environment, of the
    CI job, or of a login in the browser, in this order."""
    signing, oidc, dsse = _sigstore("sign"), _sigstore("oidc"), _sigstore("dsse")
    check_online("Sigstore")

    def run() -> bytes:
        trust = _trust(trust_config)
        raw = os.environ.get(TOKEN) or oidc.detect_credential()
        login = oidc.Issuer(trust.signing_config.get_oidc_url()).identity_token
        token = oidc.IdentityToken(raw) if raw else login()
        with signing.SigningContext.from_trust_config(trust).signer(token) as signer:
            return signer.sign_dsse(dsse.Statement(statement)).to_json().encode()  # type: ignore[no-any-return]

    return _guarded(run, "go online, or sign with a key: --key FILE")


def verified_payload(
    bundle: bytes, path: str, *, identity: str, provider: str, trust_config: Path | None = None
) -> tuple[str, bytes]:
    """Returns type and bytes of the payload that `identity`, confirmed by `provider`, signed. Raises FormatError if
    another identity did, or the log has no such entry."""
    models, verify = _sigstore("models"), _sigstore("verify")
    errors = _sigstore("errors")

    def run() -> tuple[str, bytes]:
        policy = verify.policy.Identity(identity=identity, issuer=provider)
        verifier = verify.Verifier(trusted_root=_trust(trust_config).trusted_root)
        try:
            signed: tuple[str, bytes] = verifier.verify_dsse(bundle=models.Bundle.from_json(bundle), policy=policy)
        except (models.InvalidBundle, errors.VerificationError, ValueError) as error:
            raise FormatError(f"the signature isn't valid: {error}", path=path) from None
        return signed

    return _guarded(run, "--offline takes the roots that the package sigstore brings")


def _guarded(run: Callable[[], _T], hint: str) -> _T:
    """Runs a call that may use the network; sigstore's errors become those of Weighbridge."""
    oidc, errors, requests = _sigstore("oidc"), _sigstore("errors"), package("requests", "keyless signing", "sign")
    handled = (errors.Error, oidc.IssuerError, oidc.IdentityError, oidc.ExpiredIdentity, requests.RequestException)
    try:
        return run()
    except handled as error:
        raise RemoteError(f"Sigstore: {error or type(error).__name__}", hint=hint) from error
