"""The rules of `verify` on a model's signature; `reports/signature` finds the violations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from weighbridge.containers.base import Severity
from weighbridge.reports.signature.model import SignatureCheck, check_options
from weighbridge.reports.signature.options import SignatureCheckOptions
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

_MEMO: Final = "signature"


def prepare(repo: Repo, options: SignatureCheckOptions) -> SignatureCheck | None:
    """Checks the signature that the options name, once for all rules. Raises UsageError if they name no signer."""
    check_options(repo.path, options)
    if options.signature is None:
        return None
    from weighbridge.reports.signature.check import check_signature  # late: few checks have a signature

    check = check_signature(repo.path, options, repo.progress)
    repo.memo[_MEMO] = check
    return check


def is_signature(file: RepoFile, check: SignatureCheck | None) -> bool:
    """Whether a file of the model is the signature that is checked."""
    return check is not None and file.path.samefile(check.report.path)


def _flaws(rule: str, repo: Repo) -> Iterator[Flaw]:
    check: SignatureCheck | None = repo.memo.get(_MEMO)
    for fault in check.faults if check else ():
        if fault.rule == rule:
            yield Flaw(fault.message, fault.path, hint=fault.hint)


_TEXTS: Final = {
    "signature/broken": "the signature's file is a well-formed signature of a model",
    "signature/signer": "the signature is that of the named signer",
    "signature/changed": "every file has the signed bytes",
    "signature/missing": "every signed file exists",
    "signature/extra": "every file is signed",
    "signature/link": "every entry of the folder can be compared",
}
RULES: Final = tuple(Check(rule, Severity.ERROR, text, partial(_flaws, rule)) for rule, text in _TEXTS.items())
