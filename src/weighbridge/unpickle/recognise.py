"""Recognises a pickle by its first opcodes: the machine runs over them and stops early."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.io.source import BytesSource
from weighbridge.unpickle.libraries.joblib import JoblibMachine
from weighbridge.unpickle.opcodes import Opcode
from weighbridge.unpickle.values import Global

_BUDGET: Final = 16 << 20
_PROTO: Final = b"\x80"
_NAMES: Final = 16


class Prefix(NamedTuple):
    """The opcodes at the beginning of some data, `steps` of them, up to byte `end`. `declared`: the protocol of PROTO;
    `protocol`: that, or the lowest one that has the opcodes. `names`: their imports. `stopped`: STOP was reached, with
    `value`. `broken`: why every unpickler stops there, unless the data just ends."""

    declared: int | None
    protocol: int
    steps: int
    end: int
    names: tuple[str, ...]
    stopped: bool
    value: Any
    broken: str | None


def prefix(data: bytes, most: int) -> Prefix:
    """The first opcodes in `data`, at most `most`."""
    machine = JoblibMachine(BytesSource(data), budget=_BUDGET, strict=False)
    opcodes: list[Opcode] = []
    broken = None
    declared = data[1] if data[:1] == _PROTO and len(data) > 1 else None
    try:
        if declared is not None:
            machine.run_at_most(most)
        for opcode in () if declared is not None else machine.trace():  # to know their protocols
            if machine.steps >= most:
                break
            if opcode is not None:
                opcodes.append(opcode)
    except FormatError as error:
        broken = None if "ends" in error.reason else error.reason
    except UnsupportedError as error:
        broken = error.message
    protocol = max((o.protocol for o in opcodes[: machine.steps]), default=0) if declared is None else declared
    names = dict.fromkeys(str(e.what) for e in machine.events if isinstance(e.what, Global))
    value = machine.stack[-1] if machine.done else None
    end = machine.end if broken is None else machine.at
    return Prefix(declared, protocol, machine.steps, end, tuple(names)[:_NAMES], machine.done, value, broken)
