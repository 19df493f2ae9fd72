"""Recognises programs by the member names of a zip: TorchServe archives, torch.package, exported programs. The members
are also scanned one by one, like those of any zip.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from weighbridge.base.words import plural
from weighbridge.containers.sniff.archive import EXPORTED, PACKAGE, TORCHSCRIPT, TORCHSERVE
from weighbridge.reports.scan.model import RULES, Part, ScanFinding, escape


def _any_of(names: tuple[str, ...]) -> re.Pattern[str]:
    """Matches these members in any folder; `name/` matches every member of that folder."""
    pattern = "|".join(re.escape(name) + (".*" if name.endswith("/") else "") for name in names)
    return re.compile(rf"(^|/)({pattern})$", re.IGNORECASE)


# Rule; the members by which the kind of program is recognised; its code; what that is called.
_PROGRAMS: Final = tuple((rule, _any_of(marks), re.compile(code, re.IGNORECASE), noun) for rule, marks, code, noun in (
    ("torchscript/code", TORCHSCRIPT, r"(^|/)(code/.*\.py|bytecode\.pkl)$", "code file"),
    ("torchserve/handler", (TORCHSERVE,), r"\.(py|so|sh|tar\.gz|zip|whl)$", "code file"),
    ("package/code", (PACKAGE, ".data/version", ".data/python_version"), r"\.py$", "Python source"),
    ("package/extern", (PACKAGE,), r"(^|/)\.data/extern_modules$", "module list"),
    ("export/library", (EXPORTED, "data/aotinductor/"), r"\.(so|dll|dylib|cubin|cpp|o)$", "compiled file"),
))  # fmt: skip
_SHOWN: Final = 5


def findings(part: Part, names: Sequence[str]) -> Iterator[ScanFinding]:
    """The kinds of program that a zip with members of these names is."""
    for rule, mark, pattern, noun in _PROGRAMS:
        code = [name for name in names if pattern.search(name)]
        if code and any(mark.search(name) for name in names):
            few = ", ".join(escape(name) for name in code[:_SHOWN])
            more = f" and {len(code) - _SHOWN} more" if len(code) > _SHOWN else ""
            yield part.finding(rule, f"{plural(len(code), noun)}: {few}{more}", consequence=RULES[rule].text)
