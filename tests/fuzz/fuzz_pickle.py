"""Invariant: any bytes give a value, a FormatError or an UnsupportedError, by the opcodes that pickletools sees."""

from __future__ import annotations

import pickle
import pickletools
import sys
from collections import OrderedDict

import harness

from weighbridge.io.source import BytesSource
from weighbridge.unpickle.libraries import torch
from weighbridge.unpickle.machine import Machine


def target(data: bytes) -> None:
    machine = Machine(BytesSource(data))
    value = machine.run()
    reading = torch.read(machine, value)
    assert len(reading.plain) <= machine.steps * 8 + 1024
    assert machine.end <= len(data)
    try:
        ops = [(pos, op.name) for op, _, pos in pickletools.genops(data)]
    except ValueError:  # it checks argument text where a loader does not
        return
    assert len(ops) == machine.steps
    assert {(e.at, e.op) for e in machine.events} <= set(ops)


class _Call:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("ran",), {"state": 1}, iter([2]), iter([("k", 3)])


def seeds() -> list[bytes]:
    shared = ["x"]
    value = {"a": [1, -2, 1 << 70, 2.5, None, True], "b": (shared, shared), "c": b"\xff", "d": {1, 2}, "e": "\u00e9"}
    objects = [OrderedDict(w=1), _Call(), frozenset({3}), bytearray(b"z"), complex(1, 2)]
    return [pickle.dumps(v, p) for v in (value, objects) for p in range(6)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
