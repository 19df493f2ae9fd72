"""Options of signatures: what `wb sign` and `wb verify --signature` share, and those of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field, fields

from weighbridge.base.options import ProgressKeyword, option
from weighbridge.base.records import dataclass
from weighbridge.io.options import JobsOptions, OverwriteOptions

Path = str | os.PathLike[str]
_SECTION = "Signature"


@dataclass(frozen=True, kw_only=True)
class SignatureOptions:
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

    signature: Path | None = option(
        "Write it there [model.sig in the folder, or next to the file].", metavar="FILE", kind="file", section=_SECTION
    )
    key: Path | None = option("The signer's private EC key, in PEM.", metavar="FILE", kind="file", section=_SECTION)
    certificate: Path | None = option(
        "The signer's X.509 certificate in PEM, followed by those above it.", metavar="FILE", kind="file",
        section=_SECTION,
    )  # fmt: skip
    keyless: bool = option(
        "Sign by Sigstore: your identity (e-mail, workflow) becomes public.", False, section=_SECTION
    )
    shard_size: int | None = option(
        "Hash parts of this size in parallel, for few large files [whole files].", kind="size", least=1,
        section=_SECTION,
    )  # fmt: skip
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class SignatureCheckOptions(SignatureOptions):
    """Which signer is trusted: a key; or a name and the authority that confirms it."""

    signature: Path | None = option(
        "Check the model against this signature. Needs its signer: a key, or an identity.", metavar="FILE", kind="file",
        section=_SECTION,
    )  # fmt: skip
    key: Path | None = option("The signer's public EC key, in PEM.", metavar="FILE", kind="file", section=_SECTION)
    certificate: Path | None = option(
        "Trusted X.509 certificates in PEM.", metavar="FILE", kind="file", section=_SECTION
    )
    identity: str | None = option(
        "The signer's name in its certificate: e-mail, URI, common name, subject.", metavar="NAME", section=_SECTION
    )
    identity_provider: str | None = option(
        "The issuer of a keyless identity, such as https://accounts.google.com.", metavar="URL", section=_SECTION
    )


#: Names of the options that need `signature`.
NEED_SIGNATURE = tuple(f.name for f in fields(SignatureCheckOptions) if f.name != "signature")
