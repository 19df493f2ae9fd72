"""Parses numbers that a pickle writes as lines of text, like each unpickler does."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

from weighbridge.base.limits import PICKLE_DIGITS
from weighbridge.unpickle.state import MachineState
from weighbridge.unpickle.values import PickleFault

# The form that pickle writes. Readers differ on others: C and Python read 0x1f and 0o7, the disassembler doesn't, and C
# stops at a NUL (CPython #126992, #126996).
_INTEGER: Final = re.compile(rb"-?(0|[1-9][0-9]*)\Z")
_OCTAL: Final = re.compile(rb"\s*[-+]?0[0-7]+\s*\Z")
# The characters of numbers in any base.
_NUMERIC: Final = re.compile(rb"[\s\w.+-]{%d}[\s\w.+-]*\Z" % PICKLE_DIGITS)
_FLOAT: Final = re.compile(rb"[-+]?([0-9]+\.?[0-9]*([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?|inf|nan)\Z")


def _is_long(line: bytes) -> bool:
    """Whether a line is a number beyond the limit. Text that isn't a number is rejected by every reader."""
    return len(line) > PICKLE_DIGITS and _NUMERIC.match(line.partition(b"\0")[0]) is not None


def _parse(m: MachineState, digits: bytes, base: int) -> int:
    """Parses an integer. `base`: the base that unpicklers pass to `int()`, 0 or 10."""
    if _is_long(digits):
        m.over_limit(f"an integer has more than {PICKLE_DIGITS} digits")
    if _INTEGER.match(digits):
        return int(digits)
    m.dispute("not a decimal integer, or one that readers parse differently", found=digits[:40],
              code=PickleFault.NUMBER)  # fmt: skip
    for text in (digits, digits.partition(b"\0")[0]):
        if base == 0 and not text.strip():
            return 0  # C's strtol without digits
        with suppress(ValueError):
            return int(text, 8 if base == 0 and _OCTAL.match(text) else base)
    m.fail("not an integer", found=digits[:40], code=PickleFault.NUMBER)


def integer(m: MachineState, line: bytes) -> Any:
    return line == b"01" if line in (b"00", b"01") else _parse(m, line, 0)


def long(m: MachineState, line: bytes) -> int:
    return _parse(m, line.removesuffix(b"L"), 0)


def real(m: MachineState, line: bytes) -> float:
    if _is_long(line):
        m.over_limit(f"a float has more than {PICKLE_DIGITS} digits")
    if not _FLOAT.match(line):
        m.dispute("not a float", found=line[:40], code=PickleFault.NUMBER)
    try:
        return float(line.partition(b"\0")[0])
    except ValueError:
        m.fail("not a float", found=line[:40], code=PickleFault.NUMBER)


def index(m: MachineState, line: bytes) -> int:
    slot = _parse(m, line, 10)
    if slot < 0:
        m.fail("a memo slot is negative", found=slot, code=PickleFault.NUMBER)
    return slot
