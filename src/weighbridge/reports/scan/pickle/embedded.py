"""Finds pickles that a pickle carries as data: in byte strings, or in text as base64 or hexadecimal. Loading doesn't
run them, so the file isn't dangerous because of them; but they exist to be run, and aren't numbers.
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
from weighbridge.reports.scan.model import MemberPath, Part, ScanVerdict
from weighbridge.reports.scan.pickle.policy import PicklePolicy
from weighbridge.unpickle.machine import Machine

_TRIED: Final = 64  # matches that are scanned
_LONGEST: Final = MIB


class EmbeddingForm(NamedTuple):
    """`sign`: matches the start of a pickle of protocol 2 or later in this form, or in text the whole pickle."""

    form: str
    sign: re.Pattern[bytes]
    decode: Callable[[bytes], bytes]


# A pickle's first two bytes, after an opcode of a byte string and its length.
_RAW: Final = rb"\x80[\x02-\x05](?:(?<=[CU]...)|(?<=[BT]......)|(?<=[\x8e\x96]..........))"
FORMS: Final = (
    EmbeddingForm("bytes", re.compile(_RAW, re.DOTALL), bytes),
    EmbeddingForm("base64", re.compile(rb"gA[I-X][A-Za-z0-9+/]{14,}={0,2}"),
                  lambda text: base64.b64decode(text[: len(text) // 4 * 4])),
    EmbeddingForm("hexadecimal", re.compile(rb"800[2-5](?:[0-9a-fA-F]{2}){8,}"),
                  lambda text: binascii.unhexlify(text[: len(text) // 2 * 2])),
)  # fmt: skip


class EmbeddedPickle(NamedTuple):
    """A pickle at `at` in this `form`, which imports or calls `name`."""

    at: int
    form: str
    name: str


def embedded_pickles(data: bytes) -> Iterator[EmbeddedPickle]:
    """The pickles in `data` that use names which aren't known to be harmless."""
    tried = 0
    for form in FORMS:
        for match in form.sign.finditer(data):
            tried += 1
            if tried > _TRIED:
                return
            at = match.start()
            text = data[at : at + _LONGEST] if form.form == "bytes" else match[0][:_LONGEST]
            name = _worst_name(form.decode(text))
            if name:
                yield EmbeddedPickle(at, form.form, name)


def _worst_name(data: bytes) -> str | None:
    """The name with the worst verdict in a pickle; None if all are harmless."""
    source = BytesSource(data)
    policy = PicklePolicy(Part(source, MemberPath("")))
    machine = Machine(source, budget=16 * MIB, strict=False, watch=policy.watch)
    with contextlib.suppress(WeighbridgeError):  # the steps before the error count
        machine.run()
    policy.check(machine)
    findings = [f for f in policy.findings() if f.name and f.verdict.rank >= ScanVerdict.UNKNOWN_CODE.rank]
    return max(findings, key=lambda f: f.verdict.rank).name if findings else None
