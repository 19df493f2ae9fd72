"""Pickles that a pickle carries as data: in byte strings, or in text as base64 or hexadecimal. Loading does not run
them, so they don't make their carrier dangerous; but they exist to be run, and aren't numbers.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import MIB
from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.model import MemberPath, ScanVerdict
from weighbridge.reports.scan.pickle.policy import PicklePolicy
from weighbridge.unpickle.machine import Machine

_TRIED: Final = 64  # hits that are scanned
_LONGEST: Final = MIB


class EmbeddingForm(NamedTuple):
    """`sign`: how a value of this form begins that is a pickle of protocol 2 or later; of text all of it."""

    what: str
    sign: re.Pattern[bytes]
    decode: Callable[[bytes], bytes]


def _base64(text: bytes) -> bytes:
    whole = len(text) // 4 * 4
    return base64.b64decode(text[:whole])


def _hex(text: bytes) -> bytes:
    return binascii.unhexlify(text[: len(text) // 2 * 2])


# A pickle's first two bytes, behind an opcode of a byte string and its length.
_RAW: Final = rb"\x80[\x02-\x05](?:(?<=[CU]...)|(?<=[BT]......)|(?<=[\x8e\x96]..........))"
FORMS: Final = (
    EmbeddingForm("bytes", re.compile(_RAW, re.DOTALL), bytes),
    EmbeddingForm("base64", re.compile(rb"gA[I-X][A-Za-z0-9+/]{14,}={0,2}"), _base64),
    EmbeddingForm("hexadecimal", re.compile(rb"800[2-5](?:[0-9a-fA-F]{2}){8,}"), _hex),
)


class EmbeddedPickle(NamedTuple):
    """At `at` a pickle in the form `what`, in which `name` is imported or called."""

    at: int
    what: str
    name: str


def embedded_pickles(data: bytes) -> Iterator[EmbeddedPickle]:
    """The pickles in `data` that name what is not known to be harmless."""
    tried = 0
    for form in FORMS:
        for match in form.sign.finditer(data):
            tried += 1
            if tried > _TRIED:
                return
            at = match.start()
            text = data[at : at + _LONGEST] if form.what == "bytes" else match[0][:_LONGEST]
            name = _named(form.decode(text))
            if name:
                yield EmbeddedPickle(at, form.what, name)


def _named(data: bytes) -> str | None:
    """The worst name that a pickle is judged for; None of data."""
    source = BytesSource(data)
    policy, machine = PicklePolicy(source, MemberPath("")), Machine(source, budget=16 * MIB, strict=False)
    with contextlib.suppress(WeighbridgeError):  # what it did before counts
        machine.run()
    policy.check(machine)
    found = [f for f in policy.findings() if f.name and f.verdict.rank >= ScanVerdict.UNKNOWN_CODE.rank]
    return max(found, key=lambda f: f.verdict.rank).name if found else None
