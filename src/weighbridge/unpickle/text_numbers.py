"""Numbers that a pickle writes as lines of text, as each unpickler reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.limits import PICKLE_DIGITS

if TYPE_CHECKING:
    from weighbridge.unpickle.machine import Machine

# As pickle writes them. Readers differ on the rest: C and Python read 0x1f and 0o7, the disassembler does not, and C
# stops at a NUL (CPython #126992, #126996).
_INTEGER: Final = re.compile(rb"-?(0|[1-9][0-9]*)\Z")
_OCTAL: Final = re.compile(rb"\s*[-+]?0[0-7]+\s*\Z")
_FLOAT: Final = re.compile(rb"[-+]?([0-9]+\.?[0-9]*([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?|inf|nan)\Z")


def _parse(m: Machine, digits: bytes, base: int) -> int:
    """`base`: that of the `int()` by which unpicklers read it, 0 or 10."""
    if len(digits) > PICKLE_DIGITS:
        m.over_limit(f"an integer has more than {PICKLE_DIGITS} digits")
    if _INTEGER.match(digits):
        return int(digits)
    m.dispute("no decimal integer, or one that readers take differently", found=digits[:40])
    for text in (digits, digits.partition(b"\0")[0]):
        value = _parsed(text, base)
        if value is not None:
            return value
    m.fail("no integer", found=digits[:40])


def _parsed(digits: bytes, base: int) -> int | None:
    """As C's strtol or Python's int() reads digits; None where neither does."""
    if base == 0 and not digits.strip():
        return 0  # strtol without digits
    try:
        return int(digits, 8 if base == 0 and _OCTAL.match(digits) else base)
    except ValueError:
        return None


def integer(m: Machine, line: bytes) -> Any:
    return line == b"01" if line in (b"00", b"01") else _parse(m, line, 0)


def long(m: Machine, line: bytes) -> int:
    return _parse(m, line.removesuffix(b"L"), 0)


def real(m: Machine, line: bytes) -> float:
    if len(line) > PICKLE_DIGITS:
        m.over_limit(f"a float has more than {PICKLE_DIGITS} digits")
    if not _FLOAT.match(line):
        m.dispute("no float", found=line[:40])
    try:
        return float(line.partition(b"\0")[0])
    except ValueError:
        m.fail("no float", found=line[:40])


def index(m: Machine, line: bytes) -> int:
    index = _parse(m, line, 10)
    if index < 0:
        m.fail("a place in the memo is negative", found=index)
    return index
