"""The result of a signature's check, and the options that it needs. They are apart from the check, which few calls of
`wb verify` import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.options import flag
from weighbridge.base.records import dataclass
from weighbridge.io.location import check_local
from weighbridge.reports.signature.options import NEED_SIGNATURE, SignatureCheckOptions


class SignatureFault(NamedTuple):
    """A violation of `rule`, a rule of `verify`. `path`: the file; None for the model."""

    rule: str
    message: str
    path: Path | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class SignatureReport:
    """`signer`: whose signature is valid; None if it isn't. `files`: those that it covers. `unsigned`: files and
    folders in the model that it leaves out."""

    path: str
    signer: str | None
    files: int
    unsigned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    report: SignatureReport
    faults: tuple[SignatureFault, ...]


#: What names the signer: kind of signature -> the options that it needs.
NAMED_BY: Mapping[str, tuple[str, ...]] = {
    "key": ("key",), "certificate": ("certificate", "identity"), "keyless": ("identity", "identity_provider"),
}  # fmt: skip


def check_options(model: Path, options: SignatureCheckOptions) -> None:
    """Raises UsageError unless the options name a signer, or if they apply to a signature that is missing."""
    present = [name for name in NEED_SIGNATURE if getattr(options, name) not in (None, (), False)]
    if options.signature is None:
        if present:
            raise UsageError(f"{flag(present[0])} applies to a signature", hint="name its file: --signature FILE")
        return
    check_local(model)
    check_local(options.signature)
    named = {name for names in NAMED_BY.values() for name in names} & {*present}
    if named not in map(set, NAMED_BY.values()):
        ways = "; ".join(" and ".join(map(flag, names)) for names in NAMED_BY.values())
        raise UsageError("a signature proves nothing unless the signer is named", hint=f"give one of: {ways}")
    if options.trust_config is not None and "identity_provider" not in named:
        raise UsageError("--trust-config applies to keyless signatures", hint="--identity and --identity-provider")
