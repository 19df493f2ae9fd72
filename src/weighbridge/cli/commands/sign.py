"""`wb sign`: signs a model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.cli.options import DryRunOptions, command, examples
from weighbridge.cli.values import PATH
from weighbridge.reports.signature.options import SignOptions

_PASSWORD = "WEIGHBRIDGE_KEY_PASSWORD"


@dataclass(frozen=True, kw_only=True)
class SignCommand(SignOptions, DryRunOptions):
    pass


@command(
    SignCommand,
    epilog=examples(
        "wb sign ./my-model/ --key signer.pem",
        "wb sign model.gguf --key signer.pem --signature model.gguf.sig",
        "wb sign ./my-model/ --key signer.pem --certificate signer-and-issuers.pem",
        "wb sign ./my-model/ --keyless",
        "wb sign ./my-model/ --key signer.pem --dry-run",
    ),
)
@click.argument("model", type=PATH)
def sign(model: Path, options: SignCommand) -> int:
    """Sign all files of MODEL, a folder or a file, in the format of OpenSSF Model Signing.

    The signature is a small file, model.sig, that lists the SHA-256 of every file; `wb verify` and the tool
    model_signing check it. The password of an encrypted key is read from the terminal, or from the variable
    WEIGHBRIDGE_KEY_PASSWORD. Links are refused unless --allow-symlinks follows those to files.
    """
    from weighbridge.base.words import plural
    from weighbridge.cli.render import Progress, clean, echo, emit_json, human_bytes, shorten
    from weighbridge.io.sink import check_target
    from weighbridge.reports.signature import sign as signing

    if options.dry_run:
        listing, _ = signing.files_to_sign(model, options)
        target = str(signing.signature_path(model, options))
        if options.json:
            emit_json({"signature": target, "files": [*listing.files], "ignored": listing.ignored})
        for name in () if options.json else listing.files:
            echo(clean(str(model) if name == "." else name))
        return 0
    check_target(signing.signature_path(model, options), overwrite=options.overwrite, folder=False)
    keywords = options.keywords(signing.sign)
    if options.key is not None and (password := _password(Path(options.key))) is not None:
        keywords["password"] = password
    with Progress() as progress:
        report = signing.sign(model, progress=progress, **keywords)
    if options.json:
        emit_json(report)
        return 0
    echo(f"{clean(report.signature)}: {plural(report.files, 'file')}, {human_bytes(report.nbytes)}")
    echo(f"  signed by {clean(report.signer)}")
    if report.ignored:
        echo(f"  not signed: {clean(shorten(report.ignored))}")
    return 0


def _password(key: Path) -> str | None:
    """The password of an encrypted key: of the environment, else asked for. None if the key isn't encrypted."""
    from weighbridge.adapters.signing.ec_keys import is_encrypted

    if not is_encrypted(key):
        return None
    if (password := os.environ.get(_PASSWORD)) is not None:
        return password
    if not sys.stdin.isatty():
        raise UsageError(
            f"{key} is encrypted, and its password can't be asked for without a terminal", hint=f"set {_PASSWORD}"
        )
    return str(click.prompt(f"Password of {key}", hide_input=True, err=True))
