"""What the members of a zip say about the program that it is: TorchServe archives, torch.package, exported programs.
The members themselves are scanned one by one, as any zip's are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.containers.sniff.archive import EXPORTED, PACKAGE, TORCHSCRIPT, TORCHSERVE
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import MemberPath, ScanFinding, ScanRule, ScanVerdict, escape, finding

_U = ScanVerdict.UNKNOWN_CODE

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "torchscript/code": ScanRule(_U, "TorchScript program: its code runs when it is loaded or called"),
        "torchserve/handler": ScanRule(_U, "TorchServe archive with Python code, which the server runs"),
        "package/code": ScanRule(_U, "torch.package with Python sources, which its importer runs"),
        "package/extern": ScanRule(_U, "torch.package that takes modules from the system that loads it"),
        "export/library": ScanRule(_U, "exported program with compiled code, which is loaded as a library"),
    }
)


class _Sign(NamedTuple):
    """A zip with a member that fits `mark` and members that fit `code` is a finding of `rule`."""

    rule: str
    mark: re.Pattern[str]
    code: re.Pattern[str]
    words: str


def _sign(rule: str, marks: tuple[str, ...], code: str, words: str) -> _Sign:
    """`marks`: member names, in any folder; `name/`: any member of this folder."""
    names = "|".join(re.escape(mark) + (".*" if mark.endswith("/") else "") for mark in marks)
    mark = rf"(^|/)({names})$"
    return _Sign(rule, re.compile(mark, re.IGNORECASE), re.compile(code, re.IGNORECASE), words)


_SIGNS: Final = (
    _sign("torchscript/code", TORCHSCRIPT, r"(^|/)(code/.*\.py|bytecode\.pkl)$", "parts of its code"),
    _sign("torchserve/handler", (TORCHSERVE,), r"\.(py|so|sh|tar\.gz|zip|whl)$", "files of code"),
    _sign("package/code", (PACKAGE, ".data/version", ".data/python_version"), r"\.py$", "Python sources"),
    _sign("package/extern", (PACKAGE,), r"(^|/)\.data/extern_modules$", "lists of modules"),
    _sign("export/library", (EXPORTED, "data/aotinductor/"), r"\.(so|dll|dylib|cubin|cpp|o)$", "compiled files"),
)  # fmt: skip
_SHOWN: Final = 5


def findings(source: Source, place: MemberPath, names: Sequence[str]) -> Iterator[ScanFinding]:
    """What kind of program the names of a zip's members say that it is."""
    for sign in _SIGNS:
        code = [name for name in names if sign.code.search(name)]
        if code and any(sign.mark.search(name) for name in names):
            few = ", ".join(escape(name) for name in code[:_SHOWN])
            more = f" and {len(code) - _SHOWN} more" if len(code) > _SHOWN else ""
            words = f"{len(code)} {sign.words}: {few}{more}"
            yield finding(RULES, sign.rule, source, place, words, consequence=RULES[sign.rule].text)
