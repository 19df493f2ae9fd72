"""Scans arrays that are not only numbers: NumPy's .npy of objects, which is a pickle behind a header, and joblib's
arrays in the middle of a pickle, whose numbers any other unpickler would take for opcodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import MIB
from weighbridge.containers.numpy import npy
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import Budget, MemberPath, Nested, Piece, ScanRule, ScanVerdict, Use, finding
from weighbridge.reports.scan.pickle import denylist
from weighbridge.reports.scan.pickle.shapes import class_of
from weighbridge.unpickle.libraries import joblib
from weighbridge.unpickle.machine import Machine

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "pickle/array-opcodes": ScanRule(
            ScanVerdict.DANGEROUS, "numbers of a joblib array that other unpicklers run as opcodes"
        )
    }
)
_READ: Final = 16 * MIB  # of a pickle, for the wrapper's name: it stands in front of the first array


def scan(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """An .npy file, or a member of an .npz."""
    budget.spend(members=1)
    start = npy.objects_at(source)
    if start is not None:
        size = source.size - start
        yield Nested(source.window(start, size, f"{source.name} (objects)"), place.inside("(objects)"), "pickle")


def opcodes(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """What an unpickler other than joblib's would do with the numbers of a pickle's arrays."""
    size = min(source.size, _READ)
    budget.spend(size)
    if joblib.WRAPPER[1].encode() not in source.read(0, size):
        return
    machine = Machine(source, 0, _READ, strict=False)
    with suppress(WeighbridgeError):  # honest numbers are no opcodes
        machine.run()
    behind = False
    for event in machine.events:
        name = class_of(event.what.callee) if event.kind == "call" else event.what if event.kind == "import" else None
        harm = denylist.consequence(*name.path) if behind and name is not None else None
        if harm:
            words = f"read as opcodes, an array's numbers name {name}"
            yield finding(RULES, "pickle/array-opcodes", source, place, words, at=event.at, opcode=event.op,
                          name=str(name), use=Use.IMPORTED, consequence=harm)  # fmt: skip
            return
        behind |= event.kind == "build" and joblib.class_path(event.what) == joblib.WRAPPER
