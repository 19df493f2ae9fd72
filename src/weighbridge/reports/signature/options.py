"""Options of signatures: what `wb sign` and `wb verify --signature` share, and those of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from weighbridge.base.options import ProgressKeyword, option
from weighbridge.io.options import JobsOptions, OverwriteOptions

Path = str | os.PathLike[str]
_SECTION = "Signature"


@dataclass(frozen=True, kw_only=True)
class SignatureOptions:
    """`signature`: the file. `key`: the private key of a signer, or the public one to check with."""

    signature: Path | None = option(
        "File with the signature [to sign: model.sig in the folder, or next to the file].", metavar="FILE", kind="file",
        section=_SECTION,
    )  # fmt: skip
    key: Path | None = option(
        "EC key in PEM: the private one to sign with, the public one to check with.", metavar="FILE", kind="file",
        section=_SECTION,
    )  # fmt: skip
    certificate: Path | None = option(
        "X.509 certificates in PEM: to sign, the signer's and those above it; to check, the trusted ones.",
        metavar="FILE", kind="file", section=_SECTION,
    )  # fmt: skip
    trust_config: Path | None = option(
        "Sigstore instance for keyless signatures [the public one].", metavar="FILE", kind="file", section=_SECTION
    )
    ignore: Sequence[str] = option(
        "Leave out this path in the model. Repeatable.", (), metavar="PATH", section=_SECTION
    )
    allow_symlinks: bool = option("Follow links to files.", False, section=_SECTION)


@dataclass(frozen=True, kw_only=True)
class SignOptions(SignatureOptions, JobsOptions, OverwriteOptions, ProgressKeyword):
    """`password`: of an encrypted key."""

    keyless: bool = option(
        "Sign by Sigstore: your identity (e-mail, workflow) becomes public.", False, section=_SECTION
    )
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class SignatureCheckOptions(SignatureOptions):
    """Which signer is trusted: a key; or a name and the authority that confirms it."""

    identity: str | None = option(
        "The signer's name in its certificate: e-mail, URI, common name, subject.", metavar="NAME", section=_SECTION
    )
    identity_provider: str | None = option(
        "The issuer of a keyless identity, such as https://accounts.google.com.", metavar="URL",
        section=_SECTION,
    )  # fmt: skip


#: Names of the options that need `signature`.
NEED_SIGNATURE = tuple(f.name for f in fields(SignatureCheckOptions) if f.name != "signature")
